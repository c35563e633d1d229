"""WANT_DELEGATION, DELEGRETURN, DELEGPURGE, GET_DIR_DELEGATION.

RFC 7530 sections 10.4, 16.7, 16.8, 16.16; RFC 8881 sections 10.4, 18.5, 18.6, 18.16, 18.39, 18.49.
"""

from __future__ import annotations

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.state.clients import Client
from nfsd.state.records import Delegation
from nfsd.v4.compound import Compound
from nfsd.v4.descriptors import Descriptors
from nfsd.v4.giving import SIGNALS, give
from nfsd.v4.operations import operation
from nfsd.v4.ops.data import regular
from nfsd.vfs.service import Node
from nfsd.vfs.types import FileType

_READ, _BOTH = p.OPEN4_SHARE_ACCESS_READ, p.OPEN4_SHARE_ACCESS_BOTH
_WANT = p.OPEN4_SHARE_ACCESS_WANT_DELEG_MASK
_WISHES = (
    p.OPEN4_SHARE_ACCESS_WANT_READ_DELEG,
    p.OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG,
    p.OPEN4_SHARE_ACCESS_WANT_ANY_DELEG,
    p.OPEN4_SHARE_ACCESS_WANT_CANCEL,
)
"""What WANT_DELEGATION may ask for (RFC 8881 section 18.49.3)."""
_TYPES = p.open_delegation_type4
_WHY = p.why_no_delegation4


async def delegate(
    c: Compound, client: Client, node: Node, opened: Descriptors, access: int, wish: int, *, reclaim: int = 0
) -> p.open_delegation4:
    """A delegation of a file that has just been opened for ``access`` through ``opened``, or none. ``wish``: the WANT
    bits of share_access. ``reclaim``: the type (OPEN_DELEGATE_*) the client had before the server restarted."""
    want = wish & _WANT
    referring = None
    if c.session is not None and c.sequence is not None:
        referring = (c.session.sessionid, c.sequence.sa_slotid, c.sequence.sa_sequenceid)
    made = await give(c.server, client, node, opened, access, want, referring, reclaim=reclaim)
    return given(made) if isinstance(made, Delegation) else none(c, want, made)


def given(delegation: Delegation) -> p.open_delegation4:
    """A delegation as OPEN tells it; ``recall`` set if it is being recalled already."""
    stateid = p.stateid4(seqid=delegation.seqid, other=delegation.other)
    recall = delegation.recall_by is not None
    # An entry that allows nobody anything: the client asks ACCESS before it opens the file on somebody's behalf.
    nobody = p.nfsace4(type=p.ACE4_ACCESS_ALLOWED_ACE_TYPE, flag=0, access_mask=0, who=b"")
    if not delegation.write:
        read = p.open_read_delegation4(stateid=stateid, recall=recall, permissions=nobody)
        return p.open_delegation4(delegation_type=_TYPES.OPEN_DELEGATE_READ, read=read)
    # No space is reserved for what the client caches: like Linux's server, and like a local disk's page cache.
    limit = p.nfs_space_limit4(limitby=p.limit_by4.NFS_LIMIT_SIZE, filesize=2**64 - 1)
    write = p.open_write_delegation4(stateid=stateid, recall=recall, space_limit=limit, permissions=nobody)
    return p.open_delegation4(delegation_type=_TYPES.OPEN_DELEGATE_WRITE, write=write)


def none(c: Compound, want: int, why: p.why_no_delegation4) -> p.open_delegation4:
    """No delegation; with the reason if the client of 4.1 expressed a wish (RFC 8881 section 18.16.3)."""
    if not c.minor or not want:
        return p.open_delegation4(delegation_type=_TYPES.OPEN_DELEGATE_NONE)
    reason = p.open_none_delegation4(ond_why=why)
    # No wish is remembered: the client asks again when it opens the file the next time.
    if why == _WHY.WND4_CONTENTION:
        reason = p.open_none_delegation4(ond_why=why, ond_server_will_push_deleg=False)
    elif why == _WHY.WND4_RESOURCE:
        reason = p.open_none_delegation4(ond_why=why, ond_server_will_signal_avail=False)
    return p.open_delegation4(delegation_type=_TYPES.OPEN_DELEGATE_NONE_EXT, od_whynone=reason)


@operation(p.OP_DELEGRETURN, changes=True)
async def delegreturn(c: Compound, args: p.DELEGRETURN4args) -> None:
    """The client gives a delegation back."""
    node = await c.node()
    c.engine.delegations.give_back(c.engine.delegations.find(c.given(args.deleg_stateid), c.client, node.key))


@operation(p.OP_GET_DIR_DELEGATION)
async def get_dir_delegation(c: Compound, args: p.GET_DIR_DELEGATION4args) -> p.GET_DIR_DELEGATION4res_non_fatal:
    """Directories are not delegated: never available (RFC 8881 section 18.39.3)."""
    if isinstance(c.here, Node) and c.here.type is not FileType.DIR:
        raise Nfs4Error(p.NFS4ERR_NOTDIR)
    return p.GET_DIR_DELEGATION4res_non_fatal(
        gddrnf_status=p.gddrnf4_status.GDD4_UNAVAIL, gddrnf_will_signal_deleg_avail=False
    )


@operation(p.OP_WANT_DELEGATION, changes=True)
async def want_delegation(c: Compound, args: p.WANT_DELEGATION4args) -> p.open_delegation4:
    """A delegation without an open."""
    kinds = p.open_claim_type4
    claim = args.wda_claim.dc_claim
    want = args.wda_want & _WANT
    if want not in _WISHES or args.wda_want & ~(_WANT | SIGNALS):
        raise Nfs4Error(p.NFS4ERR_INVAL)
    assert c.client is not None, "4.1 operations run in a session"
    if claim == kinds.CLAIM_DELEG_PREV_FH:
        raise Nfs4Error(p.NFS4ERR_NOTSUPP)  # as for OPEN: nothing outlives the client that had it
    if claim not in (kinds.CLAIM_FH, kinds.CLAIM_PREVIOUS):
        raise Nfs4Error(p.NFS4ERR_INVAL)
    if want == p.OPEN4_SHARE_ACCESS_WANT_CANCEL:
        return none(c, want, _WHY.WND4_CANCELLED)
    node = await c.node()
    regular(c, node)
    reclaim = int(args.wda_claim.dc_delegate_type or 0) if claim == kinds.CLAIM_PREVIOUS else 0
    c.engine.opens.check_claim(c.client, reclaim=claim == kinds.CLAIM_PREVIOUS)
    write = want == p.OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG or reclaim == _TYPES.OPEN_DELEGATE_WRITE
    if write:
        await c.real(node, changing=True)
    access = _BOTH if write else _READ
    credential = await c.credential(node)
    opened = await c.service.open(credential, node, read=True, write=write, owner_override=bool(reclaim), exactly=True)
    descriptors = Descriptors(credential.host)
    descriptors.add(opened, access, c.call.credential)
    try:
        return await delegate(c, c.client, node, descriptors, access, want, reclaim=reclaim)
    finally:
        descriptors.release()
