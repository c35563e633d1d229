"""LOCK, LOCKT, LOCKU, RELEASE_LOCKOWNER (RFC 7530 sections 16.10 to 16.12, 16.37; RFC 8881 sections 18.10 to 18.12).

What LOCK and LOCKU do is in :mod:`nfsd.v4.locking`.
"""

from __future__ import annotations

from nfsd.protocol import nfs4 as p
from nfsd.state import LockDenied, Nfs4Error
from nfsd.state.clients import Client
from nfsd.state.records import LockState, OpenState
from nfsd.state.types import Stateid
from nfsd.v4 import locking
from nfsd.v4.compound import Compound
from nfsd.v4.local_locks import local_denial
from nfsd.v4.operations import operation
from nfsd.v4.ops.data import regular
from nfsd.v4.ops.opens import wire
from nfsd.vfs.service import Node

_EXCLUSIVE = (p.nfs_lock_type4.WRITE_LT, p.nfs_lock_type4.WRITEW_LT)
_WAITING = (p.nfs_lock_type4.READW_LT, p.nfs_lock_type4.WRITEW_LT)


@operation(p.OP_LOCK, changes=True)
async def lock(c: Compound, args: p.LOCK4args) -> p.LOCK4resok | p.LOCK4res:
    """Lock a range, or say who holds it."""
    node = await c.node()
    regular(c, node)
    try:
        stateid = await _lock(c, node, args)
    except LockDenied as denied:
        return p.LOCK4res(status=p.nfsstat4.NFS4ERR_DENIED, denied=_denied(denied))
    c.stateid = stateid
    return p.LOCK4resok(lock_stateid=wire(stateid))


async def _lock(c: Compound, node: Node, args: p.LOCK4args) -> Stateid:
    new = args.locker.open_owner
    exist = args.locker.lock_owner
    holder: OpenState | LockState
    if new is not None:
        given = c.given(new.open_stateid)
        if not c.minor:
            client = c.engine.clients.client40(new.lock_owner.clientid, c.host)
            c.replayable(*c.engine.opens.begin_seqid(given, new.open_seqid))
        holder = c.engine.stateids.find_open(given, c.client, node.key)
        if not c.minor and holder.client is not client:
            raise Nfs4Error(p.NFS4ERR_BAD_STATEID)  # an open of another client
    else:
        assert exist is not None
        given = c.given(exist.lock_stateid)
        if not c.minor:
            c.replayable(*c.engine.opens.begin_seqid(given, exist.lock_seqid))
        holder = c.engine.stateids.find_lock(given, c.client, node.key)
    return await locking.lock(
        c.server, node, holder, new.lock_owner.owner if new is not None else None, args.locktype in _EXCLUSIVE,
        args.locktype in _WAITING, args.reclaim, args.offset, args.length, new.lock_seqid if new is not None else 0,
    )  # fmt: skip


def _denied(denied: LockDenied) -> p.LOCK4denied:
    return p.LOCK4denied(
        offset=denied.offset,
        length=denied.length,
        locktype=p.nfs_lock_type4.WRITE_LT if denied.exclusive else p.nfs_lock_type4.READ_LT,
        owner=p.lock_owner4(clientid=denied.clientid, owner=denied.owner),
    )


@operation(p.OP_LOCKT)
async def lockt(c: Compound, args: p.LOCKT4args) -> p.LOCKT4res:
    """Whether a lock could be had."""
    node = await c.node()
    regular(c, node)
    client = _client(c, args.owner.clientid)
    exclusive = args.locktype in _EXCLUSIVE
    try:
        c.engine.locks.test(client, args.owner.owner, node.key, exclusive, args.offset, args.length)
        local = await local_denial(c.service, node, args.offset, args.length, exclusive=exclusive)
        if local is not None:
            raise local
    except LockDenied as denied:
        return p.LOCKT4res(status=p.nfsstat4.NFS4ERR_DENIED, denied=_denied(denied))
    return p.LOCKT4res(status=p.nfsstat4.NFS4_OK)


def _client(c: Compound, clientid: int) -> Client:
    # In 4.1 the field means nothing: the session tells the client (RFC 8881 section 18.11.3).
    return c.client if c.client is not None else c.engine.clients.client40(clientid, c.host)


@operation(p.OP_LOCKU, changes=True)
async def locku(c: Compound, args: p.LOCKU4args) -> p.stateid4:
    """Unlock a range."""
    node = await c.node()
    given = c.given(args.lock_stateid)
    if not c.minor:
        c.replayable(*c.engine.opens.begin_seqid(given, args.seqid))
    state = c.engine.stateids.find_lock(given, c.client, node.key)
    c.stateid = stateid = await locking.unlock(c.server, state, args.offset, args.length)
    return wire(stateid)


@operation(p.OP_RELEASE_LOCKOWNER, changes=True)
async def release_lockowner(c: Compound, args: p.RELEASE_LOCKOWNER4args) -> None:
    """v4.0: the lock owner will not be heard of again."""
    client = c.engine.clients.client40(args.lock_owner.clientid, c.host)
    c.engine.locks.release_lockowner(client, args.lock_owner.owner)
