"""Locks granted among NFS clients, taken towards local processes as well: what LOCK and LOCKT of NFSv4 and of NFSv3's
lock manager share. Imports the state engine and the file service.
"""

from __future__ import annotations

from typing import Final

from nfsd.protocol import nfs4 as p
from nfsd.state import LockDenied, Nfs4Error
from nfsd.state.locks import LOCAL_END, LockPlan
from nfsd.state.types import UINT64_MAX, Stateid
from nfsd.v4.shortages import shortage_told
from nfsd.vfs.service import FileService, Node

LOCAL_OWNER: Final = b"local process"


async def take(service: FileService, node: Node, plan: LockPlan, *, reclaim: bool) -> Stateid:
    """Hold a planned lock towards local processes too, and grant it; under the file's gate. Raises LockDenied when one
    of them is in the way (RECLAIM_CONFLICT for a reclaim); SERVERFAULT or RESOURCE for a host that holds as many files
    open as it may, OSError (EMFILE) while others do; and as ``LockPlan.commit``."""
    client = plan.owner.client
    host = client.account.address
    try:
        # RFC 8881 section 15.2 gives LOCK no NOSPC, as OPEN has it.
        with shortage_told(service, host, client.minor, p.NFS4ERR_SERVERFAULT):
            service.check_room_for_locks(node, host)
            if plan.local is not None:
                start, length, exclusive = plan.local
                await service.set_local_lock(node, start, length, exclusive=exclusive, host=host)
    except BlockingIOError:
        plan.blocked_locally()
        if reclaim:
            raise Nfs4Error(p.NFS4ERR_RECLAIM_CONFLICT) from None  # taken while the server was away
        length = plan.end - plan.start if plan.end <= UINT64_MAX else UINT64_MAX
        found = await local_denial(service, node, plan.start, length, exclusive=plan.exclusive)
        # Without one it has gone since: the client will try again.
        raise found or LockDenied(plan.start, length, True, 0, LOCAL_OWNER) from None
    except BaseException:
        plan.abort()
        raise
    stateid = plan.commit()
    service.hold_locks(node, host)
    return stateid


async def local_denial(
    service: FileService, node: Node, offset: int, length: int, *, exclusive: bool
) -> LockDenied | None:
    """The denial that a local process's lock in the way of a range is; what lies beyond the kernel's offsets none can
    hold."""
    if offset >= LOCAL_END:
        return None
    if length == UINT64_MAX or offset + length > LOCAL_END:
        length = 0  # as the file service takes it: to the end of the file
    local = await service.test_local_lock(node, offset, length, exclusive=exclusive)
    if local is None:
        return None
    owner = b"%s %d" % (LOCAL_OWNER, local.pid)
    return LockDenied(local.start, local.length or UINT64_MAX, local.exclusive, 0, owner)
