"""OPEN, CLOSE, LOCK and LOCKU where nothing has to be waited for, for native COMPOUNDs: what of them is no hot path's.

Owns nothing; imports the operations in :mod:`nfsd.v4.ops`, whose conditions these are: with anything out of the
ordinary (a failure, a conflict, a delegation that could be given, a file that the disk must be asked for) they say
None, having changed nothing that shows. Nothing here waits, and the thread must be the server's own.

RFC 8881 sections 18.2, 18.10, 18.12, 18.16; RFC 7530 sections 9.1.7, 16.2, 16.16, 16.28.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error, StateEngine
from nfsd.state.clients import Client
from nfsd.state.opens import FileState, OpenState
from nfsd.state.owners import OpenOwner, SeqidOwner
from nfsd.state.records import Delegation, LockState
from nfsd.state.types import UINT32_MAX, Stateid
from nfsd.v4.descriptors import Descriptors
from nfsd.v4.ops.delegations import SIGNALS, give, has_one
from nfsd.v4.server import Nfs4Server
from nfsd.vfs.service import Node, OpenFile
from nfsd.vfs.types import Credential
from rpcrdma.rpc.program import RpcCredential, Transport

WISHES: int = p.OPEN4_SHARE_ACCESS_WANT_DELEG_MASK | SIGNALS
_WANT = p.OPEN4_SHARE_ACCESS_WANT_DELEG_MASK
_READ, _WRITE, _BOTH = p.OPEN4_SHARE_ACCESS_READ, p.OPEN4_SHARE_ACCESS_WRITE, p.OPEN4_SHARE_ACCESS_BOTH
_WHY = p.why_no_delegation4
T = TypeVar("T")


def why_no_delegation(
    server: Nfs4Server, client: Client, node: Node, share_access: int, owner: bytes
) -> int | None:  # fmt: skip
    """Why an OPEN would come without a delegation (:func:`nfsd.v4.ops.delegations.delegate`); None: it might not, or
    somebody else's would be in its way."""
    table, want = server.engine.delegations, share_access & _WANT
    if table.in_the_way(node.key, client, write=True) is not None:
        return None
    if want == p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG:
        return _WHY.WND4_NOT_WANTED
    if want == p.OPEN4_SHARE_ACCESS_WANT_CANCEL:
        return _WHY.WND4_CANCELLED
    if not server.recalls.can_delegate(client) or (not client.minor and not _is_confirmed(client, owner)):
        return _WHY.WND4_RESOURCE
    held = table.held_by(client, node.key)
    if held is not None:
        return has_one(held, want)
    return table.refusal(client, node.key, write=bool(share_access & _WRITE))


def named(server: Nfs4Server, transport: Transport, clientid: int) -> Client | None:
    """v4.0: the client that an OPEN or RENEW names, its lease renewed; None if there is anything to say to that, or to
    put on stable storage before the reply, as of a client not heard of since the grace period."""
    clients = server.engine.clients
    known = clients.lookup(clientid)
    if known is None or known.unheard:
        return None
    try:
        client = clients.client40(clientid, server.exports.speaker(transport))
    except Nfs4Error:
        return None
    server.heard(transport, client)
    return client


def may_open(client: Client, owner: bytes, seqid: int) -> bool:
    """v4.0: whether an OPEN is the first operation of an owner, or the next of one that has confirmed itself, and needs
    no record on stable storage (RFC 7530 sections 9.1.7, 9.1.11)."""
    found = client.open_owners.get(owner)
    return client.recorded and (found is None or (found.confirmed and _is_next(found, seqid)))


def _is_confirmed(client: Client, owner: bytes) -> bool:
    """v4.0: whether an owner has confirmed itself. Before, it may be a stray retransmission's."""
    found = client.open_owners.get(owner)
    return found is not None and found.confirmed


def _is_next(owner: SeqidOwner, seqid: int) -> bool:
    """v4.0: whether this is the owner's next operation (:meth:`SeqidOwner.begin`)."""
    return not owner.busy and owner.seqid is not None and seqid == owner.seqid + 1 & UINT32_MAX


def may_make(server: Nfs4Server, client: Client, owner: bytes, host: str, directory: Node) -> bool:
    """Whether an OPEN may make a file: nothing that can be known beforehand will refuse to open it. ``host``: the
    client's, on whose account it stays open."""
    engine, grace = server.engine, server.engine.grace
    if not engine.stable or grace.active or grace.unheard or (client.minor and not client.reclaim_complete):
        return False
    if engine.opens.refusal(client, owner) is not None:
        return False
    return not directory.mount.inline or server.service.shares.has_room(host, directory.mount.lane)


def begin(server: Nfs4Server, client: Client, owner: bytes, seqid: int) -> OpenOwner:
    """v4.0: begin the next operation of an owner that ``may_open``."""
    return server.engine.opens.begin40(client, owner, seqid)[0]


def open_made(
    server: Nfs4Server, client: Client, caller: RpcCredential, credential: Credential, node: Node,
    opened: OpenFile | None, owner: bytes, access: int, deny: int, wish: int, referring: tuple[bytes, int, int] | None,
) -> tuple[OpenState, int, Delegation | int] | int:  # fmt: skip
    """Open a file that its creation has left ``opened``, with a count that is taken over: (state, rflags, a delegation
    or why there is none), or the status of a failure. Whoever has made a file may open it whatever its mode. ``wish``:
    share_access as sent; ``referring``: the session, slot and sequence id."""
    engine = server.engine
    if opened is None:
        return int(p.NFS4ERR_DELAY)  # descriptors are short
    try:
        state = engine.opens.reserve(engine.opens.owner(client, owner), node.key, access, deny, reclaim=False).commit()
    except Nfs4Error as error:
        opened.release()
        return int(error.status)
    _keep_open(state, opened, credential, access, caller)
    flags = _open_flags(server, state)
    if not state.owner.confirmed:
        return state, flags, _WHY.WND4_RESOURCE
    # Nobody else can have the file open yet but a local process, which keeps it from being delegated at once.
    giving = give(server, client, node, state.opened, access, wish & _WANT, referring, patient=False)
    return state, flags, _result(giving)


def _keep_open(state: OpenState, opened: OpenFile, credential: Credential, access: int, caller: RpcCredential) -> None:
    if state.opened is None:
        state.opened = Descriptors(credential.host)
    state.opened.add(opened, access, caller)
    state.file.node = opened.node


def _open_flags(server: Nfs4Server, state: OpenState) -> int:
    """The rflags of an OPEN."""
    flags, client = p.OPEN4_RESULT_LOCKTYPE_POSIX, state.client
    if not state.owner.confirmed:
        flags |= p.OPEN4_RESULT_CONFIRM
    if client.minor and server.callbacks.client_can_be_called(client):
        flags |= p.OPEN4_RESULT_MAY_NOTIFY_LOCK
    return flags


def open_(
    server: Nfs4Server, client: Client, caller: RpcCredential, credential: Credential, node: Node, owner: bytes,
    access: int, deny: int, seqid: int,
) -> tuple[OpenState, int] | None:  # fmt: skip
    """Open a file that is there, by its node, as :func:`nfsd.v4.ops.opens.open_` does; None: it must see to it. The
    state and rflags. In v4.0, the owner's ``seqid`` has begun then."""
    engine = server.engine
    grace = engine.grace
    if not engine.stable or grace.active or grace.unheard or (client.minor and not client.reclaim_complete):
        return None
    opened = _opened(server, credential, node, access)
    if opened is None:
        return None
    state = turn = None
    try:
        holder = engine.opens.owner(client, owner) if client.minor else begin(server, client, owner, seqid)
        turn = None if client.minor else holder
        reservation = engine.opens.reserve(holder, node.key, access, deny, reclaim=False)
        try:
            if not _promised_more(engine):
                state = reservation.commit()
        finally:
            if state is None:
                reservation.abort()
    except Nfs4Error:
        pass
    if state is None:
        if turn is not None:
            turn.abandon()
        opened.release()
        return None
    _keep_open(state, opened, credential, access, caller)
    state.file.node = node
    return state, _open_flags(server, state)


def _promised_more(engine: StateEngine) -> bool:
    """Whether the reply has to wait for stable storage now: who was in the way, a courtesy client or one that has not
    been heard of since the grace period, must not reclaim after another restart what somebody else has (RFC 8881
    section 8.4.3)."""
    return not engine.stable


def _opened(server: Nfs4Server, credential: Credential, node: Node, access: int) -> OpenFile | None:
    """The file open for this access, with a count; None if that takes more than a moment, or is refused."""
    service, exactly = server.service, server.leases
    wanted = _BOTH if exactly and access == _WRITE else access
    if node.mount.inline and node.inode.lease is None and service.shares.has_room(credential.host, node.mount.lane):
        try:
            read, write = bool(wanted & _READ), bool(wanted & _WRITE)
            return _result(
                service.open(credential, node, read=read, write=write, owner_override=False, exactly=exactly)
            )
        except OSError:
            return None
    if wanted & _WRITE and node.export.read_only:
        return None
    for wider in (wanted,) if exactly or wanted == _BOTH else (wanted, _BOTH):
        opened = service.cached_open(node.inode, (credential, wider, False))
        if opened is not None and service.shares.take(opened, credential.host):
            return opened
    return None


def _result(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("what has nothing to wait for has waited")


def may_resize(server: Nfs4Server, file_key: bytes) -> bool:
    """Whether a special stateid lets a SETATTR set a file's size (:meth:`StateidTable.check_io`)."""
    try:
        server.engine.opens.check_anonymous(file_key, write=True)
    except Nfs4Error:
        return False
    return server.engine.stable


def closable(server: Nfs4Server, state: OpenState, seqid: int) -> bool:
    """Whether a CLOSE leaves no locks to be given up, and need not queue; in v4.0, whether it is its owner's next."""
    if not state.client.minor and not (state.owner.confirmed and _is_next(state.owner, seqid)):
        return False
    return server.engine.stable and not state.lock_states and not state.file.dirty and _free(state.file)


def _free(file: FileState) -> bool:
    """Whether nobody is changing the file's locks."""
    return file.gate is None or not file.gate.locked()


def close(server: Nfs4Server, state: OpenState, seqid: int) -> Stateid:
    """CLOSE of what is ``closable``, as :func:`nfsd.v4.ops.opens.close` does it; the stateid to answer with. In v4.0,
    the owner's ``seqid`` has begun then."""
    if not state.client.minor:
        server.engine.opens.begin_seqid(state.stateid, seqid)
    stateid = server.engine.opens.close(state)
    server.blocked.tell()
    return stateid


def confirm(server: Nfs4Server, state: OpenState, seqid: int) -> Stateid | None:
    """v4.0: OPEN_CONFIRM of an open, as :func:`nfsd.v4.ops.opens.open_confirm` does it; None: it must see to it."""
    if state.owner.confirmed or not server.engine.stable or not _is_next(state.owner, seqid):
        return None
    server.engine.opens.begin_seqid(state.stateid, seqid)
    return server.engine.opens.confirm(state)


def lock40(
    server: Nfs4Server, transport: Transport, node: Node, given: Stateid, owner: tuple[int, bytes] | None,
    exclusive: bool, offset: int, length: int, seqid: int, lock_seqid: int,
) -> tuple[Stateid, SeqidOwner] | None:  # fmt: skip
    """As :func:`lock`, in v4.0, and the owner whose ``seqid`` has begun: the open's for a new lock ``owner`` (client id
    and name), which has a ``lock_seqid`` of its own."""
    engine = server.engine
    if not engine.stable:
        return None
    try:
        holder: OpenState | LockState
        if owner is None:
            holder = engine.stateids.find_lock(given, None, node.key)
        else:
            holder = engine.stateids.find_open(given, None, node.key)
            if engine.clients.client40(owner[0], server.exports.speaker(transport)) is not holder.client:
                return None
        if not _is_next(holder.owner, seqid):
            return None
        turn, _ = holder.owner, engine.opens.begin_seqid(given, seqid)
    except Nfs4Error:
        return None
    client = holder.client
    known = client.lock_owners.get(owner[1]) if owner is not None else None
    before = known.seqid if known is not None else None
    name = owner[1] if owner is not None else None
    stateid = lock(server, client, node, given, name, exclusive, offset, length, lock_seqid)
    if stateid is None:
        turn.abandon()
        if known is not None:
            known.seqid = before  # what is refused moves it on; it is asked for again
        return None
    return stateid, turn


def unlock40(
    server: Nfs4Server, node: Node, given: Stateid, offset: int, length: int, seqid: int
) -> tuple[Stateid, SeqidOwner] | None:
    """As :func:`unlock`, in v4.0: with the owner, whose ``seqid`` has begun."""
    engine = server.engine
    if not engine.stable:
        return None
    try:
        holder = engine.stateids.find_lock(given, None, node.key)
        if not _is_next(holder.owner, seqid):
            return None
        turn, _ = holder.owner, engine.opens.begin_seqid(given, seqid)
    except Nfs4Error:
        return None
    stateid = unlock(server, holder.client, node, given, offset, length)
    if stateid is None:
        turn.abandon()
        return None
    return stateid, turn


def lock(
    server: Nfs4Server, client: Client, node: Node, given: Stateid, owner: bytes | None, exclusive: bool, offset: int,
    length: int, lock_seqid: int = 0,
) -> Stateid | None:  # fmt: skip
    """LOCK that can be had, as :func:`nfsd.v4.ops.locks.lock` does it; None: it must see to it. ``owner``: of a new
    lock owner, whose open's stateid is given; ``lock_seqid``: its first in v4.0."""
    engine = server.engine
    if not engine.stable or not _locks_without_waiting(node):
        return None
    try:
        holder = (
            engine.stateids.find_lock(given, _of(client), node.key)
            if owner is None
            else engine.stateids.find_open(given, _of(client), node.key)
        )
        file = holder.file
        if file.waiters or not _free(file):
            return None  # who asks in vain joins them, or leaves
        if isinstance(holder, OpenState):
            assert owner is not None
            plan = engine.locks.lock_new(
                holder, owner, exclusive, offset, length, reclaim=False, wait=False, lock_seqid=lock_seqid
            )
        else:
            plan = engine.locks.lock(holder, exclusive, offset, length, reclaim=False, wait=False)
        with plan:
            if _promised_more(engine):
                return None
            service, host = server.service, client.account.address
            service.check_room_for_locks(node, host)
            if plan.local is not None:
                if node.inode.locks is None:
                    return None  # its descriptor has to be opened first
                start, size, kind = plan.local
                _result(service.set_local_lock(node, start, size, exclusive=kind))
            file.node = node
            stateid = plan.commit()
            service.hold_locks(node, host)
    except (Nfs4Error, OSError):
        return None
    server.blocked.tell()
    return stateid


def unlock(server: Nfs4Server, client: Client, node: Node, given: Stateid, offset: int, length: int) -> Stateid | None:
    """LOCKU, as :func:`nfsd.v4.ops.locks.locku` does it; None: it must see to it."""
    engine = server.engine
    if not engine.stable or not _locks_without_waiting(node):
        return None
    try:
        state = engine.stateids.find_lock(given, _of(client), node.key)
        if state.file.node is not node or not _free(state.file):
            return None
        stateid = engine.locks.unlock(state, offset, length)
        _result(server.clear_local(state.file))
    except (Nfs4Error, OSError):
        return None  # to unlock once more does no harm
    return stateid


def _of(client: Client) -> Client | None:
    """The client as tables of stateids take it: in v4.0 the stateid tells it."""
    return client if client.minor else None


def _locks_without_waiting(node: Node) -> bool:
    """Whether locks towards local processes wait for nothing."""
    return (node.mount.inline or node.mount.caching) and not node.inode.lock_serial.busy
