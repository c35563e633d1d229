"""CephFS under the file service: who may do what, snapshots, changes and locks of other clients, ACLs, handles."""

import asyncio
import errno
import fcntl
import gc
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nfsd.backends.interface import Made
from nfsd.exported import BackendChoice
from nfsd.exports import Export, ExportTable
from nfsd.vfs.attributes import raw_nlink
from nfsd.vfs.posix_acl import AclEntry, AclTag
from nfsd.vfs.service import FileService
from nfsd.vfs.syscalls import XATTR_CREATE, XATTR_REPLACE
from nfsd.vfs.types import BadHandle, Credential, FileType, SetAttributes, SetTo, Time
from tests.support.native_files import NativeFiles
from tests.unit.vfs_support import ALICE, BOB, ROOT

pytestmark = [pytest.mark.ceph, pytest.mark.timeout(900)]
IN_GROUP = Credential(1003, 1003, (1001,))


class Tried:
    """A file service over a place in the cluster."""

    def __init__(self, service, root):
        self.service, self.root = service, root
        self.store = root.mount.store
        self.files = NativeFiles(service)

    async def made(self, name, credential=ALICE, data=b"", directory=None, **attributes):
        node, _, _, _ = await self.service.create(credential, directory or self.root, name, SetAttributes(**attributes))
        if data:
            await self.files.write_all(credential, node, 0, data)
        return node

    async def content(self, node, credential=ROOT):
        return (await self.files.read_all(credential, node, 0, 1 << 20))[0]

    async def lookup(self, *names, credential=ROOT):
        node = self.root
        for name in names:
            node, _ = await self.service.lookup(credential, node, name)
        return node


def run(tmp_path, place, scenario, **options):
    """``scenario(tried)``, with a file service of its own."""
    options.setdefault("squash", "none")
    choice = BackendChoice("cephfs", "", place.options)
    exports = ExportTable((Export(7, "", "/x", backend=choice, **options),))

    async def main():
        service = FileService(exports, str(tmp_path))
        await service.start()
        try:
            assert not service.absent, [one.why for one in service.absent.values()]
            await scenario(Tried(service, await service.root(exports.exports[0])))
        finally:
            await service.close()

    asyncio.run(main())


async def refused(awaitable):
    with pytest.raises(OSError) as caught:  # noqa: PT011 (the errno is looked at)
        await awaitable
    return caught.value.errno


# -- who may do what -----------------------------------------------------------------------------------------------
def test_ceph_checks_files_as_their_callers(tmp_path, place):
    async def scenario(tried):
        service, node = tried.service, await tried.made(b"f", mode=0o640, data=b"alice's")
        (await service.open(IN_GROUP, node, read=True, write=False)).release()
        assert await refused(service.open(IN_GROUP, node, read=False, write=True)) == errno.EACCES
        assert await refused(service.open(BOB, node, read=True, write=False)) == errno.EACCES
        assert await refused(service.set_attributes(BOB, node, SetAttributes(mode=0o666))) == errno.EPERM
        assert await refused(service.set_attributes(ALICE, node, SetAttributes(uid=BOB.uid))) == errno.EPERM
        assert await refused(service.set_attributes(BOB, node, SetAttributes(size=0))) == errno.EACCES
        times = SetAttributes(mtime=Time(1, 0))
        assert await refused(service.set_attributes(BOB, node, times)) in (errno.EPERM, errno.EACCES)
        # The store itself is asked, so that no rule of the file service's own can be what has refused.
        assert await refused(tried.store.data.open(BOB, node, 1)) == errno.EACCES
        assert (await service.attributes(node)).uid == ALICE.uid
        await service.set_attributes(ALICE, node, SetAttributes(mode=0))
        (await service.open(ALICE, node, read=True, write=True)).release()  # RFC 1813 section 4.4
        strict = service.open(ALICE, node, read=True, write=False, owner_override=False)
        assert await refused(strict) == errno.EACCES

    run(tmp_path, place, scenario)


def test_ceph_checks_directories_as_their_callers(tmp_path, place):
    async def scenario(tried):
        service, names = tried.service, tried.store.names
        directory, _, _ = await service.mkdir(ALICE, tried.root, b"d", SetAttributes(mode=0o755))
        await tried.made(b"f", directory=directory)
        assert await refused(tried.made(b"g", BOB, directory=directory)) == errno.EACCES
        assert await refused(names.remove(BOB, directory, b"f", a_directory=False)) == errno.EACCES
        assert await refused(names.rename(BOB, directory, b"f", tried.root, b"f")) == errno.EACCES
        await service.set_attributes(ALICE, directory, SetAttributes(mode=0o644))
        assert await refused(service.lookup(BOB, directory, b"f")) == errno.EACCES
        page = await service.readdir(BOB, directory, 0, limit=10, plus=True)
        assert [(one.name, one.error) for one in page.entries[2:]] == [(b"f", errno.EACCES)]
        await service.set_attributes(ALICE, directory, SetAttributes(mode=0o711))
        assert await refused(service.readdir(BOB, directory, 0, limit=10, plus=True)) == errno.EACCES
        # The root is as /tmp: one does not remove what is somebody else's.
        await tried.made(b"mine", mode=0o666)
        sticky = service.remove(BOB, tried.root, b"mine", directory_wanted=False)
        assert await refused(sticky) in (errno.EPERM, errno.EACCES)

    run(tmp_path, place, scenario)


def test_acls_count(tmp_path, place):
    acl = (
        AclEntry(AclTag.USER_OBJ, 6), AclEntry(AclTag.USER, 4, BOB.uid), AclEntry(AclTag.GROUP_OBJ, 0),
        AclEntry(AclTag.MASK, 6), AclEntry(AclTag.OTHER, 0),
    )  # fmt: skip

    async def scenario(tried):
        service, node = tried.service, await tried.made(b"f", mode=0o600, data=b"1")
        await service.set_attributes(ALICE, node, SetAttributes(access_acl=acl))
        assert (await tried.store.acls.acls(node)).access == acl
        (await service.open(BOB, node, read=True, write=False)).release()
        assert await refused(service.open(BOB, node, read=False, write=True)) == errno.EACCES
        # The mode shows the mask where the group's permissions are otherwise: the group has none.
        assert (await service.attributes(node)).mode == 0o660
        assert await refused(service.open(IN_GROUP, node, read=True, write=False)) == errno.EACCES
        assert await tried.store.files.permissions(BOB, node, 6) == 4
        assert await tried.store.files.permissions(IN_GROUP, node, 6) == 0

    run(tmp_path, place, scenario)


def test_programs_lose_their_bits_when_others_write(tmp_path, place):
    async def scenario(tried):
        node = await tried.made(b"f", mode=0o644, data=b"1")
        for mode in (0o6777, 0o4444):  # the second needs the owner's right of RFC 1813 section 4.4
            await tried.service.set_attributes(ALICE, node, SetAttributes(mode=mode))
            await tried.files.write_all(ALICE, node, 0, b"2")
            assert (await tried.service.attributes(node)).mode == mode & 0o777

    run(tmp_path, place, scenario)


# -- handles -------------------------------------------------------------------------------------------------------
def test_handles_outlast_the_server_and_renames(tmp_path, place):
    handles = []

    async def before(tried):
        await tried.service.mkdir(ROOT, tried.root, b"d", SetAttributes(mode=0o755))
        node = await tried.made(b"f", data=b"kept")
        await tried.service.rename(ROOT, tried.root, b"f", await tried.lookup(b"d"), b"g")
        gone = await tried.made(b"gone")
        await tried.service.remove(ROOT, tried.root, b"gone", directory_wanted=False)
        handles.extend((node.handle, gone.handle))

    async def after(tried):
        node = await tried.service.resolve(handles[0])
        assert await tried.content(node) == b"kept"
        assert (await tried.lookup(b"d", b"g")).handle == handles[0]
        assert await refused(tried.service.resolve(handles[1])) == errno.ESTALE
        forged = bytearray(handles[0])
        forged[-17] ^= 1
        with pytest.raises(BadHandle):
            await tried.service.resolve(bytes(forged))

    run(tmp_path, place, before)
    run(tmp_path, place, after)


# -- data ----------------------------------------------------------------------------------------------------------
def test_a_file_may_be_closed_while_it_is_synchronised(place):
    """As a client of NFSv4 closes one while another one commits what both have written."""
    with place.client() as (client, root), ThreadPoolExecutor(1) as thread:
        *_, key, _ = client.make(None, root, b"f", 0o100666, None, (0, 0))
        one, two = client.open(None, key, 3), client.open(None, key, 3)
        client.write(one, 0, memoryview(b"kept"))
        place.cluster.pause("osd")
        try:
            done = thread.submit(client.sync, key, [one, two])
            time.sleep(0.5)
            assert not done.done()
            two.close()
        finally:
            place.cluster.resume("osd")
        done.result(60)
        one.close()
        client.sync(key, [one, two])
        again = client.open(None, key, 1)
        sink = bytearray(4)
        client.read(again, 0, memoryview(sink))
        assert sink == b"kept"
        again.close()


# -- snapshots -----------------------------------------------------------------------------------------------------
def test_snapshots_are_seen_and_stay_as_they_are(tmp_path, place):
    handles = []

    async def scenario(tried):
        service = tried.service
        await tried.made(b"f", mode=0o666, data=b"before")
        opened = await tried.lookup(b"f")
        await service.mkdir(ROOT, tried.root, b"d", SetAttributes(mode=0o777))
        await tried.made(b"g", directory=await tried.lookup(b"d"), data=b"deep")
        await tried.store.data.sync(opened)
        with place.client() as (client, root):
            snapshots, _ = client.lookup(None, root, b".snap")
            client.make(None, snapshots, b"monday", 0o40755, None, (0, 0))
        await tried.files.write_all(ALICE, opened, 0, b"after!")
        old = await tried.lookup(b".snap", b"monday", b"f")
        assert (await tried.content(old), await tried.content(opened)) == (b"before", b"after!")
        assert old.handle != opened.handle
        assert (await service.attributes(old)).fileid != (await service.attributes(opened)).fileid
        assert await tried.store.files.in_snapshot(old)
        assert not await tried.store.files.in_snapshot(opened)
        every = [b"", b".snap", b".snap/monday", b".snap/monday/d"]
        listed = []
        for path in every:
            directory = await tried.lookup(*filter(None, path.split(b"/")))
            page = await service.readdir(ROOT, directory, 0, limit=100, plus=True)
            listed.append([one.name for one in page.entries[2:]])
            assert len({one.fileid for one in page.entries[2:]}) == len(listed[-1])
        assert [sorted(names) for names in listed] == [[b"d", b"f"], [b"monday"], [b"d", b"f"], [b"g"]]
        await nothing_changes(tried, old)
        handles.append(old.handle)

    async def nothing_changes(tried, old):
        service, monday = tried.service, await tried.lookup(b".snap", b"monday")
        assert await refused(service.open(ROOT, old, read=False, write=True)) == errno.EROFS
        assert await refused(service.set_attributes(ROOT, old, SetAttributes(mode=0))) == errno.EROFS
        for directory in (monday, await tried.lookup(b".snap")):
            assert await refused(tried.made(b"new", ROOT, directory=directory)) == errno.EROFS
            made = service.mkdir(ROOT, directory, b"tuesday", SetAttributes(mode=0o755))
            assert await refused(made) == errno.EROFS
        assert await refused(service.remove(ROOT, monday, b"f", directory_wanted=False)) == errno.EROFS
        snapshots = await tried.lookup(b".snap")
        assert await refused(service.remove(ROOT, snapshots, b"monday", directory_wanted=True)) == errno.EROFS
        assert await refused(service.rename(ROOT, monday, b"f", tried.root, b"x")) == errno.EROFS
        assert await refused(service.mkdir(ROOT, tried.root, b".snap", SetAttributes(mode=0o755))) == errno.EEXIST
        assert not await tried.store.files.permissions(ROOT, old, 2)

    async def after(tried):
        assert await tried.content(await tried.service.resolve(handles[0])) == b"before"

    run(tmp_path, place, scenario)
    run(tmp_path, place, after)


# -- other clients of the cluster ----------------------------------------------------------------------------------
def test_changes_of_other_clients_show_in_the_change_attribute(tmp_path, place):
    async def scenario(tried):
        node = await tried.made(b"f", mode=0o666, data=b"one")
        await tried.store.data.sync(node)
        seen = [await tried.service.attributes(node)]
        with place.client() as (client, root):
            key, _ = await asyncio.to_thread(client.lookup, None, root, b"f")
            file = await asyncio.to_thread(client.open, None, key, 3)
            await asyncio.to_thread(client.write, file, 0, memoryview(b"two and more"))
            await asyncio.to_thread(client.sync, key, [file])
            seen.append(await tried.service.attributes(node))
            assert await tried.content(node) == b"two and more"
            # A clock that is behind: ctime does not tell.
            await asyncio.to_thread(client.set, None, key, 0o600, None, None, None, None, (1, 0, True))
            seen.append(await tried.service.attributes(node))
            await asyncio.to_thread(file.close)
            assert await refused(tried.service.open(BOB, node, read=True, write=False)) == errno.EACCES
            directory = await tried.service.attributes(tried.root)
            await asyncio.to_thread(client.remove, None, root, b"f", False)
        assert [one.change for one in seen] == sorted({one.change for one in seen})
        assert (seen[1].size, seen[2].mode) == (12, 0o600)
        assert (await tried.service.attributes(tried.root)).change > directory.change
        assert await refused(tried.service.attributes(node)) == errno.ESTALE

    run(tmp_path, place, scenario)


def test_locks_hold_towards_other_clients(tmp_path, place):
    async def scenario(tried):
        node = await tried.made(b"f", mode=0o666)
        locks, opened = tried.store.locks, await tried.service.open(ALICE, node, read=True, write=True)
        with place.client() as (client, root):
            key, _ = await asyncio.to_thread(client.lookup, None, root, b"f")
            file = await asyncio.to_thread(client.open, None, key, 3)

            async def other(kind, start, length):
                await asyncio.to_thread(client.lock, file, kind, start, length, 2)

            await locks.lock(opened, 10, 10, exclusive=False)
            assert await refused(other(fcntl.F_WRLCK, 15, 1)) == errno.EAGAIN
            await other(fcntl.F_RDLCK, 15, 1)
            await other(fcntl.F_WRLCK, 20, 5)
            assert await refused(locks.lock(opened, 24, 0, exclusive=False)) == errno.EAGAIN
            found = await locks.test_lock(opened, 20, 0, exclusive=True)
            assert (found.exclusive, found.start, found.length) == (True, 20, 5)
            assert await locks.test_lock(opened, 0, 10, exclusive=True) is None
            await locks.unlock(opened, 12, 8)
            await other(fcntl.F_WRLCK, 12, 4)
            assert await refused(other(fcntl.F_WRLCK, 11, 1)) == errno.EAGAIN
            opened.release()
            del opened
            tried.service.open_files.forget_all(node.inode)  # closed, so that its locks go
            gc.collect()  # what was refused above refers to it
            for _ in range(100):
                if await asyncio.to_thread(client.locked, file, fcntl.F_WRLCK, 10, 2, 2) is None:
                    break
                await asyncio.sleep(0.1)
            await other(fcntl.F_WRLCK, 10, 2)
            await asyncio.to_thread(file.close)

    run(tmp_path, place, scenario)


# -- what else files have ------------------------------------------------------------------------------------------
def test_extended_attributes(tmp_path, place):
    async def scenario(tried):
        xattrs, node = tried.store.xattrs, await tried.made(b"f", mode=0o644)
        assert isinstance(await xattrs.set_xattr(ALICE, node, b"a", b"\0one", XATTR_CREATE), Made)
        assert await refused(xattrs.set_xattr(ALICE, node, b"a", b"two", XATTR_CREATE)) == errno.EEXIST
        assert await refused(xattrs.set_xattr(ALICE, node, b"b", b"two", XATTR_REPLACE)) == errno.ENODATA
        assert await refused(xattrs.set_xattr(BOB, node, b"b", b"two", 0)) == errno.EACCES
        assert await refused(xattrs.set_xattr(ALICE, node, b"n" * 255, b"", 0)) == errno.ENAMETOOLONG
        await xattrs.set_xattr(ALICE, node, b"b", b"", 0)
        assert await xattrs.get_xattr(BOB, node, b"a") == b"\0one"
        assert sorted(await xattrs.list_xattrs(BOB, node)) == [b"a", b"b"]
        await xattrs.remove_xattr(ALICE, node, b"a")
        assert await refused(xattrs.remove_xattr(ALICE, node, b"a")) == errno.ENODATA
        assert await refused(xattrs.get_xattr(BOB, node, b"a")) == errno.ENODATA
        await tried.service.set_attributes(ALICE, node, SetAttributes(mode=0o600))
        assert await refused(xattrs.list_xattrs(BOB, node)) == errno.EACCES

    run(tmp_path, place, scenario)


def test_holes_are_made_and_space_is_not_reserved(tmp_path, place):
    async def scenario(tried):
        node = await tried.made(b"f", data=b"x" * 10_000)
        opened = await tried.service.open(ALICE, node, read=True, write=True)
        await tried.service.deallocate(opened, 100, 5000)
        assert await tried.content(node) == b"x" * 100 + bytes(5000) + b"x" * 4900
        assert await refused(tried.service.allocate(opened, 0, 1 << 20)) == errno.EOPNOTSUPP
        assert await tried.service.seek(opened, 0, hole=True) == (10_000, True)
        opened.release()

    run(tmp_path, place, scenario)


def test_special_files_and_removed_ones(tmp_path, place):
    async def scenario(tried):
        service = tried.service
        for kind, rdev in ((FileType.FIFO, (0, 0)), (FileType.CHR, (3, 260)), (FileType.SOCK, (0, 0))):
            name = kind.name.encode()
            node, _, _ = await service.mknod(ROOT, tried.root, name, kind, rdev, SetAttributes(mode=0o600))
            seen = await service.attributes(await tried.lookup(name))
            assert (node.type, seen.type, seen.rdev) == (kind, kind, rdev)
        node = await tried.made(b"f", data=b"still here")
        opened = await service.open(ALICE, node, read=True, write=True)
        await service.remove(ALICE, tried.root, b"f", directory_wanted=False)
        assert raw_nlink(await tried.store.files.look(node)) == 0
        sink = bytearray(20)
        assert (await tried.store.data.read(opened, 0, memoryview(sink)))[0] == 10
        opened.release()
        touched = SetAttributes(atime=SetTo.SERVER_TIME, mtime=Time(-5, 7))
        directory, _, _ = await service.mkdir(ALICE, tried.root, b"d", SetAttributes(mode=0o700))
        await service.set_attributes(ALICE, directory, touched)
        assert (await service.attributes(directory)).mtime in (Time(-5, 7), Time((1 << 32) - 5, 7))

    run(tmp_path, place, scenario)
