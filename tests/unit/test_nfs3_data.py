"""NFSv3: READLINK, READ, WRITE, COMMIT."""

import asyncio
import errno

import pytest

from nfsd.exports import Export
from nfsd.protocol.nfs3 import (
    COMMIT3args,
    READ3args,
    READLINK3args,
    WRITE3args,
    nfs_fh3,
    nfsstat3,
    stable_how,
)
from nfsd.v3.request import Limits
from nfsd.vfs.types import FileType
from rpcrdma.memory import OutOfMemory
from rpcrdma.rpc.program import Call
from rpcrdma.xdr import Decoder, Encoder
from tests.unit.fakes.nfs3 import ROOT, Rig

PAST_THE_KERNELS_OFFSETS = (1 << 63) + 5


def add(rig: Rig, kind: FileType = FileType.REG, data: bytes = b"") -> nfs_fh3:
    service = rig.service
    node = service._new(rig.exports.exports[0], kind, service.roots[1])
    service._bind(service.roots[1], b"file", node)
    node.data = bytearray(data)
    return nfs_fh3(node.handle)


def write(handle: nfs_fh3, data: bytes, offset: int = 0, stable: stable_how = stable_how.FILE_SYNC) -> WRITE3args:
    return WRITE3args(handle, offset, len(data), stable, memoryview(data))


@pytest.mark.parametrize(
    ("offset", "count", "data", "eof"),
    [
        (0, 4, b"0123", False),
        (0, 10, b"0123456789", True),
        (0, 11, b"0123456789", True),
        (7, 3, b"789", True),
        (7, 2, b"78", False),
        (10, 5, b"", True),
        (PAST_THE_KERNELS_OFFSETS, 5, b"", True),
        ((1 << 63) - 1, 0xFFFFFFFF, b"", True),
        (0, 0, b"", False),
        (10, 0, b"", True),
    ],
)
def test_read_gives_the_data_and_says_where_the_file_ends(offset: int, count: int, data: bytes, eof: bool) -> None:
    rig = Rig()
    handle = add(rig, data=b"0123456789")
    resok = rig.call("READ", READ3args(handle, offset, count)).value.resok
    assert (bytes(resok.data), resok.count, resok.eof) == (data, len(data), eof)
    assert resok.file_attributes.size == 10
    assert rig.service.open_count == 0
    assert rig.transport.account.in_use == 0


def test_read_of_an_empty_file_is_at_its_end() -> None:
    rig = Rig()
    handle = add(rig)
    for count in (0, 4096):
        resok = rig.call("READ", READ3args(handle, 0, count)).value.resok
        assert (resok.count, resok.eof) == (0, True)


def test_read_is_bounded_by_what_fsinfo_announced() -> None:
    rig = Rig(limits=Limits(read_max=8))
    handle = add(rig, data=b"0123456789")
    resok = rig.call("READ", READ3args(handle, 0, 0xFFFFFFFF)).value.resok
    assert (bytes(resok.data), resok.eof) == (b"01234567", False)


def test_read_leaves_the_data_where_the_file_service_put_it() -> None:
    rig = Rig()
    handle = add(rig, data=b"0123456789")

    async def run() -> None:
        encoder = Encoder()
        call = Call(rig.transport, 1, 100003, 3, 6, ROOT, Decoder(b""), encoder)  # type: ignore[arg-type]
        result = await rig.procedures[6].handler(call, READ3args(handle, 0, 10))
        encoder.encode(rig.procedures[6].results, result)
        ((_, payload),) = encoder.payloads
        assert payload.view == b"0123456789"
        assert rig.transport.account.in_use >= 10  # the payload holds its buffer until it has left
        payload.release()
        assert rig.transport.account.in_use == 0

    asyncio.run(run())


@pytest.mark.parametrize("kind", [FileType.DIR, FileType.LNK, FileType.FIFO])
@pytest.mark.parametrize("procedure", ["READ", "WRITE"])
def test_only_regular_files_have_data(kind: FileType, procedure: str) -> None:
    rig = Rig()
    handle = add(rig, kind)
    arguments = READ3args(handle, 0, 5) if procedure == "READ" else write(handle, b"x")
    value = rig.call(procedure, arguments).value
    assert value.status == nfsstat3.NFS3ERR_INVAL
    failed = value.resfail.file_attributes if procedure == "READ" else value.resfail.file_wcc.after
    assert failed.type == int(kind)


@pytest.mark.parametrize("where", ["read", "lease"])
def test_a_failed_read_gives_its_buffer_and_file_back(where: str) -> None:
    rig = Rig()
    handle = add(rig, data=b"0123456789")
    if where == "read":
        rig.service.failures["read"] = [OSError(errno.EIO, "")]
    else:
        rig.transport.failure = OutOfMemory()
    value = rig.call("READ", READ3args(handle, 0, 5)).value
    assert value.status == (nfsstat3.NFS3ERR_IO if where == "read" else nfsstat3.NFS3ERR_JUKEBOX)
    assert value.resfail.file_attributes.size == 10
    assert rig.service.open_count == 0
    assert rig.transport.account.in_use == 0


@pytest.mark.parametrize("procedure", ["READ", "WRITE"])
def test_a_cancelled_call_keeps_what_a_worker_may_be_using(procedure: str) -> None:
    rig = Rig()
    handle = add(rig, data=b"0123456789")
    rig.service.failures[procedure.lower()] = [asyncio.CancelledError()]
    arguments = READ3args(handle, 0, 5) if procedure == "READ" else write(handle, b"x")
    with pytest.raises(asyncio.CancelledError):
        rig.call(procedure, arguments)
    assert rig.service.open_count == 1
    assert (rig.transport.account.in_use > 0) == (procedure == "READ")


@pytest.mark.parametrize("stable", list(stable_how))
def test_write_stores_data_and_says_how_stably(stable: stable_how) -> None:
    rig = Rig()
    handle = add(rig, data=b"0123456789")
    before = rig.node(handle).mtime
    resok = rig.call("WRITE", write(handle, b"abc", 9, stable)).value.resok
    assert rig.node(handle).data == b"012345678abc"
    assert (resok.count, resok.committed, resok.verf) == (3, stable, b"verifier")
    assert (resok.file_wcc.before.size, resok.file_wcc.after.size) == (10, 12)
    assert resok.file_wcc.before.mtime.seconds == before.seconds
    assert rig.service.open_count == 0


def test_write_of_nothing_succeeds_and_changes_nothing() -> None:
    rig = Rig()
    handle = add(rig, data=b"0123456789")
    before = rig.node(handle).attributes()
    resok = rig.call("WRITE", write(handle, b"", 100)).value.resok
    assert (resok.count, resok.committed) == (0, stable_how.FILE_SYNC)
    assert rig.node(handle).attributes() == before


def test_write_of_nothing_still_checks_permission() -> None:
    rig = Rig()
    handle = add(rig)
    rig.service.failures["open"] = [OSError(errno.EACCES, "")]
    assert rig.call("WRITE", write(handle, b"")).value.status == nfsstat3.NFS3ERR_ACCES


@pytest.mark.parametrize("count", [0, 2, 4, 0xFFFFFFFF])
def test_write_with_counts_that_disagree_writes_nothing(count: int) -> None:
    rig = Rig()
    handle = add(rig, data=b"0123456789")
    value = rig.call("WRITE", WRITE3args(handle, 0, count, stable_how.UNSTABLE, memoryview(b"abc"))).value
    assert value.status == nfsstat3.NFS3ERR_INVAL
    assert rig.node(handle).data == b"0123456789"
    assert value.resfail.file_wcc.after.size == 10


def test_write_is_cut_to_what_fsinfo_announced() -> None:
    rig = Rig(limits=Limits(write_max=4))
    handle = add(rig)
    assert rig.call("WRITE", write(handle, b"0123456789")).value.resok.count == 4
    assert rig.node(handle).data == b"0123"


def test_a_short_write_is_reported_as_short() -> None:
    rig = Rig()
    handle = add(rig)
    rig.service.short_write = 3
    assert rig.call("WRITE", write(handle, b"0123456789")).value.resok.count == 3


@pytest.mark.parametrize("offset", [(1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_write_past_the_kernels_offsets_is_too_big(offset: int) -> None:
    rig = Rig()
    handle = add(rig)
    value = rig.call("WRITE", write(handle, b"x", offset)).value
    assert value.status == nfsstat3.NFS3ERR_FBIG
    assert rig.node(handle).data == b""


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (errno.ENOSPC, nfsstat3.NFS3ERR_NOSPC),
        (errno.EDQUOT, nfsstat3.NFS3ERR_DQUOT),
        (errno.EFBIG, nfsstat3.NFS3ERR_FBIG),
        (errno.EIO, nfsstat3.NFS3ERR_IO),
        (errno.EAGAIN, nfsstat3.NFS3ERR_JUKEBOX),
    ],
)
def test_a_failed_write_tells_why_and_gives_its_file_back(number: int, status: nfsstat3) -> None:
    rig = Rig()
    handle = add(rig, data=b"0123456789")
    rig.service.failures["write"] = [OSError(number, "")]
    value = rig.call("WRITE", write(handle, b"abc")).value
    assert value.status == status
    assert value.resfail.file_wcc.after.size == 10
    assert rig.service.open_count == 0


def test_writes_answer_the_verifier_from_before_and_commits_the_one_after() -> None:
    """Data lost while a call is under way shows as a verifier that differs between the WRITE and the COMMIT."""
    rig = Rig()
    handle = add(rig)
    service = rig.service
    plain_write, plain_commit = service.write, service.commit

    async def losing_write(*arguments: object) -> object:
        service.write_verifier = b"lost1..."
        return await plain_write(*arguments)  # type: ignore[arg-type]

    async def losing_commit(*arguments: object) -> object:
        service.write_verifier = b"lost2..."
        return await plain_commit(*arguments)  # type: ignore[arg-type]

    service.write, service.commit = losing_write, losing_commit  # type: ignore[method-assign, assignment]
    assert rig.call("WRITE", write(handle, b"abc", stable=stable_how.UNSTABLE)).value.resok.verf == b"verifier"
    assert rig.call("COMMIT", COMMIT3args(handle, 0, 0)).value.resok.verf == b"lost2..."


def test_commit_flushes_the_range_and_gives_both_attributes() -> None:
    rig = Rig()
    handle = add(rig, data=b"0123456789")
    resok = rig.call("COMMIT", COMMIT3args(handle, 4096, 8192)).value.resok
    assert rig.service.commits == [(4096, 8192)]
    assert resok.verf == b"verifier"
    assert (resok.file_wcc.before.size, resok.file_wcc.after.size) == (10, 10)
    assert rig.call("COMMIT", COMMIT3args(handle, (1 << 64) - 1, 1)).value.status == nfsstat3.NFS3_OK


def test_commit_reports_data_that_was_lost() -> None:
    rig = Rig()
    handle = add(rig)
    rig.service.failures["commit"] = [OSError(errno.EIO, "")]
    value = rig.call("COMMIT", COMMIT3args(handle, 0, 0)).value
    assert value.status == nfsstat3.NFS3ERR_IO
    assert value.resfail.file_wcc.after is not None


def test_commit_is_for_regular_files() -> None:
    rig = Rig()
    assert rig.call("COMMIT", COMMIT3args(rig.root, 0, 0)).value.status == nfsstat3.NFS3ERR_INVAL


def test_read_only_exports_refuse_write_and_commit_but_not_read() -> None:
    rig = Rig(Export(1, "/srv/export", "/export", read_only=True))
    handle = add(rig, data=b"0123456789")
    assert rig.call("WRITE", write(handle, b"x")).value.status == nfsstat3.NFS3ERR_ROFS
    assert rig.call("COMMIT", COMMIT3args(handle, 0, 0)).value.status == nfsstat3.NFS3ERR_ROFS
    assert rig.call("READ", READ3args(handle, 0, 5)).value.status == nfsstat3.NFS3_OK


def test_readlink_gives_the_text_whatever_its_octets() -> None:
    rig = Rig()
    handle = add(rig, FileType.LNK)
    rig.node(handle).target = b"../\xff\xfe/x"
    resok = rig.call("READLINK", READLINK3args(handle)).value.resok
    assert bytes(resok.data) == b"../\xff\xfe/x"
    assert resok.symlink_attributes.type == 5


def test_readlink_of_another_type_is_invalid() -> None:
    rig = Rig()
    value = rig.call("READLINK", READLINK3args(add(rig))).value
    assert value.status == nfsstat3.NFS3ERR_INVAL
    assert value.resfail.symlink_attributes.type == 1
