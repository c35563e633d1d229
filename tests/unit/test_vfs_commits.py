"""Changes of names and attributes share commits of the journal, and are on the disk before their replies."""

import asyncio
import os
import shutil
import stat
import subprocess
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from nfsd.vfs import flushes
from nfsd.vfs.stable import StableStorage
from tests.unit.nfs_client_support import Rig
from tests.unit.test_stable_write_errors import until
from tests.unit.test_vfs_links_durability import disk, rebooted, what_is_on

PLACES = 8
KINDS = {"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q")}


def made(kind):
    """How to make such a file system; skips where nobody can."""
    if shutil.which(KINDS[kind][0]) is None:
        pytest.skip(f"there is no mkfs.{kind}")
    return KINDS[kind]


@pytest.fixture
def commits(monkeypatch):
    """Descriptors that are synchronised."""
    found = []
    monkeypatch.setattr(flushes, "on_fsync", found.append)
    return found


async def change(client, name):
    """All kinds of changes in one directory, one behind the other. Each has been answered when this returns."""
    await client.rename(f"{name}/old", f"{name}/new")
    await client.chmod(f"{name}/new", 0o640)
    await client.utime(f"{name}/new", ns=(10**18, 2 * 10**18))
    await client.mkdir(f"{name}/inner", 0o750)
    await client.symlink("there", f"{name}/link")
    await client.link(f"{name}/new", f"{name}/inner/second")
    await client.remove(f"{name}/gone")
    await client.rename(f"{name}/moved", f"{name}/inner/moved")


def check(place, name):
    """What :func:`change` has come to."""
    at = place / name
    assert sorted(os.listdir(at)) == ["inner", "link", "new"]
    assert sorted(os.listdir(at / "inner")) == ["moved", "second"]
    found = os.lstat(at / "new")
    assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns, found.st_nlink) == (0o640, 2 * 10**18, 2)
    assert stat.S_IMODE(os.lstat(at / "inner").st_mode) == 0o750
    assert os.readlink(at / "link") == "there"


def lags(image, tmp_path, place):
    """Whether a change is not on the disk yet if nobody has asked for that. On a busy machine the kernel may just
    have written everything back; so there are more tries than one."""
    for mode in range(0o700, 0o705):
        subprocess.run(["sync", "-f", str(place)], check=True)
        before = stat.S_IMODE(place.stat().st_mode)
        place.chmod(mode)
        if stat.S_IMODE(what_is_on(image, tmp_path, place.name).st_mode) == before:
            return True
    return False


@pytest.mark.parametrize("version", ["3", "4.1"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_many_have_changed_survives_a_power_cut(tmp_path, kind, version, commits):
    rig = Rig(tmp_path, version=version)
    names = [f"d{number}" for number in range(PLACES)]

    async def main():
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(rig.connect()) for _ in range(2)]
            await asyncio.gather(*(change(clients[number % 2], name) for number, name in enumerate(names)))
            with rebooted(image, tmp_path) as place:
                for name in names:
                    check(place, name)

    with disk(tmp_path, rig.export, make=made(kind)) as image:
        for name in names:
            (rig.export / name).mkdir()
            for file in ("old", "gone", "moved"):
                (rig.export / name / file).touch()
        assert lags(image, tmp_path, rig.export / "d0"), "this disk writes back on its own: nothing is shown"
        rig.run(main)
    assert 1 <= len(commits) < PLACES * 8, "each has had one of its own"


@pytest.mark.parametrize("version", ["3", "4.1"])
@pytest.mark.parametrize("kind", KINDS)
def test_names_may_come_later_where_data_may_not(tmp_path, kind, version, commits):
    """``async: names``: what a file holds, and the file's own name, are on the disk after fsync() and stable WRITEs."""
    rig = Rig(tmp_path, version=version)
    rig.entry = ", async: names"

    async def main():
        async with rig.connect() as client:
            await change(client, "d")
            check(rig.export, "d")
            assert commits == []
            async with client.open("d/synced", "w") as file:
                await file.write(b"what was asked for")
                await file.flush()
                assert commits
                with rebooted(image, tmp_path) as place:
                    assert (place / "d" / "synced").read_bytes() == b"what was asked for"

    with disk(tmp_path, rig.export, make=made(kind)) as image:
        (rig.export / "d").mkdir()
        for file in ("old", "gone", "moved"):
            (rig.export / "d" / file).touch()
        rig.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_many_files_whose_modes_are_set_share_commits(tmp_path, kind, commits):
    rig = Rig(tmp_path, version="3")
    names = [f"f{number}" for number in range(64)]

    async def main():
        async with rig.connect() as client:
            await client.stat("f0")
            commits.clear()
            await asyncio.gather(*(client.chmod(name, 0o600) for name in names))
            assert 1 <= len(commits) <= 32
            with rebooted(image, tmp_path) as place:
                assert {stat.S_IMODE(os.lstat(place / name).st_mode) for name in names} == {0o600}

    with disk(tmp_path, rig.export, make=made(kind)) as image:
        for name in names:
            (rig.export / name).touch()
        subprocess.run(["sync", "-f", str(rig.export)], check=True)
        rig.run(main)


def fill(place):
    """Leave no inode for another file."""
    with suppress(OSError):
        for number in range(100):
            (place / f"x{number}").touch()


def test_who_waits_hears_of_a_commit_that_cannot_be_begun(tmp_path, monkeypatch):
    """And so does whoever asks next."""
    rig = Rig(tmp_path, version="3")

    def refuse(stable, mount, done):
        raise RuntimeError("not now")

    async def main():
        async with rig.connect() as client, asyncio.timeout(60):
            with monkeypatch.context() as patch:
                patch.setattr(StableStorage, "sync_file_system", refuse)
                for _ in range(2):
                    with pytest.raises(OSError, match="Input/output error"):
                        await client.chmod("a", 0o604)
            await client.chmod("a", 0o640)

    with disk(tmp_path, rig.export, make=(*KINDS["ext4"], "-N", "16")):
        (rig.export / "a").touch()
        fill(rig.export)
        rig.run(main)


def test_names_in_one_directory_need_no_other_file(tmp_path, monkeypatch):
    """The fsync of the directory is enough, and no inode is needed where there is none left."""
    rig = Rig(tmp_path, version="3")
    whole, really = [], StableStorage.sync_file_system

    def sync_file_system(stable, mount, done):
        whole.append(mount)
        really(stable, mount, done)

    monkeypatch.setattr(StableStorage, "sync_file_system", sync_file_system)

    async def main():
        async with rig.connect() as client:
            await client.rename("a", "b")
            assert not whole
            with rebooted(image, tmp_path) as place:
                assert (place / "b").exists()
                assert not (place / "a").exists()
            await client.chmod("b", 0o604)
            assert len(whole) == 1, "an attribute's change needs one"
            assert stat.S_IMODE(what_is_on(image, tmp_path, "b").st_mode) == 0o604

    with disk(tmp_path, rig.export, make=(*KINDS["ext4"], "-N", "16")) as image:
        (rig.export / "a").touch()
        subprocess.run(["sync", "-f", str(rig.export)], check=True)
        fill(rig.export)
        rig.run(main)


def without_names(place):
    """Open files of this process that have no name, on the file system of a place."""
    device, found = place.stat().st_dev, 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            status = link.stat()
            found += status.st_dev == device and stat.S_ISREG(status.st_mode) and status.st_nlink == 0
    return found


def remount(place, how):
    """Have the file system there read-only ("ro") or not ("rw")."""
    subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_commits_share_a_file_that_goes_when_there_are_none(tmp_path, kind, monkeypatch):
    """As long as it is there, the file system cannot be remounted read-only."""
    rig = Rig(tmp_path, version="3")
    monkeypatch.setattr("nfsd.vfs.service.SWEEP_SECONDS", 3600)  # but for those of this test

    async def main():
        async with rig.connect() as client:
            for mode in (0o604, 0o640, 0o600):
                await client.chmod("a", mode)
                assert without_names(rig.export) == 1
                with rebooted(image, tmp_path) as place:
                    assert stat.S_IMODE(os.lstat(place / "a").st_mode) == mode
            service = rig.daemon.service
            service.sweep()
            assert without_names(rig.export) == 1, "there has been a commit since the last time"
            mount, under_way = (await service.roots.root(service.exports.exports[0])).mount, []
            mount.sync.join(under_way.append)
            service.sweep()
            assert not service.chains.closes(mount.lane), "there is a commit"
            under_way[0](0)
            service.sweep()
            await until(lambda: not without_names(rig.export))
            remount(rig.export, "ro")
            with pytest.raises(OSError, match="Read-only"):
                await client.chmod("a", 0o644)
            remount(rig.export, "rw")
            await client.chmod("a", 0o644)
            assert stat.S_IMODE(what_is_on(image, tmp_path, "a").st_mode) == 0o644

    with disk(tmp_path, rig.export, make=made(kind)) as image:
        (rig.export / "a").touch()
        subprocess.run(["sync", "-f", str(rig.export)], check=True)
        rig.run(main)


def test_a_commit_needs_no_inode_where_the_one_before_had_one(tmp_path, monkeypatch):
    rig = Rig(tmp_path, version="3")
    monkeypatch.setattr(StableStorage, "sync_file_system", None)

    async def main():
        async with rig.connect() as client:
            await client.chmod("a", 0o604)
            fill(rig.export)
            await client.chmod("a", 0o640)
            assert stat.S_IMODE(what_is_on(image, tmp_path, "a").st_mode) == 0o640

    with disk(tmp_path, rig.export, make=(*KINDS["ext4"], "-N", "16")) as image:
        (rig.export / "a").touch()
        rig.run(main)
