"""WANT_DELEGATION (RFC 8881 sections 10.4, 18.49)."""

from __future__ import annotations

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.state.records import Delegation
from nfsd.v4 import opens
from nfsd.v4.compound import Compound
from nfsd.v4.giving import SIGNALS, WRITING, give
from nfsd.v4.keeping import Descriptors
from nfsd.v4.operations import ENCODED, Encoded, operation
from nfsd.v4.ops.data import regular

_READ, _BOTH = p.OPEN4_SHARE_ACCESS_READ, p.OPEN4_SHARE_ACCESS_BOTH
_WANT = p.OPEN4_SHARE_ACCESS_WANT_DELEG_MASK
_WISHES = (
    p.OPEN4_SHARE_ACCESS_WANT_READ_DELEG,
    p.OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG,
    p.OPEN4_SHARE_ACCESS_WANT_ANY_DELEG,
    p.OPEN4_SHARE_ACCESS_WANT_CANCEL,
)
"""What WANT_DELEGATION may ask for (RFC 8881 section 18.49.3)."""


@operation(p.OP_WANT_DELEGATION, changes=True)
async def want_delegation(c: Compound, args: p.WANT_DELEGATION4args) -> Encoded:
    """A delegation without an open."""
    granted = await _wanted(c, args)
    c.call.results.uint32(p.NFS4_OK)
    c.call.results.append(opens.open_delegation4(granted, args.wda_want))
    return ENCODED


async def _wanted(c: Compound, args: p.WANT_DELEGATION4args) -> Delegation | p.why_no_delegation4:
    """The delegation, or why there is none."""
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
        return p.why_no_delegation4.WND4_CANCELLED
    node = await c.node()
    regular(c, node)
    reclaim = int(args.wda_claim.dc_delegate_type or 0) if claim == kinds.CLAIM_PREVIOUS else 0
    c.engine.opens.check_claim(c.client, reclaim=claim == kinds.CLAIM_PREVIOUS)
    write = want == p.OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG or reclaim in WRITING
    times = bool(args.wda_want & p.OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS)
    if write:
        await c.real(node, changing=True)
    access = _BOTH if write else _READ
    credential = await c.credential(node)
    opened = await c.service.open(credential, node, read=True, write=write, owner_override=bool(reclaim), exactly=True)
    descriptors = Descriptors(credential.host)
    descriptors.add(opened, access, c.call.credential)
    assert c.session is not None and c.sequence is not None  # noqa: PT018
    referring = (c.session.sessionid, c.sequence.sa_slotid, c.sequence.sa_sequenceid)
    try:
        return await give(c.server, c.client, node, descriptors, access, want, referring, times=times, reclaim=reclaim)
    finally:
        descriptors.release()
