"""File systems mounted inside an export, full disks. Needs the privilege to mount."""

import asyncio
import contextlib
import errno
import os
import subprocess

import pytest

from nfsd.exports import Export, ExportTable
from nfsd.vfs.service import FileService
from nfsd.vfs.types import CrossingRefused, SetAttributes
from tests.support.native_files import FILE_SYNC, NativeFiles
from tests.unit.vfs_support import ALICE, ROOT, read_file, run, write_file


def refused(code):
    return pytest.raises(OSError, match=os.strerror(code))


@contextlib.contextmanager
def mounted(path, *arguments):
    subprocess.run(["mount", *arguments, path], check=True)
    try:
        yield path
    finally:
        # Lazily: a loop device lets go of its file some time after it was told to.
        subprocess.run(["umount", "--lazy", path], check=True)


def command(*arguments):
    return subprocess.run(arguments, check=False, capture_output=True).returncode == 0


@contextlib.contextmanager
def btrfs(tmp_path):
    """A file system of that kind, mounted; where there is none, the test is skipped."""
    image, mount = str(tmp_path / "image"), tmp_path / "mount"
    mount.mkdir()
    with open(image, "wb") as file:
        file.truncate(128 << 20)
    if not command("mkfs.btrfs", "-q", image) or not command("mount", "-o", "loop", image, str(mount)):
        pytest.skip("no btrfs here")
    try:
        yield mount
    finally:
        assert asyncio.run(unmounted(mount))


async def unmounted(path):
    """Unmount; descriptors of it may still be on their way to being closed."""
    for _ in range(100):
        if command("umount", str(path)):
            return True
        await asyncio.sleep(0.01)
    command("umount", "-l", str(path))
    return False


@pytest.fixture
def nested(tmp_path):
    """An export with a file system mounted two levels down, and a bind mount of a directory outside."""
    export = tmp_path / "export"
    (export / "a" / "inner").mkdir(parents=True)
    (export / "bound").mkdir()
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere" / "deep" / "file").write_text("bound")
    with (
        mounted(str(export / "a" / "inner"), "-t", "tmpfs", "-o", "mode=777,size=4m", "none"),
        mounted(str(export / "bound"), "--bind", str(tmp_path / "elsewhere" / "deep")),
    ):
        (export / "a" / "inner" / "f").write_text("inside")
        yield export


def test_crossing_into_a_mounted_file_system(nested, tmp_path):
    covered = {}
    for entry in os.scandir(nested / "a"):
        covered[entry.name] = entry.inode()

    async def first(service, root):
        above, above_attributes = await service.lookup(ROOT, root, b"a")
        inner, attributes = await service.lookup(ROOT, above, b"inner")
        assert attributes.fsid != above_attributes.fsid
        assert attributes.mounted_on_fileid == covered["inner"] != attributes.fileid
        assert (await service.lookup(ROOT, inner, b".."))[0] is above
        node, _ = await service.lookup(ROOT, inner, b"f")
        assert (await read_file(service, node))[0] == b"inside"
        page = await service.readdir(ROOT, above, 0, limit=10, plus=True)
        entry = next(entry for entry in page.entries if entry.name == b"inner")
        assert (entry.fileid, entry.handle) == (covered["inner"], inner.handle)
        with refused(errno.EXDEV):
            await service.rename(ROOT, inner, b"f", above, b"f")
        with refused(errno.EXDEV):
            await service.link(ROOT, node, above, b"f")
        with refused(errno.EBUSY):
            await service.remove(ROOT, above, b"inner", directory_wanted=True)
        return node.handle, attributes.fsid

    async def second(service, root):
        node = await service.resolve(handle)  # nobody has looked the mount point up in this life
        assert (await read_file(service, node))[0] == b"inside"
        assert (await service.attributes(node)).fsid == fsid

    handle, fsid = run(nested, tmp_path, first, cross_mounts=True)
    run(nested, tmp_path, second, cross_mounts=True)


def test_the_policy_not_to_cross(nested, tmp_path):
    async def crossing(service, root):
        above, _ = await service.lookup(ROOT, root, b"a")
        inner, _ = await service.lookup(ROOT, above, b"inner")
        return inner.handle

    async def staying(service, root):
        above, _ = await service.lookup(ROOT, root, b"a")
        with pytest.raises(CrossingRefused):
            await service.lookup(ROOT, above, b"inner")
        with pytest.raises(CrossingRefused):
            await service.lookup(ROOT, root, b"bound")
        with refused(errno.ESTALE):
            await service.resolve(handle)
        page = await service.readdir(ROOT, above, 0, limit=10, plus=True)
        assert [entry.handle for entry in page.entries if entry.name == b"inner"] == [None]

    handle = run(nested, tmp_path, crossing, cross_mounts=True)
    run(nested, tmp_path, staying)


def test_a_bind_mount_does_not_lead_to_where_it_comes_from(nested, tmp_path):
    async def first(service, root):
        bound, attributes = await service.lookup(ROOT, root, b"bound")
        assert attributes.fsid != (await service.attributes(root)).fsid
        assert (await service.lookup(ROOT, bound, b".."))[0] is root
        node, _ = await service.lookup(ROOT, bound, b"file")
        return bound.handle, node.handle

    async def second(service, root):
        bound = await service.resolve(handles[0])
        assert (await service.lookup(ROOT, bound, b".."))[0] is root
        assert (await read_file(service, await service.resolve(handles[1])))[0] == b"bound"

    handles = run(nested, tmp_path, first, cross_mounts=True)
    run(nested, tmp_path, second, cross_mounts=True)


def test_an_unused_mount_can_be_unmounted(tmp_path):
    inner = tmp_path / "export" / "m"
    inner.mkdir(parents=True)

    async def scenario(service, root):
        assert command("mount", "-t", "tmpfs", "none", str(inner))
        node, _ = await service.lookup(ROOT, root, b"m")
        handle = node.handle
        del node
        for _ in range(4):
            service.sweep()
        assert await unmounted(inner)
        with refused(errno.ESTALE):
            await service.resolve(handle)

    run(tmp_path / "export", tmp_path, scenario, cross_mounts=True)


def test_a_full_disk_is_said_to_be_full(tmp_path):
    image, mount_point = tmp_path / "image", tmp_path / "m"
    mount_point.mkdir()
    with open(image, "wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "10", "-N", "64", str(image)], check=True)

    async def scenario(service, root):
        node = await write_file(service, root, b"f", b"", ALICE)
        files, chunk = NativeFiles(service), bytes(1 << 20)
        offset = 0
        with refused(errno.ENOSPC):
            while True:
                written = await files.write(ALICE, node, offset, chunk, FILE_SYNC)
                offset += written.count
                assert written.file_wcc.after.size == offset
        # Root's reserve is not for callers: the server writes as they are, not as itself.
        status = await service.status(root)
        assert status.free_bytes > (1 << 20)
        assert status.available_bytes < status.free_bytes
        with refused(errno.ENOSPC):
            for number in range(100):
                await write_file(service, root, b"n%d" % number, b"", ALICE)

    with mounted(str(mount_point), "-o", "loop", str(image)):
        os.chmod(mount_point, 0o777)
        run(mount_point, tmp_path, scenario)


def test_a_read_only_file_system(tmp_path):
    place = tmp_path / "export"
    place.mkdir()
    with mounted(str(place), "-t", "tmpfs", "none"):
        (place / "f").write_text("x")
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)

        async def scenario(service, root):
            node, _ = await service.lookup(ROOT, root, b"f")
            with refused(errno.EROFS):
                await service.create(ROOT, root, b"g", SetAttributes())
            with refused(errno.EROFS):
                await service.open(ROOT, node, read=False, write=True)
            assert await service.access(ROOT, node) == 0x01
            with refused(errno.EBADF):
                await service.set_local_lock(node, 0, 1, exclusive=True)
            await service.set_local_lock(node, 0, 1, exclusive=False)

        run(place, tmp_path, scenario)


def test_a_stalled_export_starves_nobody(tmp_path):
    """A frozen file system lets every change wait: as a disk does that no longer answers."""
    image, frozen, healthy = tmp_path / "image", tmp_path / "frozen", tmp_path / "healthy"
    frozen.mkdir()
    healthy.mkdir()
    with open(image, "wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)

    async def main():
        exports = (
            Export(id=1, path=str(frozen), pseudo="/frozen", workers=2, squash="none"),
            Export(id=2, path=str(healthy), pseudo="/healthy", workers=2, squash="none", asynchronous=True),
        )
        service = FileService(ExportTable(exports), str(tmp_path))
        await service.start()
        stuck_root, root = [await service.root(export) for export in exports]
        known = await write_file(service, stuck_root, b"known", b"data")
        files = NativeFiles(service)
        await files.commit(ROOT, known)
        reader = await service.open(ROOT, known, read=True, write=False)
        opened = await service.open(ROOT, known, read=False, write=True)
        assert command("fsfreeze", "-f", str(frozen))
        try:
            stuck = [
                asyncio.ensure_future(service.create(ROOT, stuck_root, b"%d" % number, SetAttributes()))
                for number in range(10)
            ]
            stuck.append(asyncio.ensure_future(files.write(ROOT, known, 0, b"more", FILE_SYNC)))

            async def others():
                for number in range(20):
                    await write_file(service, root, b"%d" % number, b"data")
                # What needs no disk is answered even here.
                await service.attributes(stuck_root)
                return await files.read(ROOT, known, 0, 10)

            assert await asyncio.wait_for(others(), 30) == (b"data", True)
            assert not any(task.done() for task in stuck)
        finally:
            assert command("fsfreeze", "-u", str(frozen))
            await asyncio.wait_for(asyncio.gather(*stuck), 30)
            opened.release()
            reader.release()
            await service.close()

    with mounted(str(frozen), "-o", "loop", str(image)):
        asyncio.run(main())
