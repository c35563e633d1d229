"""SEEK, ALLOCATE, DEALLOCATE, READ_PLUS, IO_ADVISE (RFC 7862 sections 15.1, 15.4, 15.5, 15.10, 15.11)."""

from __future__ import annotations

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.state.records import LockState
from nfsd.state.types import StateidLike
from nfsd.v4.attributes import mask_of, words_of
from nfsd.v4.compound import Compound
from nfsd.v4.operations import ENCODED, Encoded, operation
from nfsd.v4.ops.data import opened_for
from nfsd.vfs.service import Node
from nfsd.vfs.sparse import MAX_EXTENTS
from nfsd.vfs.types import Extent, FileType
from rpcrdma.xdr import Encoder

_RESULT_OVERHEAD = 128 + 28 * MAX_EXTENTS
"""Octets of a READ_PLUS result beside the data, at most."""
_MAX_OFFSET = 2**63 - 1
_PREFETCHING = (
    1 << p.IO_ADVISE_type4.IO_ADVISE4_WILLNEED
    | 1 << p.IO_ADVISE_type4.IO_ADVISE4_WILLNEED_OPPORTUNISTIC
    | 1 << p.IO_ADVISE_type4.IO_ADVISE4_INIT_PROXIMITY
)
_DROPPING = 1 << p.IO_ADVISE_type4.IO_ADVISE4_DONTNEED


def only_regular(*nodes: Node) -> None:
    """WRONG_TYPE for anything but a regular file, directories and links included, as the new operations have it."""
    if any(node.type is not FileType.REG for node in nodes):
        raise Nfs4Error(p.NFS4ERR_WRONG_TYPE)


@operation(p.OP_SEEK)
async def seek(c: Compound, args: p.SEEK4args) -> p.seek_res4:
    """The next data or hole. Raises NXIO from the end of the file on, UNION_NOTSUPP for other kinds of content."""
    node = await c.node()
    opened = await opened_for(c, node, c.given(args.sa_stateid), write=False)
    try:
        if args.sa_what not in (p.data_content4.NFS4_CONTENT_DATA, p.data_content4.NFS4_CONTENT_HOLE):
            raise Nfs4Error(p.NFS4ERR_UNION_NOTSUPP)
        hole = args.sa_what == p.data_content4.NFS4_CONTENT_HOLE
        found, eof = await c.service.seek(opened, args.sa_offset, hole=hole)
    finally:
        opened.release()
    return p.seek_res4(sr_eof=eof, sr_offset=found)


def _check_range(offset: int, length: int) -> None:
    # RFC 7862 leaves the empty range open; Linux's fallocate and server refuse it.
    if length == 0 or offset > _MAX_OFFSET or offset + length > 2**64 - 1:
        raise Nfs4Error(p.NFS4ERR_INVAL)


@operation(p.OP_ALLOCATE, changes=True)
async def allocate(c: Compound, args: p.ALLOCATE4args) -> None:
    """Reserve space, so that writes into the range do not fail for the lack of it."""
    node = await c.node(changing=True)
    only_regular(node)
    opened = await opened_for(c, node, c.given(args.aa_stateid), write=True)
    try:
        _check_range(args.aa_offset, args.aa_length)
        await c.service.allocate(opened, args.aa_offset, args.aa_length)
    finally:
        opened.release()


@operation(p.OP_DEALLOCATE, changes=True)
async def deallocate(c: Compound, args: p.DEALLOCATE4args) -> None:
    """Make a hole."""
    node = await c.node(changing=True)
    only_regular(node)
    opened = await opened_for(c, node, c.given(args.da_stateid), write=True)
    try:
        _check_range(args.da_offset, args.da_length)
        await c.service.deallocate(opened, args.da_offset, args.da_length)
    finally:
        opened.release()


@operation(p.OP_READ_PLUS)
async def read_plus(c: Compound, args: p.READ_PLUS4args) -> Encoded:
    """Read data and holes, contiguous from the offset on; as much as transfer size and reply leave room for."""
    node = await c.node()
    stateid = c.given(args.rpa_stateid)
    opened = await opened_for(c, node, stateid, write=False)
    lease = None
    try:
        count = min(
            args.rpa_count, c.server.max_transfer, node.export.max_read, max(0, c.room_left() - _RESULT_OVERHEAD)
        )
        sink = memoryview(b"")
        if count:
            lease = await c.call.lease(count)
            sink = lease.view[:count]
        # RFC 7862 section 15.10.3: holes should be told whole, but not beyond what the owner has locked.
        whole = count > 0 and not _is_lock(c, stateid)
        extents, eof = await c.service.read_extents(opened, args.rpa_offset, sink, whole_holes=whole)
        _encode(c.call.results, extents, eof)
        c.transferred(read=sum(len(data) for _, _, data in extents if data is not None))
    finally:
        opened.release()
        if lease is not None:
            lease.release()
    return ENCODED


def _encode(results: Encoder, extents: list[Extent], eof: bool) -> None:
    """Write a READ_PLUS4res, the data among the rest: none of it is eligible for DDP (RFC 8267 section 6.1)."""
    results.uint32(p.NFS4_OK)
    results.boolean(eof)
    results.uint32(len(extents))
    for offset, length, data in extents:
        if data is None:
            results.uint32(p.data_content4.NFS4_CONTENT_HOLE)
            results.uint64(offset)
            results.uint64(length)
        else:
            results.uint32(p.data_content4.NFS4_CONTENT_DATA)
            results.uint64(offset)
            results.opaque(data)


def _is_lock(c: Compound, stateid: StateidLike) -> bool:
    try:
        return isinstance(c.engine.stateids.find(stateid, c.client), LockState)
    except Nfs4Error:
        return False  # one of the special stateids


@operation(p.OP_IO_ADVISE)
async def io_advise(c: Compound, args: p.IO_ADVISE4args) -> p.IO_ADVISE4resok:
    """Take a hint, as posix_fadvise(2): what will be needed is read ahead, what will not gives its memory back. How a
    file is read (in order, at random, once) is answered NORMAL: descriptors are shared, and one client's pattern is not
    another's (RFC 7862 section 15.5.3: the server tells what it means to do)."""
    node = await c.node()
    opened = await opened_for(c, node, c.given(args.iaa_stateid), write=False)
    try:
        hints = mask_of(args.iaa_hints)
        # Hints that contradict each other are no error; reading ahead harms nobody.
        doing = hints & _PREFETCHING or hints & _DROPPING
        if doing & _PREFETCHING:
            await c.service.prefetch(opened, args.iaa_offset, args.iaa_count)
        elif doing:
            await c.service.drop(opened, args.iaa_offset, args.iaa_count)
    finally:
        opened.release()
    return p.IO_ADVISE4resok(ior_hints=words_of(doing or 1 << p.IO_ADVISE_type4.IO_ADVISE4_NORMAL))
