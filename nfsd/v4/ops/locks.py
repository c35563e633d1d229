"""LOCKT, RELEASE_LOCKOWNER (RFC 7530 sections 16.11, 16.37; RFC 8881 section 18.11)."""

from __future__ import annotations

from nfsd.protocol import nfs4 as p
from nfsd.state import LockDenied
from nfsd.state.clients import Client
from nfsd.v4.compound import Compound
from nfsd.v4.local_locks import local_denial
from nfsd.v4.operations import operation
from nfsd.v4.ops.data import regular

_EXCLUSIVE = (p.nfs_lock_type4.WRITE_LT, p.nfs_lock_type4.WRITEW_LT)


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


@operation(p.OP_RELEASE_LOCKOWNER, changes=True)
async def release_lockowner(c: Compound, args: p.RELEASE_LOCKOWNER4args) -> None:
    """v4.0: the lock owner will not be heard of again."""
    client = c.engine.clients.client40(args.lock_owner.clientid, c.host)
    c.engine.locks.release_lockowner(client, args.lock_owner.owner)
