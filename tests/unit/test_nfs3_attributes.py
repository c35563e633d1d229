"""NFSv3's GETATTR, SETATTR and ACCESS, and what all procedures share (handles, clients, squashing, statuses)."""

import asyncio
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nfsd.exports import Export
from nfsd.protocol.nfs3 import (
    NFS_PROGRAM,
    ACCESS3args,
    GETATTR3args,
    SETATTR3args,
    fattr3,
    ftype3,
    nfs_fh3,
    nfsstat3,
    nfstime3,
    sattr3,
    set_atime,
    set_mtime,
    time_how,
)
from nfsd.v3.convert import fsid3, time3
from nfsd.v3.errors import DATA_EXCEPTIONS, Nfs3Error, status_of
from nfsd.vfs.types import BadHandle, CrossingRefused, FileType, Time
from rpcrdma.memory import OutOfMemory
from rpcrdma.rpc.messages import NULL_AUTH
from tests.nfs3_client import Nfs3Client, auth_sys
from tests.nfs3_client import attributes as no_attributes
from tests.support.nfs3_server import Server
from tests.unit.test_nfs3_data import add, read, serve
from tests.unit.vfs_support import directory_on

USER = auth_sys(1000, 1000, (1000, 1001))


@pytest.fixture(params=["memory", "disk"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with directory_on(request.param, tmp_path) as path:
        yield Path(path)


async def getattr3(server: Server, handle: nfs_fh3) -> fattr3:
    return await server.client.getattr(handle)


async def access(server: Server, handle: nfs_fh3, wanted: int = 0x3F) -> Any:
    return await server.client.nfs("ACCESS", ACCESS3args(handle, wanted))


async def setattr3(server: Server, handle: nfs_fh3, wanted: sattr3, guard: nfstime3 | None = None) -> Any:
    return await server.client.nfs("SETATTR", SETATTR3args(handle, wanted, guard))


def test_all_22_procedures_are_there_under_the_names_of_the_rfc(tmp_path: Path) -> None:
    names = (
        "NULL GETATTR SETATTR LOOKUP ACCESS READLINK READ WRITE CREATE MKDIR SYMLINK MKNOD REMOVE RMDIR RENAME LINK "
        "READDIR READDIRPLUS FSSTAT FSINFO PATHCONF COMMIT"
    )

    async def test(server: Server) -> None:
        rows = [row for row in server.dispatcher.rows.values() if row.number[:2] == (NFS_PROGRAM, 3)]
        assert [row.number[2] for row in rows] == list(range(22))
        assert [row.procedure.name for row in rows] == names.split(" ")

    serve(tmp_path, test)


def test_what_must_not_be_repeated_is_under_the_replay_cache(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        replayed = {row.procedure.name for row in server.dispatcher.rows.values() if row.procedure.replay}
        assert replayed >= {
            "SETATTR", "WRITE", "CREATE", "MKDIR", "SYMLINK", "MKNOD", "REMOVE", "RMDIR", "RENAME", "LINK",
        }  # fmt: skip
        assert not replayed & {
            "NULL", "GETATTR", "LOOKUP", "ACCESS", "READLINK", "READ", "READDIR", "READDIRPLUS", "FSSTAT", "FSINFO",
            "PATHCONF", "COMMIT",
        }  # fmt: skip

    serve(tmp_path, test)


def test_null_takes_and_gives_nothing(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        client = server.client
        assert len(await client.exchange(client.encode(NFS_PROGRAM, 3, 0, b""))) == 24

    serve(tmp_path, test)


@pytest.mark.parametrize("kind", list(FileType), ids=lambda kind: kind.name)
def test_getattr_gives_every_attribute(kind: FileType, directory: Path) -> None:
    async def test(server: Server) -> None:
        path = directory / "file"
        if kind in (FileType.BLK, FileType.CHR, FileType.SOCK):
            os.mknod(
                path, {"BLK": stat.S_IFBLK, "CHR": stat.S_IFCHR, "SOCK": stat.S_IFSOCK}[kind.name], os.makedev(8, 1)
            )
        else:
            await add(server, b"0123456789", kind)
        if kind is not FileType.LNK:
            path.chmod(0o1777)
        os.chown(path, 7, 8, follow_symlinks=False)
        os.utime(path, ns=(1_000_000_002, 3_000_000_004), follow_symlinks=False)
        handle = await server.client.lookup(server.root, b"file")
        found, true = await getattr3(server, handle), os.lstat(path)
        assert found == fattr3(
            ftype3(int(kind)),
            stat.S_IMODE(true.st_mode),
            true.st_nlink,
            7,
            8,
            true.st_size,
            true.st_blocks * 512,
            found.rdev,
            fsid3(server.service.nodes.recent[handle.data].mount.fsid),
            true.st_ino,
            nfstime3(1, 2),
            nfstime3(3, 4),
            nfstime3(*divmod(true.st_ctime_ns, 1_000_000_000)),
        )
        device = (8, 1) if kind in (FileType.BLK, FileType.CHR) else (0, 0)
        assert (found.rdev.specdata1, found.rdev.specdata2) == device

    serve(directory, test)


@pytest.mark.parametrize(
    ("nanoseconds", "expected"),
    [(-999, (0, 0)), ((1 << 32) * 10**9 + 5, (0xFFFFFFFF, 999_999_999)), (0xFFFFFFFF * 10**9 + 5, (0xFFFFFFFF, 5))],
)
def test_times_outside_of_32_bits_are_told_as_the_nearest(nanoseconds: int, expected: tuple[int, int]) -> None:
    async def test(server: Server) -> None:
        handle = await add(server)
        os.utime(server.directory / "file", ns=(nanoseconds, nanoseconds))
        found = await getattr3(server, handle)
        assert [(time.seconds, time.nseconds) for time in (found.atime, found.mtime)] == [expected, expected]

    with directory_on("memory", "") as path:
        serve(Path(path), test)


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (Time(-1, 999), (0, 0)),
        (Time(1 << 32, 5), (0xFFFFFFFF, 999_999_999)),
        (Time(0xFFFFFFFF, 5), (0xFFFFFFFF, 5)),
        (Time(0, 1), (0, 1)),
    ],
)
def test_times_outside_of_32_bits_become_the_nearest_that_fits(time: Time, expected: tuple[int, int]) -> None:
    found = time3(time)
    assert (found.seconds, found.nseconds) == expected


def test_file_system_ids_stay_apart_in_64_bits() -> None:
    pairs = [(a, b) for a in range(40) for b in range(40)]
    assert len({fsid3(pair) for pair in pairs}) == len(pairs)
    assert all(0 <= fsid3((a << 60, b << 60)) < 1 << 64 for a, b in pairs)


def test_a_foreign_handle_is_bad_and_a_dead_one_stale(directory: Path) -> None:
    async def test(server: Server) -> None:
        dead = await add(server)
        os.unlink(directory / "file")
        for octets, status in (
            (b"other server", nfsstat3.NFS3ERR_BADHANDLE),
            (b"", nfsstat3.NFS3ERR_BADHANDLE),
            (dead.data, nfsstat3.NFS3ERR_STALE),
        ):
            assert (await server.client.nfs("GETATTR", GETATTR3args(nfs_fh3(octets)))).status == status

    serve(directory, test)


def test_a_client_that_the_export_is_not_for_is_refused_without_attributes(directory: Path, tmp_path: Path) -> None:
    # One export is for each of both clients, or calls would not get as far as to any procedure.
    other = tmp_path / "other"
    other.mkdir()

    async def test(server: Server) -> None:
        value = await access(server, server.root)
        assert value.status == nfsstat3.NFS3ERR_ACCES
        assert value.resfail.obj_attributes is None
        theirs = await asyncio.open_connection(*server.address, local_addr=("127.0.0.2", 0))
        async with Nfs3Client(*theirs, auth_sys(0, 0)) as client:
            value = await client.nfs("ACCESS", ACCESS3args(server.root, 1))
        assert (value.status, value.resok.obj_attributes is None) == (nfsstat3.NFS3_OK, False)

    more = (Export(2, str(other), "/other"),)
    serve(directory, test, more=more, clients=("127.0.0.2",))


@pytest.mark.parametrize(
    ("squash", "caller", "expected"),
    [
        ("root", auth_sys(0, 0), (99, 98, False)),
        ("root", USER, (1000, 1000, True)),
        ("none", auth_sys(0, 0), (0, 0, True)),
        ("all", USER, (99, 98, False)),
        ("none", NULL_AUTH, (99, 98, False)),
    ],
)
def test_callers_act_as_the_export_says(
    squash: str, caller: Any, expected: tuple[int, int, bool], tmp_path: Path
) -> None:
    """What they make is theirs, and they may use what is their groups'."""
    tmp_path.chmod(0o777)

    async def test(server: Server) -> None:
        if not server.client.acts_as_callers:
            pytest.skip("the server cannot act as others")
        shared = await add(server, b"for a group")
        os.chown(tmp_path / "file", 5, 1001)
        (tmp_path / "file").chmod(0o040)
        server.client.credential = caller
        await server.client.create(server.root, b"made")
        made = os.stat(tmp_path / "made")
        assert (made.st_uid, made.st_gid) == expected[:2]
        assert bool((await access(server, shared, 1)).resok.access) == expected[2]

    serve(tmp_path, test, squash=squash, anonuid=99, anongid=98)


def test_setattr_sets_what_is_named_and_leaves_the_rest(directory: Path) -> None:
    async def test(server: Server) -> None:
        os.chown(directory, 5, 6)
        wanted = no_attributes(
            mode=0o102750, gid=9, mtime=set_mtime(time_how.SET_TO_CLIENT_TIME, nfstime3(0xFFFFFFFF, 999_999_999))
        )
        before = await getattr3(server, server.root)
        value = await setattr3(server, server.root, wanted)
        assert value.status == nfsstat3.NFS3_OK
        now = os.stat(directory)
        assert (stat.S_IMODE(now.st_mode), now.st_uid, now.st_gid) == (0o2750, 5, 9)
        assert now.st_mtime_ns == 0xFFFFFFFF * 10**9 + 999_999_999
        wcc = value.resok.obj_wcc
        assert wcc.before.ctime == before.ctime
        assert wcc.after == await getattr3(server, server.root)
        os.chmod(directory, 0o777)

    serve(directory, test)


def test_setattr_tells_server_time_from_client_time(directory: Path) -> None:
    async def test(server: Server) -> None:
        handle = await add(server)
        os.utime(directory / "file", (1, 2))
        wanted = no_attributes(
            atime=set_atime(time_how.SET_TO_SERVER_TIME), mtime=set_mtime(time_how.SET_TO_CLIENT_TIME, nfstime3(7, 8))
        )
        value = await setattr3(server, handle, wanted)
        assert value.status == nfsstat3.NFS3_OK
        after = value.resok.obj_wcc.after
        assert after.mtime == nfstime3(7, 8)
        # The clock that stamps files is the one that has stamped ctime: at once, or a tick before.
        assert abs(after.atime.seconds - after.ctime.seconds) <= 1

    serve(directory, test)


def test_setattr_guard_compares_the_change_time(directory: Path) -> None:
    async def test(server: Server) -> None:
        handle = await add(server)
        ctime = (await getattr3(server, handle)).ctime
        for wrong in (
            nfstime3(ctime.seconds, (ctime.nseconds + 1) % 10**9),
            nfstime3(ctime.seconds + 1, ctime.nseconds),
            nfstime3(ctime.seconds, 0xFFFFFFFF),
        ):
            value = await setattr3(server, handle, no_attributes(mode=0), wrong)
            assert value.status == nfsstat3.NFS3ERR_NOT_SYNC
            assert (value.resfail.obj_wcc.before, value.resfail.obj_wcc.after.mode) == (None, 0o777)
        assert (await setattr3(server, handle, no_attributes(mode=0), ctime)).status == nfsstat3.NFS3_OK
        assert stat.S_IMODE(os.stat(directory / "file").st_mode) == 0

    serve(directory, test)


def test_setattr_refuses_what_no_file_can_have(directory: Path) -> None:
    impossible = set_mtime(time_how.SET_TO_CLIENT_TIME, nfstime3(1, 1_000_000_000))

    async def test(server: Server) -> None:
        handle = await add(server)
        before = await getattr3(server, handle)
        for wanted, status in (
            (no_attributes(size=1 << 63), nfsstat3.NFS3ERR_FBIG),
            (no_attributes(mtime=impossible), nfsstat3.NFS3ERR_INVAL),
            # No file is given to nobody.
            (no_attributes(uid=0xFFFFFFFF), nfsstat3.NFS3ERR_INVAL),
            (no_attributes(gid=0xFFFFFFFF), nfsstat3.NFS3ERR_INVAL),
            (no_attributes(uid=7, gid=0xFFFFFFFF), nfsstat3.NFS3ERR_INVAL),
        ):
            value = await setattr3(server, handle, wanted)
            assert value.status == status
            assert value.resfail.obj_wcc.after == before
        assert await getattr3(server, handle) == before

    serve(directory, test)


def test_access_answers_what_was_asked_and_no_more(directory: Path) -> None:
    async def test(server: Server) -> None:
        for wanted, granted in ((0x3F, 0x1F), (0x21, 0x01), (0, 0)):
            resok = (await access(server, server.root, wanted)).resok
            assert resok.access == granted
            assert resok.obj_attributes == await getattr3(server, server.root)

    serve(directory, test)


def test_a_read_only_export_refuses_change_and_gives_attributes(directory: Path) -> None:
    async def test(server: Server) -> None:
        assert (await access(server, server.root)).resok.access == 0x03
        value = await setattr3(server, server.root, no_attributes(mode=0))
        assert value.status == nfsstat3.NFS3ERR_ROFS
        assert value.resfail.obj_wcc.after.mode == 0o777
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o777

    serve(directory, test, read_only=True)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(errno.EDQUOT, ""), nfsstat3.NFS3ERR_DQUOT),
        (OSError(errno.ENOSPC, ""), nfsstat3.NFS3ERR_NOSPC),
        (OSError(errno.EROFS, ""), nfsstat3.NFS3ERR_ROFS),
        (OSError(errno.EMLINK, ""), nfsstat3.NFS3ERR_MLINK),
        (OSError(errno.ENOTEMPTY, ""), nfsstat3.NFS3ERR_NOTEMPTY),
        (OSError(errno.ENAMETOOLONG, ""), nfsstat3.NFS3ERR_NAMETOOLONG),
        (OSError(errno.EXDEV, ""), nfsstat3.NFS3ERR_XDEV),
        (OSError(errno.EFBIG, ""), nfsstat3.NFS3ERR_FBIG),
        (OSError(errno.ESTALE, ""), nfsstat3.NFS3ERR_STALE),
        (OSError(errno.ENOMEM, ""), nfsstat3.NFS3ERR_JUKEBOX),
        (OSError(errno.EISDIR, ""), nfsstat3.NFS3ERR_ISDIR),
        (OSError(errno.ENOTSUP, ""), nfsstat3.NFS3ERR_NOTSUPP),
        (OSError(errno.ECHILD, ""), nfsstat3.NFS3ERR_SERVERFAULT),
        (OSError("without a number"), nfsstat3.NFS3ERR_SERVERFAULT),
        (BadHandle(), nfsstat3.NFS3ERR_BADHANDLE),
        (CrossingRefused(), nfsstat3.NFS3ERR_ACCES),
        (OutOfMemory(), nfsstat3.NFS3ERR_JUKEBOX),
        (Nfs3Error(nfsstat3.NFS3ERR_BADTYPE), nfsstat3.NFS3ERR_BADTYPE),
    ],
)
def test_errors_have_their_status(error: BaseException, status: nfsstat3) -> None:
    assert status_of(error) == status


def test_a_procedures_exceptions_go_before_the_table() -> None:
    assert status_of(OSError(errno.EISDIR, ""), DATA_EXCEPTIONS) == nfsstat3.NFS3ERR_INVAL
    assert status_of(OSError(errno.EIO, ""), DATA_EXCEPTIONS) == nfsstat3.NFS3ERR_IO


def test_every_errno_has_a_status_of_the_protocol() -> None:
    for number in errno.errorcode:
        assert status_of(OSError(number, os.strerror(number))) in nfsstat3


def test_attributes_that_cannot_be_had_leave_the_failure_what_it_is(tmp_path: Path) -> None:
    """As on a file system where each look is a worker's, and fails."""

    async def test(server: Server) -> None:
        server.service.nodes.recent[server.root.data].mount.caching = False  # of the nodes that are met from now on
        handle = await add(server, kind=FileType.DIR)
        look = server.service.look

        async def failing(_: Any) -> Any:
            raise OSError(errno.EIO, "")

        server.service.look = failing  # type: ignore[method-assign]
        for value, status, attributes in (
            (await read(server, handle, 0, 5), nfsstat3.NFS3ERR_INVAL, lambda failed: failed.file_attributes),
            (await access(server, handle, 1), nfsstat3.NFS3ERR_IO, lambda failed: failed.obj_attributes),
        ):
            assert value.status == status
            assert attributes(value.resfail) is None
        assert (await server.client.nfs("GETATTR", GETATTR3args(handle))).status == nfsstat3.NFS3ERR_IO
        server.service.look = look  # type: ignore[method-assign]
        assert (await access(server, handle, 1)).resok.obj_attributes is not None
        assert (await read(server, handle, 0, 5)).resfail.file_attributes is not None

    tmp_path.chmod(0o777)
    serve(tmp_path, test)
