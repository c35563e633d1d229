"""OPEN, OPEN_CONFIRM, OPEN_DOWNGRADE, CLOSE, where a COMPOUND is carried out in Python.

What OPEN does is in :mod:`nfsd.v4.opening`, and what CLOSE does in :mod:`nfsd.v4.locking`. RFC 7530 sections 16.2,
16.16 to 16.19; RFC 8881 sections 18.2, 18.16, 18.18.
"""

from __future__ import annotations

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.state.opens import OpenState
from nfsd.state.records import Delegation
from nfsd.state.types import INVALID, Stateid
from nfsd.v4 import locking
from nfsd.v4.attributes import words_of
from nfsd.v4.compound import Compound
from nfsd.v4.names import check_name
from nfsd.v4.opening import WISHES, Asked, Where, open_rarely, shares
from nfsd.v4.operations import operation
from nfsd.v4.ops import delegations
from nfsd.v4.pseudofs import PseudoNode

_WANT = p.OPEN4_SHARE_ACCESS_WANT_DELEG_MASK
"""Wishes about delegations (4.1)."""


@operation(p.OP_OPEN, changes=True)
async def open_(c: Compound, args: p.OPEN4args) -> p.OPEN4resok:
    """Open a regular file, creating it if asked, and go there."""
    access, deny = shares(args, c.minor)
    client, owner = c.client, args.owner.owner
    request, want = None, 0
    if c.session is not None and c.sequence is not None:
        request, want = (c.session.sessionid, c.sequence.sa_slotid, c.sequence.sa_sequenceid), args.share_access & _WANT
    turn = None
    if client is None:
        client = c.engine.clients.client40(args.owner.clientid, c.host)
        c.server.heard(c.call.transport, client)
        turn, replay = c.engine.opens.begin40(client, owner, args.seqid)
        c.replayable(turn, replay)
    c.engine.opens.check_claim(client, reclaim=args.claim.claim == p.open_claim_type4.CLAIM_PREVIOUS)
    _not_in_pseudo(c, args)
    here = await c.node(changing=args.openhow.opentype == p.opentype4.OPEN4_CREATE)
    asked = Asked(c.server, client, turn or owner, c.call.credential, access, deny, want, request)
    stateid = None if c.stateid is INVALID else c.stateid
    where = Where(c.call.transport, c.minor, here, await c.credential(here), stateid)
    (granted, flags, given), target = await open_rarely(asked, where, args)
    c.go(target.node)
    c.stateid = granted
    return p.OPEN4resok(
        stateid=wire(granted),
        cinfo=p.change_info4(atomic=True, before=target.before, after=target.after),
        rflags=flags,
        attrset=words_of(target.attrset),
        delegation=delegations.given(given) if isinstance(given, Delegation) else delegations.none(c, want, given),
    )


def _not_in_pseudo(c: Compound, args: p.OPEN4args) -> None:
    """Raise what a name in the pseudo file system deserves."""
    create = args.openhow.opentype == p.opentype4.OPEN4_CREATE
    name = args.claim.file
    here = c.here
    if name is None and args.claim.delegate_cur_info is not None:
        name = args.claim.delegate_cur_info.file
    if name is not None and isinstance(here, PseudoNode) and (here.export is None or c.is_closed(here)):
        check_name(name)
        raise Nfs4Error(p.NFS4ERR_ROFS if create else p.NFS4ERR_ISDIR if name in here.children else p.NFS4ERR_NOENT)


def wire(stateid: Stateid) -> p.stateid4:
    """A stateid of the engine as the protocol's."""
    return p.stateid4(seqid=stateid.seqid, other=stateid.other)


@operation(p.OP_OPEN_CONFIRM, changes=True)
async def open_confirm(c: Compound, args: p.OPEN_CONFIRM4args) -> p.OPEN_CONFIRM4resok:
    """v4.0: the new open owner's first OPEN was no stray retransmission."""
    node = await c.node()
    c.replayable(*c.engine.opens.begin_seqid(args.open_stateid, args.seqid))
    state = c.engine.stateids.find_open(args.open_stateid, None, node.key)
    return p.OPEN_CONFIRM4resok(open_stateid=wire(c.engine.opens.confirm(state)))


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
    c.stateid = c.engine.opens.downgrade(state, access, args.share_deny)
    if state.opened is not None:
        state.opened.keep(access)
    return p.OPEN_DOWNGRADE4resok(open_stateid=wire(state.stateid))


@operation(p.OP_CLOSE, changes=True)
async def close(c: Compound, args: p.CLOSE4args) -> p.stateid4:
    """Close an open, and give up the locks under it."""
    node = await c.node()
    given = c.given(args.open_stateid)
    if not c.minor:
        c.replayable(*c.engine.opens.begin_seqid(given, args.seqid))
    state: OpenState = c.engine.stateids.find_open(given, c.client, node.key)
    c.stateid = stateid = await locking.close(c.server, state)
    return wire(stateid)
