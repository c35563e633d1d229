"""COPY and CLONE between two files of this server (RFC 7862 sections 4, 15.2 and 15.13).

Copies are synchronous, in order, and bounded in time: a short count is legal, and the client goes on from there.
Nothing is ever asynchronous, hence there is nothing that OFFLOAD_STATUS or OFFLOAD_CANCEL could name. Copies from
another server are not supported: COPY_NOTIFY, with which they begin, answers NOTSUPP.
"""

from __future__ import annotations

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.state.types import INVALID, StateidLike
from nfsd.v4.compound import Compound
from nfsd.v4.operations import operation
from nfsd.v4.ops.data import opened_for
from nfsd.v4.ops.sparse import only_regular
from nfsd.vfs.service import Node, OpenFile

_MAX_OFFSET = 2**63 - 1
_CURRENT = p.stateid4(1, bytes(12))


async def _open_both(
    c: Compound, source: Node, source_stateid: StateidLike, target: Node, target_stateid: StateidLike
) -> tuple[OpenFile, OpenFile]:
    """Descriptors of source and target, with a count each."""
    if source_stateid.seqid == _CURRENT.seqid and source_stateid.other == _CURRENT.other:
        # "The current stateid" of the source is the one that was saved together with its filehandle.
        source_stateid = c.saved_stateid
        if source_stateid is INVALID:
            raise Nfs4Error(p.NFS4ERR_BAD_STATEID)
    reading = await opened_for(c, source, source_stateid, write=False)
    try:
        return reading, await opened_for(c, target, c.given(target_stateid), write=True)
    except BaseException:
        reading.release()
        raise


async def _count(c: Compound, source: Node, offset: int, count: int) -> int:
    """The octets meant, 0 meaning all to the source's end. Raises INVAL beyond that end."""
    size = (await c.service.attributes(source)).size
    if offset > size or offset + count > size:
        raise Nfs4Error(p.NFS4ERR_INVAL)
    return count or size - offset


@operation(p.OP_COPY, changes=True)
async def copy(c: Compound, args: p.COPY4args) -> p.COPY4resok:
    """Copy a range of the saved file into the current one. The client commits it."""
    if args.ca_source_server:
        raise Nfs4Error(p.NFS4ERR_NOTSUPP)
    target, source = await c.node(changing=True), await c.saved_node()
    only_regular(source, target)
    if source.key == target.key:
        raise Nfs4Error(p.NFS4ERR_INVAL)
    reading, writing = await _open_both(c, source, args.ca_src_stateid, target, args.ca_dst_stateid)
    try:
        count = await _count(c, source, args.ca_src_offset, args.ca_count)
        if args.ca_dst_offset + count > _MAX_OFFSET:
            raise Nfs4Error(p.NFS4ERR_FBIG)
        verifier = c.service.write_verifier
        copied = await c.service.copy_range(reading, args.ca_src_offset, writing, args.ca_dst_offset, count)
    finally:
        reading.release()
        writing.release()
    response = p.write_response4(
        wr_callback_id=[], wr_count=copied, wr_committed=p.stable_how4.UNSTABLE4, wr_writeverf=verifier
    )
    # Asked to copy asynchronously or out of order, the server may still do neither (section 15.2.3).
    return p.COPY4resok(response, p.copy_requirements4(cr_consecutive=True, cr_synchronous=True))


@operation(p.OP_CLONE, changes=True)
async def clone(c: Compound, args: p.CLONE4args) -> None:
    """Make a range of the current file share the blocks of the saved one. Raises NOTSUPP where the file system has no
    such thing, XDEV between two."""
    target, source = await c.node(changing=True), await c.saved_node()
    only_regular(source, target)
    reading, writing = await _open_both(c, source, args.cl_src_stateid, target, args.cl_dst_stateid)
    try:
        await _count(c, source, args.cl_src_offset, args.cl_count)
        await c.service.clone_range(reading, args.cl_src_offset, writing, args.cl_dst_offset, args.cl_count)
    finally:
        reading.release()
        writing.release()
