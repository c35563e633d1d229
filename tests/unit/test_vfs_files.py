"""Files through the file service: names, data, attributes, permissions, on a disk file system and in memory."""

import asyncio
import contextlib
import errno
import os
import stat
import struct

import pytest

from nfsd.vfs.types import Credential, FileType, SetAttributes, SetTo, Time
from tests.support.native_files import FILE_SYNC, UNSTABLE, NativeFiles
from tests.unit.vfs_support import ALICE, BOB, ROOT, directory_on, read_file, run, write_file


@pytest.fixture(params=["disk", "memory"])
def place(request, tmp_path):
    with directory_on(request.param, tmp_path) as path:
        yield path


def refused(code):
    return pytest.raises(OSError, match=os.strerror(code))


def test_what_is_written_is_read_by_a_fresh_service(place, tmp_path):
    async def put(service, root):
        node = await write_file(service, root, b"f", b"hello")
        committed = await NativeFiles(service).commit(ROOT, node)
        assert committed.file_wcc.after.size == 5
        return node.handle

    async def get(service, root):
        node = await service.resolve(handle)
        assert node.handle == handle
        looked_up, attributes = await service.lookup(ROOT, root, b"f")
        assert looked_up is node
        assert attributes.size == 5
        assert attributes.type is FileType.REG
        return await read_file(service, node)

    handle = run(place, tmp_path, put)
    os.rename(f"{place}/f", f"{place}/g")
    os.link(f"{place}/g", f"{place}/f")
    os.unlink(f"{place}/g")
    assert len(handle) <= 64
    assert run(place, tmp_path, get) == (b"hello", True)


def test_reads_tell_the_end_of_file(place, tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f", b"0123456789")
        assert await read_file(service, node, offset=0, count=10) == (b"0123456789", True)
        assert await read_file(service, node, offset=0, count=4) == (b"0123", False)
        assert await read_file(service, node, offset=8, count=4) == (b"89", True)
        assert await read_file(service, node, offset=50, count=4) == (b"", True)
        assert await read_file(service, node, offset=(1 << 64) - 1, count=4) == (b"", True)

    run(place, tmp_path, scenario)


def test_an_uncached_file_is_read_by_a_worker(tmp_path):
    data = os.urandom(3 << 20)
    with directory_on("disk", tmp_path) as place:
        with open(f"{place}/big", "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

        async def scenario(service, root):
            node, _ = await service.lookup(ROOT, root, b"big")
            before = service.executor.statistics()["completed"]
            got = await read_file(service, node, count=4 << 20)
            assert service.executor.statistics()["completed"] > before
            return got

        assert run(place, tmp_path, scenario) == (data, True)


def test_sparse_and_huge_files(place, tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f")
        far = (15 << 40) + 5
        files = NativeFiles(service)
        written = await files.write(ROOT, node, far, b"end", FILE_SYNC)
        assert (written.count, written.committed) == (3, FILE_SYNC)
        assert written.file_wcc.before.size == 0
        assert written.file_wcc.after.size == far + 3
        assert written.file_wcc.after.used < 1 << 20
        assert await read_file(service, node, offset=far - 4, count=16) == (b"\0\0\0\0end", True)
        with refused(errno.EFBIG):
            await files.write(ROOT, node, (1 << 63) - 2, b"past", UNSTABLE)
        limit = (await service.limits(node)).max_file_size
        with refused(errno.EFBIG):
            await files.write(ROOT, node, limit, b"x", UNSTABLE)

    run(place, tmp_path, scenario)


def test_the_kernel_refuses_what_the_mode_refuses(place, tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f", b"secret", ALICE, 0o600)
        assert (await service.attributes(node)).uid == ALICE.uid
        with refused(errno.EACCES):
            await service.open(BOB, node, read=True, write=False)
        with refused(errno.EPERM):
            await service.set_attributes(BOB, node, SetAttributes(mode=0o777))
        with refused(errno.EPERM):
            await service.set_attributes(ALICE, node, SetAttributes(uid=BOB.uid))
        directory, _, _ = await service.mkdir(ALICE, root, b"d", SetAttributes(mode=0o700))
        with refused(errno.EACCES):
            await service.lookup(BOB, directory, b"f")
        with refused(errno.EACCES):
            await service.readdir(BOB, directory, 0, limit=10, plus=False)
        with refused(errno.EACCES):
            await service.create(BOB, directory, b"f", SetAttributes())
        assert (await read_file(service, node, ALICE))[0] == b"secret"

    run(place, tmp_path, scenario)


def test_the_fortieth_group_counts(place, tmp_path):
    member = Credential(1001, 1001, tuple(range(5000, 5040)))

    async def scenario(service, root):
        node = await write_file(service, root, b"f", b"data", ROOT, 0o640)
        await service.set_attributes(ROOT, node, SetAttributes(gid=5039))
        assert (await read_file(service, node, member))[0] == b"data"
        with refused(errno.EACCES):
            await service.open(ALICE, node, read=True, write=False)

    run(place, tmp_path, scenario)


def test_a_cached_open_ends_with_the_permission(place, tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f", b"data", ALICE, 0o644)
        first = await service.open(BOB, node, read=True, write=False)
        again = await service.open(BOB, node, read=True, write=False)
        assert again is first
        await NativeFiles(service).write(ALICE, node, 0, b"more", UNSTABLE)
        assert await service.open(BOB, node, read=True, write=False) is first  # our own write changes no permission
        os.chmod(f"{place}/f", 0o600)
        with refused(errno.EACCES):
            await service.open(BOB, node, read=True, write=False)
        os.chmod(f"{place}/f", 0o644)
        await service.open(BOB, node, read=True, write=False)
        await service.set_attributes(ALICE, node, SetAttributes(mode=0o600))
        with refused(errno.EACCES):
            await service.open(BOB, node, read=True, write=False)
        assert os.pread(first.fd, 5, 0) == b"more"  # but who has it open keeps it

    run(place, tmp_path, scenario)


def test_the_owner_writes_and_reads_despite_the_mode(place, tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f", b"", ALICE, 0o444)
        service.open_files.forget_all(node.inode)
        assert (await NativeFiles(service).write(ALICE, node, 0, b"tar", UNSTABLE)).count == 3
        await service.set_attributes(ALICE, node, SetAttributes(size=1))
        with refused(errno.EACCES):
            await service.open(ALICE, node, read=False, write=True, owner_override=False)
        with refused(errno.EACCES):
            await service.open(BOB, node, read=False, write=True)
        await service.set_attributes(ALICE, node, SetAttributes(mode=0))
        assert (await read_file(service, node, ALICE))[0] == b"t"

    run(place, tmp_path, scenario)


def test_execute_permission_suffices_to_read_but_not_to_write(place, tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f", b"#!", ROOT, 0o711)
        assert (await read_file(service, node, BOB))[0] == b"#!"
        with refused(errno.EACCES):
            await service.open(BOB, node, read=True, write=True)

    run(place, tmp_path, scenario)


def test_access_says_what_the_kernel_would(place, tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f", b"", ALICE, 0o754)
        directory, _, _ = await service.mkdir(ALICE, root, b"d", SetAttributes(mode=0o751))
        group = Credential(1003, 1003, (1001,))
        found = [
            (await service.access(who, node), await service.access(who, directory)) for who in (ALICE, group, BOB, ROOT)
        ]
        assert found == [(0x2D, 0x1F), (0x21, 0x03), (0x01, 0x02), (0x2D, 0x1F)]
        os.chmod(f"{place}/f", 0o000)
        assert await service.access(ALICE, node) == 0

    run(place, tmp_path, scenario)


def test_a_read_only_export_changes_nothing(place, tmp_path):
    with open(f"{place}/f", "w") as file:
        file.write("x")

    async def scenario(service, root):
        node, _ = await service.lookup(ROOT, root, b"f")
        attributes = SetAttributes(mode=0o600)
        for operation in (
            lambda: service.open(ROOT, node, read=False, write=True),
            lambda: service.set_attributes(ROOT, node, attributes),
            lambda: service.create(ROOT, root, b"n", attributes),
            lambda: service.mkdir(ROOT, root, b"n", attributes),
            lambda: service.symlink(ROOT, root, b"n", b"t", attributes),
            lambda: service.mknod(ROOT, root, b"n", FileType.FIFO, (0, 0), attributes),
            lambda: service.remove(ROOT, root, b"f", directory_wanted=False),
            lambda: service.rename(ROOT, root, b"f", root, b"g"),
            lambda: service.link(ROOT, node, root, b"g"),
        ):
            with refused(errno.EROFS):
                await operation()
        assert await service.access(ROOT, node) == 0x01
        assert (await read_file(service, node))[0] == b"x"

    run(place, tmp_path, scenario, read_only=True)
    assert os.listdir(place) == ["f"]


def test_creation_modes_of_rfc_1813(place, tmp_path):
    async def scenario(service, root):
        mode = SetAttributes(mode=0o640, size=0)
        node, attributes, change, new = await service.create(ALICE, root, b"f", mode)
        assert new
        assert attributes.mode == 0o640
        assert change.after.change > change.before.change
        await NativeFiles(service).write(ALICE, node, 0, b"data", UNSTABLE)
        same, attributes, _, new = await service.create(ALICE, root, b"f", SetAttributes(mode=0o777))
        assert same is node
        assert not new
        assert (attributes.size, attributes.mode) == (4, 0o640)
        with refused(errno.EACCES):
            await service.create(BOB, root, b"f", SetAttributes(size=0))
        _, attributes, _, _ = await service.create(ALICE, root, b"f", SetAttributes(size=0))
        assert attributes.size == 0
        with refused(errno.EEXIST):
            await service.create(ALICE, root, b"f", mode, exclusive=True)
        await service.mkdir(ALICE, root, b"d", SetAttributes())
        with refused(errno.EEXIST):
            await service.create(ALICE, root, b"d", mode)

    run(place, tmp_path, scenario)


def test_an_exclusive_creation_may_be_repeated_with_its_verifier_only(place, tmp_path):
    verifier = b"\xff\x01\x02\x03\x84\x05\x06\x07"

    async def first(service, root):
        _, _, _, new = await service.create(ALICE, root, b"f", SetAttributes(), exclusive=True, verifier=verifier)
        assert new

    async def second(service, root):
        node, _, _, new = await service.create(ALICE, root, b"f", SetAttributes(), exclusive=True, verifier=verifier)
        assert not new
        with refused(errno.EEXIST):
            await service.create(ALICE, root, b"f", SetAttributes(), exclusive=True, verifier=b"otherone")
        await service.set_attributes(
            ALICE, node, SetAttributes(mode=0o644, atime=SetTo.SERVER_TIME, mtime=SetTo.SERVER_TIME)
        )
        with refused(errno.EEXIST):
            await service.create(ALICE, root, b"f", SetAttributes(), exclusive=True, verifier=verifier)

    run(place, tmp_path, first)
    run(place, tmp_path, second)


def test_setting_attributes(place, tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f", b"0123456789", ALICE, 0o640)
        wanted = SetAttributes(mode=0o4755, size=4, atime=Time(5, 6), mtime=Time(-7, 8))
        change = await service.set_attributes(ALICE, node, wanted)
        after = change.after
        assert (after.mode, after.size, after.atime, after.mtime) == (0o4755, 4, Time(5, 6), Time(-7, 8))
        assert change.before.size == 10
        assert change.after.change > change.before.change
        with refused(errno.EAGAIN):
            await service.set_attributes(ALICE, node, SetAttributes(mode=0), guard_ctime=change.before.ctime)
        await service.set_attributes(ALICE, node, SetAttributes(mode=0o4755), guard_ctime=change.after.ctime)
        change = await service.set_attributes(ROOT, node, SetAttributes(uid=BOB.uid, gid=BOB.gid))
        assert (change.after.uid, change.after.gid, change.after.mode) == (
            BOB.uid,
            BOB.gid,
            0o755,
        )  # as the kernel does
        change = await service.set_attributes(ROOT, node, SetAttributes(uid=ALICE.uid, mode=0o4711))
        assert change.after.mode == 0o4711
        with refused(errno.EINVAL):
            await service.set_attributes(ROOT, node, SetAttributes(mtime=Time(0, 1_000_000_000)))
        directory, _, _ = await service.mkdir(ROOT, root, b"d", SetAttributes(mode=0o700))
        with refused(errno.EISDIR):
            await service.set_attributes(ROOT, directory, SetAttributes(size=0))
        link, _, _ = await service.symlink(ROOT, root, b"l", b"f", SetAttributes())
        await service.set_attributes(ROOT, link, SetAttributes(uid=5, mtime=Time(1, 0)))
        assert os.lstat(f"{place}/l").st_uid == 5
        assert os.stat(f"{place}/f").st_uid == ALICE.uid

    run(place, tmp_path, scenario)


def test_a_writer_who_is_not_the_owner_may_set_one_time_to_now(place, tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f", b"0123", ALICE, 0o666)
        await service.set_attributes(ALICE, node, SetAttributes(mtime=Time(1, 0), atime=Time(2, 0)))
        change = await service.set_attributes(BOB, node, SetAttributes(size=2, mtime=SetTo.SERVER_TIME))
        assert change.after.size == 2
        assert change.after.mtime.seconds > 1_000_000
        assert change.after.atime == Time(2, 0)
        with refused(errno.EPERM):
            await service.set_attributes(BOB, node, SetAttributes(mtime=Time(1, 0)))
        await service.set_attributes(ALICE, node, SetAttributes(mode=0o644))
        with refused(errno.EPERM):
            await service.set_attributes(BOB, node, SetAttributes(mtime=SetTo.SERVER_TIME))

    run(place, tmp_path, scenario)


def test_kinds_of_files(place, tmp_path):
    async def scenario(service, root):
        link, attributes, _ = await service.symlink(ALICE, root, b"l", b"../../etc/passwd", SetAttributes(mode=0o777))
        assert attributes.type is FileType.LNK
        assert await service.readlink(BOB, link) == b"../../etc/passwd"
        fifo, attributes, _ = await service.mknod(ALICE, root, b"p", FileType.FIFO, (0, 0), SetAttributes(mode=0o620))
        assert (attributes.type, attributes.mode) == (FileType.FIFO, 0o620)
        _, attributes, _ = await service.mknod(ROOT, root, b"b", FileType.BLK, (300, 70000), SetAttributes(mode=0o600))
        assert attributes.rdev == (300, 70000)
        assert stat.S_ISBLK(os.stat(f"{place}/b").st_mode)
        with refused(errno.EPERM):
            await service.mknod(ALICE, root, b"c", FileType.CHR, (1, 3), SetAttributes(mode=0o600))
        for type_ in (FileType.REG, FileType.DIR, 99):
            with refused(errno.EINVAL):
                await service.mknod(ROOT, root, b"c", type_, (1, 3), SetAttributes(mode=0o600))
        with refused(errno.EINVAL):
            await service.readlink(ROOT, fifo)
        with refused(errno.EINVAL):
            await service.open(ROOT, fifo, read=True, write=False)
        with refused(errno.ELOOP):
            await service.open(ROOT, link, read=True, write=False)
        with refused(errno.EISDIR):
            await service.open(ROOT, root, read=True, write=False)
        with refused(errno.ENOTDIR):
            await service.lookup(ROOT, fifo, b"x")
        with refused(errno.ENOTDIR):
            await service.lookup(ROOT, link, b"x")

    run(place, tmp_path, scenario)


def test_set_group_id_directories(place, tmp_path):
    async def scenario(service, root):
        shared, attributes, _ = await service.mkdir(ALICE, root, b"shared", SetAttributes(mode=0o2775))
        assert attributes.mode == 0o2775
        _, attributes, _ = await service.mkdir(ROOT, root, b"given", SetAttributes(mode=0o3770, uid=5, gid=6))
        assert (attributes.mode, attributes.uid, attributes.gid) == (0o3770, 5, 6)
        _, attributes, _ = await service.mkdir(ALICE, shared, b"inherits", SetAttributes(mode=0o755))
        assert attributes.mode == 0o2755
        _, attributes, _, _ = await service.create(ALICE, shared, b"f", SetAttributes(mode=0o4755))
        assert attributes.mode == 0o4755
        # Owners are set by root alone; what others ask for on creation is left out.
        _, attributes, _, _ = await service.create(ALICE, root, b"g", SetAttributes(mode=0o644, uid=5, gid=6))
        assert (attributes.uid, attributes.gid) == (ALICE.uid, ALICE.gid)

    run(place, tmp_path, scenario)


def test_default_acls_rule_over_modes_and_no_umask_does(place, tmp_path):
    previous = os.umask(0o077)
    try:

        async def scenario(service, root):
            _, attributes, _, _ = await service.create(ALICE, root, b"plain", SetAttributes(mode=0o666))
            assert attributes.mode == 0o666
            directory, _, _ = await service.mkdir(ALICE, root, b"d", SetAttributes(mode=0o777))
            set_default_acl(f"{place}/d")
            _, attributes, _, _ = await service.create(ALICE, directory, b"f", SetAttributes(mode=0o666))
            assert attributes.mode == 0o640

        run(place, tmp_path, scenario)
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(previous)


def set_default_acl(path):
    """u::rw-, g::r--, o::--- for what is created in the directory (acl(5) in its xattr form)."""
    entries = ((0x01, 6), (0x04, 4), (0x20, 0))
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, bits, 0xFFFFFFFF) for tag, bits in entries)
    os.setxattr(path, "system.posix_acl_default", value)


def test_removing_and_renaming(place, tmp_path):
    async def scenario(service, root):
        directory, _, _ = await service.mkdir(ALICE, root, b"d", SetAttributes(mode=0o755))
        await write_file(service, directory, b"f", b"1", ALICE)
        with refused(errno.ENOTEMPTY):
            await service.remove(ALICE, root, b"d", directory_wanted=True)
        with refused(errno.EISDIR):
            await service.remove(ALICE, root, b"d", directory_wanted=False)
        with refused(errno.ENOTDIR):
            await service.remove(ALICE, directory, b"f", directory_wanted=True)
        with refused(errno.ENOENT):
            await service.remove(ALICE, directory, b"g", directory_wanted=False)
        source, target = await service.rename(ALICE, directory, b"f", root, b"g")
        assert source.after.change > source.before.change
        assert target.after.change > target.before.change
        node, _ = await service.lookup(ALICE, root, b"g")
        other = await write_file(service, root, b"h", b"2", ALICE)
        await service.rename(ALICE, root, b"g", root, b"h")
        assert (await service.lookup(ALICE, root, b"h"))[0] is node
        for operation in (service.attributes(other), service.resolve(bytes(other.handle))):
            with refused(errno.ESTALE):
                result = await operation
                await service.attributes(result)  # a node somebody still holds resolves, but has no attributes
        with refused(errno.EISDIR):
            await service.rename(ALICE, root, b"h", root, b"d")
        attributes, change = await service.link(ALICE, node, directory, b"f2")
        assert attributes.nlink == 2
        assert change.after.change > change.before.change
        with refused(errno.EEXIST):
            await service.link(ALICE, node, root, b"h")
        await service.remove(ALICE, directory, b"f2", directory_wanted=None)
        change = await service.remove(ALICE, root, b"d", directory_wanted=None)
        assert change.after.change > change.before.change
        with refused(errno.ESTALE):
            await service.create(ALICE, directory, b"x", SetAttributes())
        with refused(errno.ESTALE):
            await service.lookup(ALICE, directory, b"x")
        with refused(errno.ESTALE):
            await service.attributes(directory)

    run(place, tmp_path, scenario)


def deleted_files_held(place):
    """Descriptors of this process that keep a removed file's space."""
    held = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            held.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in held if path.startswith(place) and path.endswith("(deleted)")]


def test_a_removed_file_stays_for_who_has_it_open_and_then_frees_its_space(place, tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f", b"kept" * 1024, ALICE)
        await NativeFiles(service).commit(ROOT, node)
        opened = await service.open(ALICE, node, read=True, write=False)
        await service.remove(ALICE, root, b"f", directory_wanted=False)
        assert (await service.attributes(node)).nlink == 0
        assert await service.resolve(node.handle) is node
        assert await NativeFiles(service).read(ALICE, node, 0, 4) == (b"kept", False)
        opened.release()
        assert deleted_files_held(place)
        with refused(errno.ESTALE):
            await service.attributes(node)
        handle = node.handle
        del node, opened
        for _ in range(100):
            if not deleted_files_held(place):
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("the removed file's space is still held")
        with refused(errno.ESTALE):
            await service.resolve(handle)

    run(place, tmp_path, scenario)


def test_names_are_octets(place, tmp_path):
    async def scenario(service, root):
        for name in (b"\xff\xfe\x80", b" ", b"a\nb", "ü".encode("latin1"), b"x" * 255):
            node = await write_file(service, root, name, name)
            assert (await service.lookup(ROOT, root, name))[0] is node
        for name in (b"", b"a/b", b"/", b"a\0b"):
            for operation in (
                lambda: service.lookup(ROOT, root, name),  # noqa: B023
                lambda: service.create(ROOT, root, name, SetAttributes()),  # noqa: B023
                lambda: service.remove(ROOT, root, name, directory_wanted=None),  # noqa: B023
                lambda: service.rename(ROOT, root, b" ", root, name),  # noqa: B023
            ):
                with refused(errno.EINVAL):
                    await operation()
        with refused(errno.ENAMETOOLONG):
            await service.lookup(ROOT, root, b"x" * 256)
        with refused(errno.ENAMETOOLONG):
            await service.create(ROOT, root, b"x" * 5000, SetAttributes())
        for name in (b".", b".."):
            with refused(errno.EEXIST):
                await service.mkdir(ROOT, root, name, SetAttributes())
            with refused(errno.EINVAL):
                await service.remove(ROOT, root, name, directory_wanted=True)
            with refused(errno.EINVAL):
                await service.rename(ROOT, root, b" ", root, name)

    run(place, tmp_path, scenario)


def test_space_and_limits_are_the_file_systems(place, tmp_path):
    async def scenario(service, root):
        status = await service.status(root)
        truth = os.statvfs(place)
        assert status.total_bytes == truth.f_blocks * truth.f_frsize
        assert status.available_bytes <= status.free_bytes <= status.total_bytes
        assert status.total_files == truth.f_files
        assert (await service.limits(root)).name_max == 255

    run(place, tmp_path, scenario)
