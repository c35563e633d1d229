"""LOCK, LOCKU and CLOSE, from where it is known what a stateid stands for (RFC 8881 sections 18.2, 18.10, 18.12).

Owns what these do; the arguments are read and the results written by :mod:`nfsd.v4.locks` and
:mod:`nfsd.v4.owners`. Imports the state engine and :mod:`nfsd.v4.local_locks`.

A lock is granted by the state engine among NFS clients, then taken towards local processes, then committed; all under
the file's gate, so that the two never tell different stories.
"""

from __future__ import annotations

from nfsd.state.records import LockState, OpenState
from nfsd.state.types import Stateid
from nfsd.v4.local_locks import take
from nfsd.v4.server import Nfs4Server, gate
from nfsd.vfs.service import Node


async def lock(
    server: Nfs4Server, node: Node, holder: OpenState | LockState, owner: bytes | None, exclusive: bool, wait: bool,
    reclaim: bool, offset: int, length: int, lock_seqid: int,
) -> Stateid:  # fmt: skip
    """LOCK under an open for a new lock ``owner``, or under a lock state (None). ``wait``: the client wants to be told
    when a denied one may be had; ``lock_seqid``: the new owner's first in v4.0. Raises LockDenied and what else
    :meth:`LockTable.lock_new` and :func:`take` do."""
    file, table = holder.file, server.engine.locks
    try:
        async with gate(file):
            if isinstance(holder, OpenState):
                assert owner is not None
                plan = table.lock_new(
                    holder, owner, exclusive, offset, length,
                    reclaim=reclaim, wait=wait, handle=node.handle, lock_seqid=lock_seqid,
                )  # fmt: skip
            else:
                plan = table.lock(holder, exclusive, offset, length, reclaim=reclaim, wait=wait, handle=node.handle)
            file.node = node
            return await take(server.service, node, plan, reclaim=reclaim)
    finally:
        server.blocked.tell()  # a lock may have become shared, or a cycle of waiters be suspected


async def unlock(server: Nfs4Server, state: LockState, offset: int, length: int) -> Stateid:
    """LOCKU of a range. Raises what :meth:`LockTable.unlock` does."""
    async with gate(state.file):
        stateid = server.engine.locks.unlock(state, offset, length)
        await server.clear_local(state.file)
    return stateid


async def close(server: Nfs4Server, state: OpenState) -> Stateid:
    """CLOSE of an open, and of the locks under it. Raises BAD_STATEID when another CLOSE came first."""
    async with gate(state.file):
        stateid = server.engine.opens.close(state)
        await server.clear_local(state.file)
    return stateid
