"""COPY, OFFLOAD_STATUS, OFFLOAD_CANCEL and CLONE between two files of this server.

Copies are in order. They are asynchronous when the client allows it, there is much to copy, and its callback service
can be told the end of it; otherwise they are made at once and bounded in time: a short count is legal, and the client
goes on from there. Copies from another server are not supported: COPY_NOTIFY, with which they begin, answers NOTSUPP.

RFC 7862 sections 4, 15.2, 15.8, 15.9 and 15.13.
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
MOST_AT_ONCE = 8 << 20
"""Octets that are copied before the reply whatever the client allows: sooner done than told about."""
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


def _moved(c: Compound, source: Node, octets: int) -> None:
    """Charge what was copied before the reply: as it would be if the client had read and written it."""
    c.transferred(written=octets)
    assert isinstance(c.current, Node)
    if source.export is c.current.export:
        c.transferred(read=octets)
    else:
        c.server.exports.moved(source.export, c.call.transport.peer_address, read=octets)


@operation(p.OP_COPY, changes=True)
async def copy(c: Compound, args: p.COPY4args) -> p.COPY4resok:
    """Copy a range of the saved file into the current one. The client commits it."""
    if args.ca_source_server:
        # Not NOTSUPP: section 11.2 does not list it for COPY, and clients would give up copies within this server too.
        raise Nfs4Error(p.NFS4ERR_OFFLOAD_DENIED)
    target, source = await c.node(changing=True), await c.saved_node()
    only_regular(source, target)
    if source.key == target.key:
        raise Nfs4Error(p.NFS4ERR_INVAL)
    reading, writing = await _open_both(c, source, args.ca_src_stateid, target, args.ca_dst_stateid)
    stateids: list[p.stateid4] = []
    try:
        count = await _count(c, source, args.ca_src_offset, args.ca_count)
        if args.ca_dst_offset + count > _MAX_OFFSET:
            raise Nfs4Error(p.NFS4ERR_FBIG)
        verifier = target.write_back.verifier
        work = c.service.begin_copy(reading, args.ca_src_offset, writing, args.ca_dst_offset, count)
        assert c.client is not None, "4.2 operations run in a session"
        if not args.ca_synchronous and count > MOST_AT_ONCE:
            assert c.sequence is not None
            here = p.referring_call4(c.sequence.sa_sequenceid, c.sequence.sa_slotid)
            asked_by = p.referring_call_list4(c.sequence.sa_sessionid, [here])
            begun = c.server.copies.begin(c.client, c.principal, asked_by, target.handle, work, verifier)
            if begun is not None:
                c.after = [*(c.after or ()), begun.replied.set]
                stateids = [p.stateid4(*begun.state.stateid)]
        if not stateids:
            try:
                await c.server.copies.at_once(c.client, work)
            finally:
                _moved(c, source, work.done)
    finally:
        reading.release()
        writing.release()
    response = p.write_response4(
        wr_callback_id=stateids,
        wr_count=0 if stateids else work.done,
        wr_committed=p.stable_how4.UNSTABLE4,
        wr_writeverf=verifier,
    )
    # Asked to copy asynchronously or out of order, the server may still do neither (section 15.2.3).
    return p.COPY4resok(response, p.copy_requirements4(cr_consecutive=True, cr_synchronous=not stateids))


@operation(p.OP_OFFLOAD_STATUS)
async def offload_status(c: Compound, args: p.OFFLOAD_STATUS4args) -> p.OFFLOAD_STATUS4resok:
    """How far an asynchronous copy to the current file has come. Raises BAD_STATEID once CB_OFFLOAD is answered."""
    state = c.engine.copies.find(args.osa_stateid, c.client, (await c.node()).key)
    complete = [] if state.result is None else [p.nfsstat4(state.result)]
    return p.OFFLOAD_STATUS4resok(osr_count=state.copied, osr_complete=complete)


@operation(p.OP_OFFLOAD_CANCEL, changes=True)
async def offload_cancel(c: Compound, args: p.OFFLOAD_CANCEL4args) -> None:
    """Stop an asynchronous copy to the current file: nothing is written after the reply, and no CB_OFFLOAD sent."""
    state = c.engine.copies.find(args.oca_stateid, c.client, (await c.node()).key)
    if state.principal != c.principal:
        # Section 4.1.2: a user must not interfere with another's copy; for this operation it is no copy at all.
        raise Nfs4Error(p.NFS4ERR_BAD_STATEID, "another user's copy")
    await c.server.copies.cancel(state)


@operation(p.OP_CLONE, changes=True)
async def clone(c: Compound, args: p.CLONE4args) -> None:
    """Make a range of the current file share the blocks of the saved one. Raises NOTSUPP where the file system has no
    such thing, XDEV between two."""
    target, source = await c.node(changing=True), await c.saved_node()
    only_regular(source, target)
    reading, writing = await _open_both(c, source, args.cl_src_stateid, target, args.cl_dst_stateid)
    try:
        count = await _count(c, source, args.cl_src_offset, args.cl_count)
        await c.service.clone_range(reading, args.cl_src_offset, writing, args.cl_dst_offset, args.cl_count)
        _moved(c, source, count)
    finally:
        reading.release()
        writing.release()
