"""NFSv3: GETATTR, SETATTR, ACCESS, and what all procedures share (handles, clients, squashing, statuses)."""

import errno
import os

import pytest

from nfsd.exports import Export
from nfsd.protocol.nfs3 import (
    ACCESS3args,
    GETATTR3args,
    SETATTR3args,
    ftype3,
    nfs_fh3,
    nfsstat3,
    nfstime3,
    set_atime,
    set_mtime,
    time_how,
)
from nfsd.v3.convert import fsid3, time3
from nfsd.v3.errors import DATA_EXCEPTIONS, Nfs3Error, status_of
from nfsd.vfs.types import BadHandle, CrossingRefused, FileType, SetTo, Time
from rpcrdma.memory import OutOfMemory
from rpcrdma.rpc.program import RpcCredential
from tests.unit.fakes.nfs3 import ROOT, USER, Rig, no_attributes


def test_all_22_procedures_are_there_under_the_names_of_the_rfc() -> None:
    names = (
        "NULL GETATTR SETATTR LOOKUP ACCESS READLINK READ WRITE CREATE MKDIR SYMLINK MKNOD REMOVE RMDIR RENAME LINK "
        "READDIR READDIRPLUS FSSTAT FSINFO PATHCONF COMMIT"
    )
    procedures = Rig().procedures
    assert [procedures[number].name for number in range(22)] == names.split(" ")
    assert len(procedures) == 22


def test_what_must_not_be_repeated_is_under_the_replay_cache() -> None:
    replayed = {procedure.name for procedure in Rig().procedures.values() if procedure.replay}
    assert replayed == {
        "SETATTR", "WRITE", "CREATE", "MKDIR", "SYMLINK", "MKNOD", "REMOVE", "RMDIR", "RENAME", "LINK",
    }  # fmt: skip


def test_null_takes_and_gives_nothing() -> None:
    assert Rig().call("NULL").wire == b""


def test_getattr_gives_every_attribute() -> None:
    rig = Rig()
    root = rig.service.roots[1]
    root.mode, root.uid, root.gid = 0o1777, 7, 8
    root.atime, root.mtime, root.ctime = Time(1, 2), Time(3, 4), Time(5, 6)
    value = rig.call("GETATTR", GETATTR3args(rig.root)).value
    assert value.status == nfsstat3.NFS3_OK
    found = value.resok.obj_attributes
    assert (found.type, found.mode, found.uid, found.gid, found.nlink) == (ftype3.NF3DIR, 0o1777, 7, 8, 2)
    assert (found.fileid, found.fsid) == (root.fileid, fsid3((1, 1)))
    assert [(t.seconds, t.nseconds) for t in (found.atime, found.mtime, found.ctime)] == [(1, 2), (3, 4), (5, 6)]


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


def test_only_devices_have_device_numbers() -> None:
    rig = Rig()
    root = rig.service.roots[1]
    root.rdev = (8, 1)
    assert rig.call("GETATTR", GETATTR3args(rig.root)).value.resok.obj_attributes.rdev.specdata1 == 0
    root.type = FileType.BLK
    rdev = rig.call("GETATTR", GETATTR3args(rig.root)).value.resok.obj_attributes.rdev
    assert (rdev.specdata1, rdev.specdata2) == (8, 1)


def test_a_foreign_handle_is_bad_and_a_dead_one_stale() -> None:
    rig = Rig()
    assert rig.call("GETATTR", GETATTR3args(nfs_fh3(b"other server"))).value.status == nfsstat3.NFS3ERR_BADHANDLE
    assert rig.call("GETATTR", GETATTR3args(nfs_fh3(b""))).value.status == nfsstat3.NFS3ERR_BADHANDLE
    assert rig.call("GETATTR", GETATTR3args(nfs_fh3(b"fake?"))).value.status == nfsstat3.NFS3ERR_STALE


def test_a_client_that_the_export_is_not_for_is_refused_without_attributes() -> None:
    rig = Rig(Export(1, "/srv/export", "/export", clients=("10.0.0.0/8",)))
    value = rig.call("ACCESS", ACCESS3args(rig.root, 1)).value
    assert value.status == nfsstat3.NFS3ERR_ACCES
    assert value.resfail.obj_attributes is None
    rig.transport.peer_address = "10.1.2.3"
    assert rig.call("ACCESS", ACCESS3args(rig.root, 1)).value.status == nfsstat3.NFS3_OK


@pytest.mark.parametrize(
    ("squash", "caller", "expected"),
    [
        ("root", ROOT, (99, 98, (98,))),
        ("root", USER, (1000, 1000, (1000, 1001))),
        ("none", ROOT, (0, 0, (0,))),
        ("all", USER, (99, 98, ())),
        ("none", RpcCredential(0), (99, 98, ())),
    ],
)
def test_callers_act_as_the_export_says(
    squash: str, caller: RpcCredential, expected: tuple[int, int, tuple[int, ...]]
) -> None:
    rig = Rig(Export(1, "/srv/export", "/export", squash=squash, anonuid=99, anongid=98))
    assert rig.call("ACCESS", ACCESS3args(rig.root, 1), caller).value.status == nfsstat3.NFS3_OK
    acted = rig.service.credentials[-1]
    assert (acted.uid, acted.gid, acted.gids) == expected


def test_setattr_sets_what_is_named_and_leaves_the_rest() -> None:
    rig = Rig()
    root = rig.service.roots[1]
    root.uid, root.gid = 5, 6
    wanted = no_attributes(
        mode=0o102750, gid=9, mtime=set_mtime(time_how.SET_TO_CLIENT_TIME, nfstime3(0xFFFFFFFF, 999_999_999))
    )
    before = root.ctime
    value = rig.call("SETATTR", SETATTR3args(rig.root, wanted, None)).value
    assert value.status == nfsstat3.NFS3_OK
    assert (root.mode, root.uid, root.gid, root.mtime) == (0o2750, 5, 9, Time(0xFFFFFFFF, 999_999_999))
    wcc = value.resok.obj_wcc
    assert wcc.before.ctime == time3(before)
    assert (wcc.after.mode, wcc.after.gid) == (0o2750, 9)


def test_setattr_tells_server_time_from_client_time() -> None:
    rig = Rig()
    seen = []

    async def spy(credential: object, node: object, changes: object, **_: object) -> None:
        seen.append(changes)
        raise OSError(errno.EPERM, "")

    rig.service.set_attributes = spy  # type: ignore[method-assign, assignment]
    wanted = no_attributes(
        atime=set_atime(time_how.SET_TO_SERVER_TIME), mtime=set_mtime(time_how.SET_TO_CLIENT_TIME, nfstime3(7, 8))
    )
    assert rig.call("SETATTR", SETATTR3args(rig.root, wanted, None)).value.status == nfsstat3.NFS3ERR_PERM
    assert (seen[0].atime, seen[0].mtime) == (SetTo.SERVER_TIME, Time(7, 8))  # type: ignore[attr-defined]


def test_setattr_guard_compares_the_change_time() -> None:
    rig = Rig()
    ctime = rig.service.roots[1].ctime
    wrong = nfstime3(ctime.seconds, ctime.nanoseconds + 1)
    value = rig.call("SETATTR", SETATTR3args(rig.root, no_attributes(mode=0), wrong)).value
    assert value.status == nfsstat3.NFS3ERR_NOT_SYNC
    assert value.resfail.obj_wcc.after.mode == 0o755
    assert value.resfail.obj_wcc.before is None
    right = nfstime3(ctime.seconds, ctime.nanoseconds)
    assert rig.call("SETATTR", SETATTR3args(rig.root, no_attributes(mode=0), right)).value.status == nfsstat3.NFS3_OK


def test_without_a_guard_eagain_means_come_again() -> None:
    rig = Rig()
    rig.service.failures["set_attributes"] = [OSError(errno.EAGAIN, "")]
    value = rig.call("SETATTR", SETATTR3args(rig.root, no_attributes(mode=0), None)).value
    assert value.status == nfsstat3.NFS3ERR_JUKEBOX


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        (no_attributes(size=1 << 63), nfsstat3.NFS3ERR_FBIG),
        (
            no_attributes(mtime=set_mtime(time_how.SET_TO_CLIENT_TIME, nfstime3(1, 1_000_000_000))),
            nfsstat3.NFS3ERR_INVAL,
        ),
    ],
)
def test_setattr_refuses_what_no_file_can_have(wanted: object, status: nfsstat3) -> None:
    rig = Rig()
    value = rig.call("SETATTR", SETATTR3args(rig.root, wanted, None)).value  # type: ignore[arg-type]
    assert value.status == status
    assert value.resfail.obj_wcc.after is not None


@pytest.mark.parametrize("wanted", [{"uid": 0xFFFFFFFF}, {"gid": 0xFFFFFFFF}, {"uid": 7, "gid": 0xFFFFFFFF}])
def test_setattr_gives_no_file_to_nobody(wanted: dict[str, int]) -> None:
    rig = Rig()
    rig.service.roots[1].uid = 5
    value = rig.call("SETATTR", SETATTR3args(rig.root, no_attributes(**wanted), None)).value
    assert value.status == nfsstat3.NFS3ERR_INVAL
    assert rig.service.roots[1].uid == 5


def test_access_answers_what_was_asked_and_no_more() -> None:
    rig = Rig()
    assert rig.call("ACCESS", ACCESS3args(rig.root, 0x3F)).value.resok.access == 0x1F
    assert rig.call("ACCESS", ACCESS3args(rig.root, 0x21)).value.resok.access == 0x01
    assert rig.call("ACCESS", ACCESS3args(rig.root, 0)).value.resok.access == 0


def test_access_on_a_read_only_export_grants_no_change() -> None:
    rig = Rig(Export(1, "/srv/export", "/export", read_only=True))
    assert rig.call("ACCESS", ACCESS3args(rig.root, 0x3F)).value.resok.access == 0x03


def test_a_read_only_export_refuses_change_and_gives_attributes() -> None:
    rig = Rig(Export(1, "/srv/export", "/export", read_only=True))
    value = rig.call("SETATTR", SETATTR3args(rig.root, no_attributes(mode=0), None)).value
    assert value.status == nfsstat3.NFS3ERR_ROFS
    assert value.resfail.obj_wcc.after.mode == 0o755


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


def test_attributes_that_cannot_be_had_do_not_fail_an_operation() -> None:
    rig = Rig()
    rig.service.failures["attributes"] = [OSError(errno.EIO, "")]
    value = rig.call("ACCESS", ACCESS3args(rig.root, 1)).value
    assert value.status == nfsstat3.NFS3_OK
    assert value.resok.obj_attributes is None
