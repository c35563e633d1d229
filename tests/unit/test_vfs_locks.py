"""Locks towards local processes."""

import errno
import fcntl
import os
import struct
import subprocess
import sys

import pytest

from nfsd.vfs import locks
from nfsd.vfs.types import LocalLock, SetAttributes
from tests.unit.vfs_support import ROOT, run, write_file


def refused(code):
    return pytest.raises(OSError, match=os.strerror(code))


def local_lock(path, kind, start, length):
    """What another process is told that asks for this lock: True when it gets it."""
    script = (
        "import fcntl, os, struct, sys\n"
        "kind, start, length = map(int, sys.argv[2:])\n"
        "lock = struct.pack('hhqqi', kind, 0, start, length, 0)\n"
        "try: fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), fcntl.F_SETLK, lock)\n"
        "except OSError: sys.exit(1)\n"
    )
    arguments = [str(path), str(kind), str(start), str(length)]
    return subprocess.run([sys.executable, "-S", "-c", script, *arguments], check=False).returncode == 0


@pytest.fixture
def place(tmp_path):
    place = tmp_path / "export"
    place.mkdir()
    return place


def test_nfs_locks_exclude_local_processes(place, tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f", b"x" * 100)
        path = place / "f"
        await service.set_local_lock(node, 10, 10, exclusive=True)
        await service.set_local_lock(node, 50, 0, exclusive=False)
        assert not local_lock(path, fcntl.F_RDLCK, 15, 1)
        assert local_lock(path, fcntl.F_WRLCK, 20, 30)
        assert local_lock(path, fcntl.F_RDLCK, 1 << 40, 1)
        assert not local_lock(path, fcntl.F_WRLCK, 1 << 40, 1)
        await service.set_local_lock(node, 10, 10, exclusive=False)
        assert local_lock(path, fcntl.F_RDLCK, 15, 1)
        # Nothing else the server does with the file lets the lock go, as closing a descriptor does with POSIX locks.
        opened = await service.open(ROOT, node, read=True, write=True)
        opened.release()
        service.open_files.forget_all(node.inode)
        await service.status(root)
        assert not local_lock(path, fcntl.F_WRLCK, 15, 1)
        await service.clear_local_lock(node, 0, 15)
        assert local_lock(path, fcntl.F_WRLCK, 0, 15)
        assert not local_lock(path, fcntl.F_WRLCK, 15, 1)
        await service.clear_local_lock(node, 0, 0)
        assert local_lock(path, fcntl.F_WRLCK, 0, 0)
        assert not service.locks.locked
        assert node.inode.locks is None

    run(place, tmp_path, scenario)


def test_local_locks_exclude_nfs(place, tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f", b"x" * 100)
        with open(place / "f", "r+b") as file:
            fcntl.fcntl(file, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 10, 5, 0))  # F_OFD_SETLK
            with refused(errno.EAGAIN):
                await service.set_local_lock(node, 0, 0, exclusive=False)
            found = await service.test_local_lock(node, 0, 50, exclusive=False)
            assert found == LocalLock(True, 10, 5, -1)
            assert await service.test_local_lock(node, 15, 50, exclusive=True) is None
            await service.set_local_lock(node, 0, 10, exclusive=True)
            # Our own do not stand in the way: among NFS owners the state tables decide.
            assert await service.test_local_lock(node, 0, 10, exclusive=True) is None
        await service.set_local_lock(node, 0, 0, exclusive=True)

    run(place, tmp_path, scenario)


def test_a_lock_held_while_the_file_is_forgotten(place, tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f")
        handle = node.handle
        await service.set_local_lock(node, 0, 5, exclusive=True)
        del node
        for _ in range(5):
            service.sweep()
        assert not local_lock(place / "f", fcntl.F_RDLCK, 0, 1)
        node = await service.resolve(handle)
        await service.clear_local_lock(node, 0, 5)
        assert local_lock(place / "f", fcntl.F_RDLCK, 0, 1)

    run(place, tmp_path, scenario)


def test_ranges_and_files_that_cannot_be_locked(place, tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f")
        for start, length in ((1 << 63, 1), ((1 << 63) - 1, 2), (0, (1 << 63) + 1), (-1, 1)):
            with refused(errno.EINVAL):
                await service.set_local_lock(node, start, length, exclusive=True)
        await service.set_local_lock(node, (1 << 63) - 1, 1, exclusive=True)
        with refused(errno.EISDIR):
            await service.set_local_lock(root, 0, 1, exclusive=True)
        link, _, _ = await service.symlink(ROOT, root, b"l", b"f", SetAttributes())
        with refused(errno.EINVAL):
            await service.test_local_lock(link, 0, 1, exclusive=True)

    run(place, tmp_path, scenario)


# -- many ranges ----------------------------------------------------------------------------------------------------
@pytest.fixture
def few(monkeypatch):
    """Ten ranges are many, three are few."""
    monkeypatch.setattr(locks, "MANY", 10)
    monkeypatch.setattr(locks, "FEW", 3)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("exclusive", [True, False])
def test_many_ranges_hold_the_whole_file_until_few_are_left(place, tmp_path, exclusive):
    async def scenario(service, root):
        node = await write_file(service, root, b"f")
        path = place / "f"
        for index in range(11):
            assert local_lock(path, fcntl.F_WRLCK, 5, 1), "only what is held is held"
            await service.set_local_lock(node, index * 10, 5, exclusive=exclusive)
        assert not local_lock(path, fcntl.F_WRLCK, 5, 1)
        assert local_lock(path, fcntl.F_RDLCK, 5, 1) is not exclusive
        # Changes go on as if nothing had been.
        await service.set_local_lock(node, 1000, 0, exclusive=exclusive)
        await service.clear_local_lock(node, 0, 90)
        assert not local_lock(path, fcntl.F_WRLCK, 5, 1)
        await service.clear_local_lock(node, 90, 5)
        assert local_lock(path, fcntl.F_WRLCK, 0, 100)
        assert local_lock(path, fcntl.F_WRLCK, 105, 895)
        for start in (100, 104, 1000, 1 << 40):
            assert not local_lock(path, fcntl.F_WRLCK, start, 1)
            assert local_lock(path, fcntl.F_RDLCK, start, 1) is not exclusive
        await service.clear_local_lock(node, 0, 0)
        assert local_lock(path, fcntl.F_WRLCK, 0, 0)
        assert node.inode.locks is None

    run(place, tmp_path, scenario)


@pytest.mark.usefixtures("few")
def test_many_shared_ranges_and_an_exclusive_one(place, tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f")
        path = place / "f"
        for index in range(11):
            await service.set_local_lock(node, index * 10, 5, exclusive=False)
        await service.set_local_lock(node, 200, 5, exclusive=True)
        assert not local_lock(path, fcntl.F_RDLCK, 200, 1)
        assert local_lock(path, fcntl.F_RDLCK, 0, 200)
        await service.set_local_lock(node, 0, 5, exclusive=True)
        for index in range(30, 45):
            await service.set_local_lock(node, index * 10, 5, exclusive=False)
        assert not local_lock(path, fcntl.F_RDLCK, 7, 1), "held as a whole, and some of it exclusively"
        await service.clear_local_lock(node, 5, 195)
        await service.clear_local_lock(node, 205, 2000)
        assert [*node.inode.locks.ranges] == [(0, 5, True), (200, 205, True)]
        assert local_lock(path, fcntl.F_WRLCK, 5, 195)
        assert not local_lock(path, fcntl.F_RDLCK, 4, 1)

    run(place, tmp_path, scenario)


@pytest.mark.usefixtures("few")
def test_many_ranges_next_to_a_local_lock_stay_apart(place, tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f")
        path = place / "f"
        with open(path, "r+b") as file:
            fcntl.fcntl(file, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 7, 1, 0))  # F_OFD_SETLK
            for index in range(15):
                await service.set_local_lock(node, index * 10, 5, exclusive=True)
            assert local_lock(path, fcntl.F_WRLCK, 5, 1)
            assert not local_lock(path, fcntl.F_WRLCK, 140, 1)
            with refused(errno.EAGAIN):
                await service.set_local_lock(node, 0, 0, exclusive=True)
        for index in range(15, 25):
            await service.set_local_lock(node, index * 10, 5, exclusive=True)
        assert not local_lock(path, fcntl.F_WRLCK, 5, 1), "tried again later"

    run(place, tmp_path, scenario)
