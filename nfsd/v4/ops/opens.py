"""OPEN_DOWNGRADE (RFC 7530 section 16.19; RFC 8881 section 18.18)."""

from __future__ import annotations

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.v4.compound import Compound
from nfsd.v4.opening import WISHES
from nfsd.v4.operations import operation


@operation(p.OP_OPEN_DOWNGRADE, changes=True)
async def open_downgrade(c: Compound, args: p.OPEN_DOWNGRADE4args) -> p.OPEN_DOWNGRADE4resok:
    """Give up part of the access or deny of an open."""
    node = await c.node()
    given = c.given(args.open_stateid)
    if not c.minor:
        c.replayable(*c.engine.opens.begin_seqid(given, args.seqid))
    state = c.engine.stateids.find_open(given, c.client, node.key)
    access = args.share_access & ~(WISHES if c.minor else 0)
    if not 1 <= access <= p.OPEN4_SHARE_ACCESS_BOTH or args.share_deny > p.OPEN4_SHARE_DENY_BOTH:
        raise Nfs4Error(p.NFS4ERR_INVAL)
    c.stateid = stateid = c.engine.opens.downgrade(state, access, args.share_deny)
    if state.opened is not None:
        state.opened.keep(access)
    return p.OPEN_DOWNGRADE4resok(open_stateid=p.stateid4(seqid=stateid.seqid, other=stateid.other))
