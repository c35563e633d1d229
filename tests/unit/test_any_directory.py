"""Directories on file systems without file handles: an overlay, as the root of every container is, and FUSE.

Needs the privilege to mount; the test with FUSE needs bindfs.
"""

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import subprocess

import pytest

from nfsd.exports import Export, ExportTable
from nfsd.vfs.service import FileService
from nfsd.vfs.syscalls import NUMBERED, Naming
from nfsd.vfs.types import SetAttributes
from tests.unit.nfs_client_support import Rig
from tests.unit.test_vfs_mounts import mounted
from tests.unit.vfs_support import ROOT, read_file, run, write_file

needs_bindfs = pytest.mark.skipif(
    shutil.which("bindfs") is None or not os.path.exists("/dev/fuse"), reason="this host has no bindfs, or no FUSE"
)


def refused(code):
    return pytest.raises(OSError, match=os.strerror(code))


@contextlib.contextmanager
def overlay(base, at):
    """An overlay, of files in ``lower`` and others that will be above them."""
    for name in ("upper", "work"):
        (base / name).mkdir(exist_ok=True)
    layers = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work"
    with mounted(str(at), "-t", "overlay", "-o", layers, "overlay"):
        yield


@contextlib.contextmanager
def fuse(base, at):
    """A passthrough in a process: its inode numbers are those below, the kernel's names for them begin anew.
    A removed file that is still open is hidden, not removed: libfuse 3 has no option against that."""
    subprocess.run(["bindfs", str(base / "lower"), str(at)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


async def eventually_removed(fs, directory):
    """Until the server closes its idle files, FUSE keeps those that are removed under hidden names."""
    for _ in range(100):
        try:
            return await fs.rmtree(directory)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
        await asyncio.sleep(0.5)
    raise AssertionError(f"{directory} never became empty")


KINDS = [
    pytest.param((overlay, True), id="overlay"),
    pytest.param((overlay, False), id="overlay-before-6.5"),
    pytest.param((fuse, True), id="fuse", marks=needs_bindfs),
]


@pytest.fixture(params=KINDS)
def kind(request, monkeypatch, tmp_path):
    file_system, modern = request.param
    if not modern:
        monkeypatch.setattr(Naming, "FID", Naming.HANDLE | 1 << 30)  # a flag that name_to_handle_at knows nothing of
    lower = tmp_path / "lower"
    (lower / "deep" / "down").mkdir(parents=True)
    for directory in (lower, lower / "deep", lower / "deep" / "down"):
        directory.chmod(0o777)
    (lower / "file").write_bytes(b"lower")
    (lower / "replaced").write_bytes(b"replaced")
    (lower / "deep" / "down" / "below").write_bytes(b"below")
    return file_system


@pytest.mark.parametrize("version", ["3", "4.1"])
def test_it_is_served_and_restarts_are_survived(kind, version, tmp_path, caplog):
    rig = Rig(tmp_path, version=version)

    async def before(fs):
        """Files kept open, by what is to be read from them after the restart."""
        kept = {}
        reading = await fs.open("file")
        assert await reading.read() == b"lower"
        await fs.write_bytes("file", b"written, and so copied up")
        assert (await reading.pread(100, 0)) == b"written, and so copied up"
        kept[reading] = b"written, and so copied up"
        await fs.write_bytes("new", b"new")
        kept[await fs.open("new")] = b"moved"
        await fs.write_bytes("new", b"moved")
        await fs.mkdir("made")
        await fs.rename("new", "made/moved")
        kept[await fs.open("deep/down/below")] = b"below"
        await fs.makedirs("early/down")  # an overlay moves no directories of the layers below
        await fs.write_bytes("early/down/below", b"moved with its directory")
        kept[await fs.open("early/down/below")] = b"moved with its directory"
        await fs.rename("early/down", "made/up")
        await fs.symlink("moved", "made/link")
        await fs.link("file", "made/hard")
        for number in range(40):
            await fs.write_bytes(f"made/{number}", str(number).encode())
        assert sorted(await fs.listdir("made")) == sorted(["hard", "link", "moved", "up", *map(str, range(40))])
        await fs.write_bytes("gone", b"gone")
        await fs.remove("gone")
        assert not await fs.exists("gone")
        return kept

    async def after(fs, kept):
        for file, data in kept.items():
            assert await file.pread(100, 0) == data
            await file.close()
        assert await fs.read_bytes("made/link") == b"moved"
        assert {entry.name async for entry in fs.scandir("made/up")} == {"below"}
        assert await fs.read_bytes("made/7") == b"7"
        await fs.rename("made/7", "replaced")
        assert await fs.read_bytes("replaced") == b"7"
        await eventually_removed(fs, "made")
        hidden = ".fuse_hidden"  # "replaced" as it was, for some seconds
        left = [name for name in await fs.listdir() if not name.startswith(hidden)]
        assert sorted(left) == ["deep", "early", "file", "replaced"]

    async def main():
        with kind(tmp_path, rig.export):
            await rig.start()
            fs = await rig.connect()
            kept = await before(fs)
            await rig.daemon.stop()
        with kind(tmp_path, rig.export):  # mounted anew, as after a restart of the host
            await rig.start()
            await after(fs, kept)
            await fs.close()
            await rig.daemon.stop()

    with caplog.at_level(logging.WARNING, "nfsd.vfs.mount_table"):
        asyncio.run(asyncio.wait_for(main(), 200))
    said = [record.getMessage() for record in caplog.records if "has no file handles" in record.getMessage()]
    assert len(said) == 2, "once at each start"
    assert str(rig.export) in said[0]
    assert "stale to clients until they look it up again" in said[0]


def test_what_local_processes_do(kind, tmp_path):
    export = tmp_path / "export"
    export.mkdir()

    async def first(service, root):
        handles = {}
        for name in (b"file", b"replaced"):
            node, _ = await service.lookup(ROOT, root, name)
            handles[name] = node.handle
        deep, _ = await service.lookup(ROOT, root, b"deep")
        page = await service.readdir(ROOT, deep, 0, limit=10, plus=True)
        handles[b"down"] = next(entry.handle for entry in page.entries if entry.name == b"down")
        assert handles[b"down"] == (await service.lookup(ROOT, deep, b"down"))[0].handle, "listed as looked up"
        assert (await service.lookup(ROOT, deep, b".."))[0] is root
        copied = await write_file(service, root, b"made", b"made")
        handles[b"made"] = copied.handle
        return handles

    async def second(service, root):
        assert (await read_file(service, await service.resolve(handles[b"made"])))[0] == b"made"
        for name in (b"file", b"replaced"):
            with refused(errno.ESTALE):
                await service.resolve(handles[name])
        found, _ = await service.lookup(ROOT, root, b"elsewhere")
        assert found.handle == handles[b"file"]
        assert (await read_file(service, await service.resolve(handles[b"file"])))[0] == b"lower"
        await service.resolve(handles[b"down"])

    with kind(tmp_path, export):
        handles = run(export, tmp_path, first)
        os.rename(export / "file", export / "elsewhere")
        (export / "other").write_bytes(b"another file")
        os.rename(export / "other", export / "replaced")
        run(export, tmp_path, second)


def test_the_same_file_is_the_same_once_it_is_copied_up(tmp_path):
    (tmp_path / "lower").mkdir()
    (tmp_path / "lower" / "file").write_bytes(b"lower")
    export = tmp_path / "export"
    export.mkdir()

    async def handle(service, root):
        assert root.mount.naming == naming
        return (await service.lookup(ROOT, root, b"file"))[0].handle

    async def kind_of(service, root):
        return root.mount.naming

    with overlay(tmp_path, export):
        naming = run(export, tmp_path, kind_of)
        before = run(export, tmp_path, handle)
        (export / "file").write_bytes(b"upper")
        assert run(export, tmp_path, handle) == before


def test_two_overlays_of_the_same_layer_share_nothing(tmp_path, monkeypatch):
    """Their files have the same numbers as long as both show those of the layer below."""
    monkeypatch.setattr(Naming, "FID", Naming.HANDLE | 1 << 30)
    (tmp_path / "lower").mkdir()
    (tmp_path / "lower" / "file").write_bytes(b"lower")
    places = [tmp_path / name for name in ("one", "two")]

    async def main():
        exports = [Export(id=n, path=str(place / "at"), pseudo=f"/{n}") for n, place in enumerate(places, 1)]
        service = FileService(ExportTable(exports), str(tmp_path))
        await service.start()
        try:
            roots = [await service.root(export) for export in exports]
            nodes = [(await service.lookup(ROOT, root, b"file"))[0] for root in roots]
            assert nodes[0].inode is not nodes[1].inode
            assert service.known.codec.decode(nodes[0].handle)[2] == NUMBERED
        finally:
            await service.close()

    with contextlib.ExitStack() as stack:
        for place in places:
            (place / "at").mkdir(parents=True)
            (place / "lower").symlink_to(tmp_path / "lower")
            stack.enter_context(overlay(place, place / "at"))
        asyncio.run(main())


def test_across_mounts_with_and_without_handles(tmp_path):
    """An overlay below a file system with handles, and one with handles below that."""
    (tmp_path / "lower" / "disk").mkdir(parents=True)
    (tmp_path / "lower" / "file").write_bytes(b"in the overlay")
    export = tmp_path / "export"
    (export / "above" / "overlay").mkdir(parents=True)

    async def first(service, root):
        assert not root.mount.by_place
        above, _ = await service.lookup(ROOT, root, b"above")
        middle, _ = await service.lookup(ROOT, above, b"overlay")
        assert middle.mount.by_place
        assert (await service.lookup(ROOT, middle, b".."))[0] is above
        disk, _ = await service.lookup(ROOT, middle, b"disk")
        assert not disk.mount.by_place
        assert (await service.lookup(ROOT, disk, b".."))[0] is middle
        page = await service.readdir(ROOT, above, 0, limit=10, plus=True)
        assert middle.handle in [entry.handle for entry in page.entries]
        made = await write_file(service, disk, b"made", b"in memory")
        file, _ = await service.lookup(ROOT, middle, b"file")
        return [(file.handle, b"in the overlay"), (made.handle, b"in memory")]

    async def second(service, root):
        for handle, data in handles:
            assert (await read_file(service, await service.resolve(handle)))[0] == data

    with (
        overlay(tmp_path, export / "above" / "overlay"),
        mounted(str(export / "above" / "overlay" / "disk"), "-t", "tmpfs", "none"),
    ):
        handles = run(export, tmp_path, first, cross_mounts=True)
        run(export, tmp_path, second, cross_mounts=True)


def test_a_long_way_of_long_names_leads_to_its_file(tmp_path):
    """It is more paths than one chain of system calls takes."""
    handles = []

    async def first(service, root):
        node = root
        for _ in range(300):
            node, _, _ = await service.mkdir(ROOT, node, b"d" * 250, SetAttributes(mode=0o755))
        handles.append((await write_file(service, node, b"below", b"far down")).handle)

    async def second(service, root):
        assert (await read_file(service, await service.resolve(handles[0])))[0] == b"far down"
        assert (await service.resolve(handles[0])).mount.by_place

    for name in ("lower", "export"):
        (tmp_path / name).mkdir()
    with overlay(tmp_path, tmp_path / "export"):
        run(tmp_path / "export", tmp_path, first)
        run(tmp_path / "export", tmp_path, second)


def test_what_the_kernel_makes_up_is_not_exported(tmp_path):
    async def main():
        exports = [Export(id=n, path=path, pseudo=path) for n, path in enumerate(("/proc", "/sys", str(tmp_path)), 1)]
        service = FileService(ExportTable(exports), str(tmp_path))
        await service.start()
        try:
            assert {id_: "made up by the kernel" in one.why for id_, one in service.absent.items()} == {
                1: True,
                2: True,
            }
            assert [export.id for export in service.exports.exports] == [3]
        finally:
            await service.close()

    asyncio.run(main())
