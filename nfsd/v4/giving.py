"""Giving delegations with OPEN and WANT_DELEGATION (RFC 7530 section 10.4; RFC 8881 sections 10.4, 18.16.3).

Owns :func:`give`; imports the state engine's records, and the file service's leases.
"""

from __future__ import annotations

from typing import NamedTuple

from nfsd.protocol import nfs4 as p
from nfsd.state.clients import Client
from nfsd.state.records import Delegation
from nfsd.v4.delegated_times import FORGOTTEN
from nfsd.v4.keeping import Descriptors
from nfsd.v4.opened import names_unchanged, undelegated
from nfsd.v4.server import Nfs4Server
from nfsd.vfs.leases import LeaseHold
from nfsd.vfs.service import Node
from nfsd.vfs.store_mounts import is_shared
from nfsd.vfs.types import BadHandle, Credential, CrossingRefused

_WRITE = p.OPEN4_SHARE_ACCESS_WRITE
SIGNALS = (
    p.OPEN4_SHARE_ACCESS_WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL
    | p.OPEN4_SHARE_ACCESS_WANT_PUSH_DELEG_WHEN_UNCONTENDED
    | p.OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS
    | p.OPEN4_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION
)
"""Wishes besides that for a delegation (RFC 8881 section 18.16.3; RFC 9754). OPEN_ARGUMENTS says which are granted."""
_TYPES = p.open_delegation_type4
WRITING = (_TYPES.OPEN_DELEGATE_WRITE, _TYPES.OPEN_DELEGATE_WRITE_ATTRS_DELEG)
"""The kinds of a delegation for writing. Those for reading are given without the times: to set an access time moves
the change time on Linux, which it must not (RFC 9754 section 5)."""
_WHY = p.why_no_delegation4


class Named(NamedTuple):
    """The name by which an OPEN has found its file."""

    credential: Credential
    """Of the caller in the directory."""
    directory: Node
    name: bytes
    change: int | None
    """The directory's change attribute when the name led to the file; None: it is not known what it was then."""


async def give(
    server: Nfs4Server, client: Client, node: Node, opened: Descriptors, access: int, want: int,
    referring: tuple[bytes, int, int] | None, *,
    named: Named | None = None, times: bool = False, reclaim: int = 0, patient: bool = True,
) -> Delegation | p.why_no_delegation4:  # fmt: skip
    """The delegation, or why there is none. ``referring``: the session, slot and sequence id of the request;
    ``named``: the name by which the file was opened; ``times``: the client wants to tell the file's times. Unless
    ``patient``, no lease is waited for: what stands in its way makes it none."""
    write = reclaim in WRITING if reclaim else bool(access & _WRITE)
    recalls, table = server.recalls, server.engine.delegations
    callable_ = await recalls.learn_whether_to_delegate(client) if reclaim else recalls.can_delegate(client)
    why = undelegated(table, client, node, write, want, callable_, bool(reclaim))
    if why is not None:
        return why
    shared = is_shared(node)
    if not reclaim:
        if shared:
            return _WHY.WND4_NOT_SUPP_FTYPE
        snapshot = server.service.in_snapshot_at_once(node)
        if snapshot is None and not patient:
            return _WHY.WND4_CONTENTION
        if snapshot or (snapshot is None and await server.service.in_snapshot(node)):
            return _WHY.WND4_NOT_SUPP_FTYPE
    if node.inode.serial.busy or node.inode.changing or (named and table.is_held(named.directory.key)):
        return _WHY.WND4_CONTENTION  # somebody's write or removal is under way, or may be
    made = table.offer(client, node.key, write=write, reclaim=bool(reclaim))
    if not isinstance(made, Delegation):
        return made
    made.file.node = node
    recalls.mark(made.file)
    made.handle, made.referring, made.opened = node.handle, referring, opened.copy()
    try:
        if server.leases:
            lease = await _lease(server, made, opened, patient=patient)
            if lease is None:
                table.release(made)
                return _WHY.WND4_CONTENTION
            if not table.holds(made):
                lease.release()
                return _WHY.WND4_RESOURCE  # gone, with its client
            made.lease = lease
        if write:
            told = times or reclaim == _TYPES.OPEN_DELEGATE_WRITE_ATTRS_DELEG
            await _note_what_is(server, made, node, told=told, reclaimed=bool(reclaim))
        if not reclaim and not await _is_named(server, node, named):
            table.release(made)
            return _WHY.WND4_CONTENTION
    except BaseException:
        table.release(made)
        raise
    if not table.settle(made):
        return _WHY.WND4_CONTENTION
    if not callable_ or shared:
        table.recall(made)
    return made


async def _is_named(server: Nfs4Server, node: Node, named: Named | None) -> bool:
    """Whether the file still has the name by which it was opened, or any. Its holder will rely on the name (RFC 8881
    section 10.4.1), and a change that was made before the delegation was offered has recalled nothing."""
    if named is None:
        return (await server.service.attributes(node)).nlink > 0
    if named.change is not None and names_unchanged(named.directory, named.change):
        return True
    try:
        found, _ = await server.service.lookup(named.credential, named.directory, named.name)
    except (OSError, BadHandle, CrossingRefused):
        return False
    return found.key == node.key


async def _note_what_is(server: Nfs4Server, made: Delegation, node: Node, *, told: bool, reclaimed: bool) -> None:
    """What the holder will have changed, if it tells anything else later. ``told``: it is to tell times, too."""
    now = await server.service.attributes(node)
    made.change = now.change
    if told:
        # A reclaim comes when the holder may have written: the original times are forgotten.
        made.times = FORGOTTEN if reclaimed else (now.atime, now.mtime)


async def _lease(server: Nfs4Server, delegation: Delegation, opened: Descriptors, *, patient: bool) -> LeaseHold | None:
    """What makes the kernel tell us when a local process opens the file."""
    write, service = delegation.write, server.service
    through = opened.write if write else opened.read
    if through is None:
        return None

    def broken() -> None:
        server.recalls.broken(delegation)

    lease = service.take_lease(through, write=write, host=opened.host, on_break=broken)
    if lease is None and patient:
        lease = await service.wait_for_lease(through, write=write, host=opened.host, on_break=broken)
    return lease
