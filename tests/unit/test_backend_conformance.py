"""What nfsd.backends.interface promises, held against each store: a file system in memory and one on a disk."""

import asyncio
import errno
import fcntl
import os
import stat
import struct

import pytest

from nfsd.backends.interface import Features, Made
from nfsd.vfs.attributes import raw_ctime, raw_nlink, raw_size, raw_type
from nfsd.vfs.syscalls import XATTR_CREATE, XATTR_REPLACE
from nfsd.vfs.types import FileType, SetAttributes
from tests.unit.vfs_support import ALICE, BOB, ROOT, directory_on, serving, write_file

BLOCK = 1 << 16
READ, WRITE, EXECUTE = os.R_OK, os.W_OK, os.X_OK
FLOCK = struct.Struct("hhqqi4x")


class Store:
    """A store with a root directory, and files in it."""

    def __init__(self, service, root, place):
        self.service, self.root, self.place = service, root, place
        self.backend = service.backend

    async def file(self, name=b"f", data=b"", *, credential=ROOT, mode=0o644):
        return await write_file(self.service, self.root, name, data, credential, mode)

    async def opened(self, node, credential=ROOT):
        return await self.service.open(credential, node, read=True, write=True)

    async def features(self) -> Features:
        return await self.backend.file_systems.features(self.root.mount)

    def path(self, name):
        return os.path.join(self.place, name)


@pytest.fixture(params=["memory", "disk"])
def on_store(request, tmp_path):
    """Runs ``scenario(store)``."""

    def run(scenario):
        async def main(place):
            (tmp_path / "state").mkdir()
            async with serving(place, tmp_path / "state") as (service, root):
                await scenario(Store(service, root, place))

        with directory_on(request.param, tmp_path) as place:
            asyncio.run(main(place))

    return run


async def refused(awaitable):
    """The errno of what must fail."""
    try:
        await awaitable
    except OSError as error:
        return error.errno
    pytest.fail("it was not refused")


def check_made(made):
    """The looks are of one file, before and after a change."""
    assert isinstance(made, Made)
    assert len(made.before) == len(made.after) == 256
    assert raw_ctime(made.before) <= raw_ctime(made.after)


def content(store, name):
    with open(store.path(name), "rb") as file:
        return file.read()


# -- files ---------------------------------------------------------------------------------------------------------
def test_a_look_is_of_now(on_store):
    async def scenario(store):
        node = await store.file(data=b"four")
        assert (raw_type(look := await store.backend.files.look(node)), raw_size(look)) == (FileType.REG, 4)
        os.truncate(store.path("f"), 9)
        os.link(store.path("f"), store.path("g"))
        assert raw_size(look := await store.backend.files.look(node)) == 9
        assert raw_nlink(look) == 2
        os.unlink(store.path("f"))
        os.unlink(store.path("g"))
        assert raw_nlink(await store.backend.files.look(node)) == 0

    on_store(scenario)


def test_permissions_are_the_callers(on_store):
    async def scenario(store):
        files = store.backend.files
        node = await store.file(credential=ALICE, mode=0o750)
        every = READ | WRITE | EXECUTE
        assert await files.permissions(ALICE, node, every) == every
        assert await files.permissions(BOB, node, every) == 0
        assert await files.permissions(ALICE, node, WRITE) == WRITE
        assert await files.permissions(None, node, READ | WRITE) == READ | WRITE
        os.chmod(store.path("f"), 0o404)
        assert await files.permissions(BOB, node, every) == READ
        assert await files.permissions(ALICE, node, every) == READ

    on_store(scenario)


def test_links_are_read_as_they_were_written(on_store):
    async def scenario(store):
        text = b"a/" * 1000 + b"\xff\n"
        link, _, _ = await store.service.symlink(ROOT, store.root, b"l", text, SetAttributes())
        assert await store.backend.files.readlink(BOB, link) == text

    on_store(scenario)


def test_a_snapshot_is_known_by_the_way_to_it(on_store):
    async def scenario(store):
        files = store.backend.files
        assert not await files.in_snapshot(await store.file())
        directory, _, _ = await store.service.mkdir(ROOT, store.root, b".snapshots", SetAttributes(mode=0o755))
        node, _, _, _ = await store.service.create(ROOT, directory, b"f", SetAttributes(mode=0o644))
        assert await files.in_snapshot(node)
        assert files.in_snapshot_at_once(node) in (True, None)

    on_store(scenario)


# -- file systems --------------------------------------------------------------------------------------------------
def test_space_and_limits_are_the_file_systems(on_store):
    async def scenario(store):
        status = await store.backend.file_systems.status(store.root)
        real = os.statvfs(store.place)
        assert status.total_bytes == real.f_blocks * real.f_frsize
        assert 0 <= status.available_bytes <= status.free_bytes <= status.total_bytes
        look = await store.backend.files.look(store.root)
        limits = await store.backend.file_systems.limits(store.root, look)
        assert limits.name_max == real.f_namemax
        await store.file(b"n" * limits.name_max)
        assert await refused(store.file(b"n" * (limits.name_max + 1))) == errno.ENAMETOOLONG

    on_store(scenario)


def test_what_is_declared_is_there(on_store):
    async def scenario(store):
        features = await store.features()
        node = await store.file()
        # The file system itself is asked, by another way.
        for declared, name, value in (
            (features.xattrs, "user.a", b"1"),
            (features.acls, "system.posix_acl_access", None),
        ):
            try:
                if value is not None:
                    os.setxattr(store.path("f"), name, value)
                os.getxattr(store.path("f"), name)
                found = True
            except OSError as error:
                found = error.errno == errno.ENODATA
            assert found == declared
        if features.acls:
            acls = await store.backend.acls.acls(node)
            assert acls.default is None
            assert {entry.permissions for entry in acls.access} >= {6, 4}
        found = await store.backend.quota.quotas(store.root.mount, 0, 0, features.quotas)
        assert len(found) == len(features.quotas)

    on_store(scenario)


# -- extended attributes -------------------------------------------------------------------------------------------
def test_extended_attributes(on_store):
    async def scenario(store):
        if not (await store.features()).xattrs:
            pytest.skip("this file system has none")
        xattrs, node = store.backend.xattrs, await store.file(credential=ALICE)
        check_made(await xattrs.set_xattr(ALICE, node, b"a", b"\0one", XATTR_CREATE))
        assert await refused(xattrs.set_xattr(ALICE, node, b"a", b"two", XATTR_CREATE)) == errno.EEXIST
        assert await refused(xattrs.set_xattr(ALICE, node, b"b", b"two", XATTR_REPLACE)) == errno.ENODATA
        assert await refused(xattrs.set_xattr(BOB, node, b"b", b"two", 0)) == errno.EACCES
        assert await refused(xattrs.set_xattr(ALICE, node, b"n" * 255, b"", 0)) == errno.ENAMETOOLONG
        check_made(await xattrs.set_xattr(ALICE, node, b"b", b"", 0))
        assert await xattrs.get_xattr(BOB, node, b"a") == b"\0one"
        assert os.getxattr(store.path("f"), "user.a") == b"\0one"
        assert sorted(await xattrs.list_xattrs(BOB, node)) == [b"a", b"b"]
        check_made(await xattrs.remove_xattr(ALICE, node, b"a"))
        assert await refused(xattrs.remove_xattr(ALICE, node, b"a")) == errno.ENODATA
        assert await refused(xattrs.get_xattr(BOB, node, b"a")) == errno.ENODATA
        os.chmod(store.path("f"), 0o600)
        assert await refused(xattrs.list_xattrs(BOB, node)) == errno.EACCES
        assert await xattrs.list_xattrs(ALICE, node) == [b"b"]

    on_store(scenario)


def test_acls_and_labels(on_store):
    async def scenario(store):
        node = await store.file(mode=0o640)
        acls = await store.backend.acls.acls(node)
        assert acls.default is None
        assert len(acls.access) == 3  # the mode alone is an ACL, too
        assert isinstance(await store.backend.acls.label(node), bytes)

    on_store(scenario)


# -- space ---------------------------------------------------------------------------------------------------------
def test_space_is_reserved_and_freed(on_store):
    async def scenario(store):
        space, node = store.backend.space, await store.file(data=b"x" * 2 * BLOCK)
        opened = await store.opened(node)
        made = await space.allocate(opened, BLOCK, 2 * BLOCK)
        check_made(made)
        assert (raw_size(made.before), raw_size(made.after)) == (2 * BLOCK, 3 * BLOCK)
        made = await space.deallocate(opened, 0, BLOCK)
        check_made(made)
        assert raw_size(made.after) == 3 * BLOCK
        assert content(store, "f") == bytes(BLOCK) + b"x" * BLOCK + bytes(BLOCK)
        for change in (space.allocate, space.deallocate):
            assert await refused(change(opened, 0, 0)) == errno.EINVAL
        opened.release()

    on_store(scenario)


def test_data_and_holes_are_found(on_store):
    async def scenario(store):
        space, node = store.backend.space, await store.file()
        os.truncate(store.path("f"), 3 * BLOCK)
        with open(store.path("f"), "r+b") as file:
            file.seek(BLOCK)
            file.write(b"x" * BLOCK)
            file.flush()
            os.fsync(file.fileno())
        opened = await store.opened(node)
        assert await space.extents(opened, 0) == (3 * BLOCK, BLOCK, 0)
        assert await space.extents(opened, BLOCK) == (3 * BLOCK, BLOCK, 2 * BLOCK)
        assert await space.extents(opened, 2 * BLOCK) == (3 * BLOCK, None, 2 * BLOCK)
        assert await space.extents(opened, 3 * BLOCK) == (3 * BLOCK, None, None)
        sink = bytearray(4)
        assert await space.read(opened, 2 * BLOCK - 2, memoryview(sink)) == 4
        assert sink == b"xx\0\0"
        assert await space.read(opened, 3 * BLOCK - 1, memoryview(sink)) == 1
        assert await space.read(opened, 3 * BLOCK, memoryview(sink)) == 0
        await space.advise(opened, 0, 0, needed=True)
        await space.advise(opened, 0, BLOCK, needed=False)
        opened.release()

    on_store(scenario)


# -- copies --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", ["copy", "copy_through"])
def test_ranges_are_copied(on_store, way):
    async def scenario(store):
        copy = getattr(store.backend.copies, way)
        source = await store.opened(await store.file(b"s", bytes(range(256))))
        target = await store.opened(await store.file(b"t", b"t" * 10))
        done = 0
        while done < 100:
            made = await copy(source, 50 + done, target, 5 + done, 100 - done)
            check_made(made)
            assert 0 < made.octets <= 100 - done
            done += made.octets
        assert content(store, "t") == b"t" * 5 + bytes(range(50, 150))
        assert (await copy(source, 256, target, 0, 10)).octets == 0  # from the end of the source
        for opened in (source, target):
            opened.release()

    on_store(scenario)


def test_a_clone_is_made_or_refused_whole(on_store):
    async def scenario(store):
        source = await store.opened(await store.file(b"s", b"s" * BLOCK))
        target = await store.opened(await store.file(b"t"))
        limits = await store.backend.file_systems.limits(store.root, await store.backend.files.look(store.root))
        if limits.clone_block:
            check_made(await store.backend.copies.clone(source, 0, target, 0, BLOCK))
            assert content(store, "t") == b"s" * BLOCK
        else:
            assert await refused(store.backend.copies.clone(source, 0, target, 0, BLOCK)) == errno.EOPNOTSUPP
            assert content(store, "t") == b""
        for opened in (source, target):
            opened.release()

    on_store(scenario)


# -- locks ---------------------------------------------------------------------------------------------------------
def locked_by_somebody(descriptor, start, length):
    """Take an exclusive lock apart from the server's; its errno, or 0."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
    except OSError as error:
        return error.errno
    return 0


def test_locks_hold_towards_others(on_store):
    async def scenario(store):
        locks = store.backend.locks
        opened = await store.opened(await store.file())
        descriptor = os.open(store.path("f"), os.O_RDWR)
        assert stat.S_ISREG(os.fstat(descriptor).st_mode)
        try:
            await locks.lock(opened, 10, 10, exclusive=False)
            assert locked_by_somebody(descriptor, 15, 1) == errno.EAGAIN
            assert locked_by_somebody(descriptor, 20, 5) == 0
            refusals = (errno.EAGAIN, errno.EACCES)
            assert await refused(locks.lock(opened, 24, 0, exclusive=False)) in refusals
            found = await locks.test_lock(opened, 0, 0, exclusive=True)
            assert (found.exclusive, found.start, found.length) == (True, 20, 5)
            assert await locks.test_lock(opened, 0, 20, exclusive=True) is None
            await locks.unlock(opened, 12, 4)
            assert locked_by_somebody(descriptor, 12, 4) == 0
            assert locked_by_somebody(descriptor, 11, 1) == errno.EAGAIN
        finally:
            os.close(descriptor)
        await locks.lock(opened, 0, 0, exclusive=True)
        opened.release()

    on_store(scenario)
