"""Attributes of links and devices are on the disk before SETATTR's reply, without writing back everybody's data."""

import asyncio
import contextlib
import os
import stat
import subprocess

import pytest

from nfsd.protocol.nfs3 import SETATTR3args, nfs_fh3, nfsstat3
from nfsd.vfs import flushes, stable
from nfsd.vfs.executor import Chain
from nfsd.vfs.syscalls import SYS_FSYNC, SYS_SYNCFS
from nfsd.vfs.types import FileType, SetAttributes
from tests.nfs3_client import Nfs3Client, attributes
from tests.unit.nfs_client_support import Rig
from tests.unit.test_vfs_mounts import mounted
from tests.unit.vfs_support import ROOT, run


@contextlib.contextmanager
def disk(tmp_path, place, *, journal=True, make=("mkfs.ext4", "-q", "-F")):
    """A file system of its own that writes nothing back unless it is told to."""
    image = tmp_path / "image"
    is_ext4 = make[0] == "mkfs.ext4"
    with image.open("wb") as file:
        file.truncate(64 << 20 if is_ext4 else 320 << 20)
    subprocess.run([*make, *([] if journal else ["-O", "^has_journal"]), str(image)], check=True)
    how = "loop,commit=300" if journal and is_ext4 else "loop"
    with mounted(str(place), "-o", how, str(image)):
        yield image


@contextlib.contextmanager
def rebooted(image, tmp_path):
    """The file system as it is on the disk now: what a reboot after a power cut would find."""
    copy, place = tmp_path / "copy", tmp_path / "rebooted"
    subprocess.run(["cp", "--sparse=always", str(image), str(copy)], check=True)
    place.mkdir(exist_ok=True)
    with copy.open("rb") as file:
        how = "loop,nouuid" if file.read(4) == b"XFSB" else "loop"
    with mounted(str(place), "-o", how, str(copy)):
        yield place


def what_is_on(image, tmp_path, name):
    """lstat(2) of a file as it is on the disk now."""
    with rebooted(image, tmp_path) as place:
        return os.lstat(place / name)


@pytest.fixture
def calls(monkeypatch):
    """fsync(2) and syncfs(2), in order."""
    made = []

    class Recording(Chain):
        def add(self, number, *arguments, **flags):
            if number in (SYS_FSYNC, SYS_SYNCFS):
                made.append("fsync" if number == SYS_FSYNC else "syncfs")
            return super().add(number, *arguments, **flags)

    monkeypatch.setattr(stable, "Chain", Recording)
    monkeypatch.setattr(flushes, "on_fsync", lambda descriptor: made.append("fsync"))
    return made


@pytest.fixture
def place(tmp_path):
    place = tmp_path / "export"
    place.mkdir()
    return place


@pytest.mark.parametrize("journal", [True, False], ids=["journal", "no journal"])
def test_the_owner_of_a_link_survives_a_power_cut(tmp_path, journal, calls):
    rig = Rig(tmp_path)

    async def main():
        service = rig.daemon.service
        root = nfs_fh3((await service.root(service.exports.exports[0])).handle)
        async with await Nfs3Client.connect("127.0.0.1", rig.ports["tcp"]) as client:
            for number, name in enumerate((b"link", b"fifo")):
                handle = await client.lookup(root, name)
                wanted = SETATTR3args(handle, attributes(uid=4242 + number), None)
                assert (await client.nfs("SETATTR", wanted)).status == nfsstat3.NFS3_OK
                found = what_is_on(image, tmp_path, name.decode())
                assert found.st_uid == 4242 + number
        assert calls == (["fsync"] if journal else ["syncfs"]) * 2

    with disk(tmp_path, rig.export, journal=journal) as image:
        (rig.export / "link").symlink_to("elsewhere")
        os.mkfifo(rig.export / "fifo")
        subprocess.run(["sync", "-f", str(rig.export)], check=True)
        os.lchown(rig.export / "link", 7, 7)
        assert what_is_on(image, tmp_path, "link").st_uid == 0, "this disk writes back on its own: nothing is shown"
        rig.run(main)


def test_nobody_elses_data_is_written_back(place, tmp_path, calls):
    with disk(tmp_path, place) as image:

        async def scenario(service, root):
            link, _, _ = await service.symlink(ROOT, root, b"link", b"there", SetAttributes())
            with open(place / "data", "wb") as file:
                os.posix_fallocate(file.fileno(), 0, 1 << 20)
                os.fsync(file.fileno())
                file.write(b"not to be written back yet")
                file.flush()
                calls.clear()
                await service.set_attributes(ROOT, link, SetAttributes(uid=1))
            assert calls == ["fsync"]
            assert b"not to be written back yet" not in image.read_bytes()

        run(place, tmp_path, scenario)


def test_those_who_wait_share_it(place, tmp_path, calls, monkeypatch):
    """However many links somebody changes, one synchronisation runs at a time."""
    with disk(tmp_path, place, journal=False):

        async def scenario(service, root):
            links = [
                (await service.symlink(ROOT, root, b"%d" % number, b"there", SetAttributes()))[0]
                for number in range(40)
            ]
            calls.clear()
            running, most, really = 0, 0, service.stable.sync_file_system

            def syncfs(mount, finished):
                nonlocal running, most

                def over(error):
                    nonlocal running
                    running -= 1
                    finished(error)

                running += 1
                most = max(most, running)
                really(mount, over)

            monkeypatch.setattr(service.stable, "sync_file_system", syncfs)
            await asyncio.gather(*(service.set_attributes(ROOT, link, SetAttributes(uid=1)) for link in links))
            assert most == 1
            assert set(calls) == {"syncfs"}

        run(place, tmp_path, scenario)


def test_a_device_without_room_for_another_file(place, tmp_path, calls):
    """The journal's way needs an inode; where there is none, the other way is left."""
    with disk(tmp_path, place, make=("mkfs.ext4", "-q", "-F", "-N", "16")):

        async def scenario(service, root):
            node, _, _ = await service.mknod(ROOT, root, b"fifo", FileType.FIFO, (0, 0), SetAttributes())
            with contextlib.suppress(OSError):
                for number in range(100):
                    (place / f"f{number}").touch()
            calls.clear()
            await service.set_attributes(ROOT, node, SetAttributes(mode=0o600))
            assert calls == ["fsync", "syncfs"]
            assert stat.S_IMODE(os.lstat(place / "fifo").st_mode) == 0o600

        run(place, tmp_path, scenario)


def test_the_journal_is_told_from_none(tmp_path, place, calls):
    for journal in (True, False):
        with disk(tmp_path, place, journal=journal):

            async def scenario(service, root, journal=journal):
                link, _, _ = await service.symlink(ROOT, root, b"link", b"there", SetAttributes())
                await service.set_attributes(ROOT, link, SetAttributes(uid=1))
                assert root.mount.journal is journal

            run(place, tmp_path, scenario)
