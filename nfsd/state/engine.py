"""The state engine: one object that owns every table and the clock, timers and stable-storage traffic between them.

Operation: calls of the tables are atomic. Expiry: a client whose lease ran out is kept as a courtesy client until
somebody wants what it holds, or ``limits.courtesy`` is over; then all it has goes at once, and its record on stable
storage with it. Stable storage: changes are queued here in order, handed to the store by ``take_writes``, acknowledged
by ``writes_done``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Final

from nfsd.protocol import nfs4 as codes
from nfsd.state.accounts import LOCK_OWNER, Ledger
from nfsd.state.charges import HostAccount
from nfsd.state.clients import Client, ClientTable
from nfsd.state.copies import CopyState, CopyTable
from nfsd.state.delegations import DelegationTable
from nfsd.state.errors import Nfs4Error
from nfsd.state.files import FileState
from nfsd.state.limits import Limits
from nfsd.state.locks import LockTable
from nfsd.state.nlm import NlmTable
from nfsd.state.opens import OpenTable
from nfsd.state.records import Delegation, LockState, OpenState, StateEntry
from nfsd.state.recovery import Grace, Recovered, StoreWrite
from nfsd.state.sessions import SessionTable
from nfsd.state.stateids import StateidTable, StateKind
from nfsd.state.types import NLM, UINT32_MAX, Connection, Gone, Unread

_ON_TRUST: Final = 3
"""Leases."""


def _nothing(*_: Any) -> None:
    pass


def _nothing_unread(_: Client) -> Unread:
    return Unread.NOTHING


class StateEngine:
    """All NFSv4 state of the server."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float],
        recovered: Recovered,
        *,
        random: Callable[[int], bytes] = os.urandom,
        on_release: Callable[[Any], None] | None = None,
    ) -> None:
        """``clock``: monotonic seconds. ``on_release(opened)``: called with an OpenState's ``opened`` when it goes away
        (CLOSE, expiry, a client restart…); must not call back into the engine."""
        self.limits = limits
        self.now = clock
        self.random = random
        self.on_release = on_release or _nothing
        self.on_gone: Callable[[Client, Gone], None] = _nothing
        """Called when a confirmed client's record is about to go, with what it has still there. Like the next ones, it
        must not call back into the engine."""
        self.on_away: Callable[[Client], None] = _nothing
        """Called when a client's lease has run out and what it has is kept out of courtesy."""
        self.unread: Callable[[Client], Unread] = _nothing_unread
        """Whether something that the client has sent is left unread, as its host goes too fast."""
        self.on_moved: Callable[[Client, str], None] = _nothing
        """Called when a client has shown itself at another address."""
        self.epoch = recovered.epoch & UINT32_MAX
        self._store_epoch = recovered.epoch
        self.grace = Grace(limits, recovered, clock())
        self.grace.on_new_lock = self._doubt_unheard
        self.ledger = Ledger(limits, clock)
        self.ledger.give_way = self._give_way
        self.clients = ClientTable(self)
        self.sessions = SessionTable(self)
        self.stateids = StateidTable(self)
        self.opens = OpenTable(self)
        self.locks = LockTable(self)
        self.copies = CopyTable(self)
        self.delegations = DelegationTable(self)
        self.nlm = NlmTable(self)
        self._sweep_at: float | None = None
        self._dirty_files: dict[FileState, None] = {}
        self._writes: list[StoreWrite] = []
        self._issued = 0
        self._committed = 0
        self.stable = True
        """Whether everything promised so far is on stable storage. A COMPOUND whose reply promises state (any that ran
        a state-changing operation) waits for this before the reply: ``await store.flush(engine)``."""

    # -- timers --------------------------------------------------------------------------------------------------
    def get_timer(self) -> float | None:
        """When ``handle_timer`` wants to be called next (clock time), or None."""
        times = [self._sweep_at] if self._sweep_at is not None else []
        if self.grace.active:
            times.append(self.grace.ends)
        overdue = self.delegations.next_deadline()
        if overdue is not None:
            times.append(overdue)
        return min(times, default=None)

    def handle_timer(self, now: float) -> None:
        """Expire leases, end the grace period, revoke delegations nobody returned. Drain ``files_to_clear`` and
        ``take_writes`` afterwards."""
        if self.grace.active and self.grace.expired(now):
            self.end_grace()
        self.delegations.revoke_overdue(now)
        if self._sweep_at is not None and now >= self._sweep_at:
            self._sweep(now)

    def watch(self, deadline: float) -> None:
        """A lease or period ends then."""
        if self._sweep_at is None or deadline < self._sweep_at:
            self._sweep_at = deadline

    def _sweep(self, now: float) -> None:
        """Look at every client whose time may be over, and at idle owners; find out when to look again."""
        self._sweep_at = None
        self.opens.sweep_files()
        self.opens.sweep_owners(now - self.limits.lease)
        self.locks.waits.sweep(now)
        self.nlm.sweep(now)
        for client in self.clients.all():
            self._sweep_client(client, now)
            if not client.expired:
                self.watch(client.lease_end + (self.limits.courtesy if client.courtesy else 0.0))
        if self._sweep_at is not None:
            # Leases are renewed all the time without moving the timer: look at most about once a second.
            self._sweep_at = max(self._sweep_at, now + 1.0)

    def _sweep_client(self, client: Client, now: float) -> None:
        if client.lease_end > now:
            return
        if client.courtesy:
            if now >= client.lease_end + self.limits.courtesy:
                self.expire_client(client)
        elif not client.confirmed:
            self.expire_client(client)  # RFC 8881 section 18.35.4, item 5 of the record's fields
        elif self._keep(client):
            pass
        elif self.limits.courtesy <= 0:
            self.expire_client(client, Gone.SILENT)
        elif self.locks.waits.wanted(client):
            self.expire_client(client, Gone.WANTED)
        else:
            client.courtesy = True
            self.clients.room.went(client)
            self.on_away(client)

    def _keep(self, client: Client) -> bool:
        """Renew the lease of a silent client, if a request of its is executing (RFC 8881 section 8.3) or may lie unread
        here; whether that is so. Where only its host is known to be held back, what lies there may be a neighbour's
        behind the same address: the client has few leases for that, until it is heard of."""
        on_trust = False
        if not client.busy:
            unread = self.unread(client)
            if unread is Unread.NOTHING:
                return False
            on_trust = unread is Unread.OF_ITS_HOST
        if on_trust:
            if client.lease_end != client.trusted_until:
                client.trusted = 0
            if client.trusted >= _ON_TRUST:
                return False
            client.trusted += 1
        client.renew()
        if on_trust:
            client.trusted_until = client.lease_end
        return True

    def statistics(self) -> dict[str, int]:
        """How much is remembered: octets, hosts, clients, sessions, stateids; and refusals for want of room so far."""
        return {
            "octets": self.ledger.octets,
            "hosts": len(self.ledger.hosts),
            "clients": len(self.clients),
            "sessions": len(self.sessions.by_id),
            "stateids": len(self.stateids.entries),
            "reply_octets": self.sessions.budget.promised,
            "refusals": self.ledger.refusals,
        }

    def held(self, clients: Iterable[Client]) -> dict[str, int]:
        """How many sessions, opens, delegations… there are; locked ranges: of these clients and the lock manager's."""
        counts = self.stateids.counts
        return {
            "sessions": len(self.sessions.by_id),
            "opens": counts[StateKind.OPEN],
            "lock_states": counts[StateKind.LOCK],
            "lock_ranges": sum(client.locks for client in (*clients, *self.nlm.all())),
            "delegations": self.delegations.count,
            "copies": counts[StateKind.COPY],
        }

    def shortage(self, client: Client, octets: int, own: int) -> Nfs4Error:
        """What to say to who asks for more than there is room for: ``own`` when the client or its host has as much as
        it may, since DELAY would have it ask for ever; DELAY when others have filled the rest. v4.0 has RESOURCE."""
        if client.minor not in (1, NLM):
            return Nfs4Error(codes.NFS4ERR_RESOURCE, "no room")
        if client.minor == NLM or self.ledger.fits(client.account, octets):
            return Nfs4Error(own, "limit per client")
        if self.ledger.over_share(client.account, octets):
            return Nfs4Error(own, f"the share of {client.account.host}")
        return Nfs4Error(codes.NFS4ERR_DELAY, "no room")

    def _give_way(self, account: HostAccount | None, enough: Callable[[], bool]) -> None:
        """See Ledger.give_way."""
        for client in self.clients.room.away(account):
            if enough():
                return
            self.expire_client(client, Gone.ROOM)

    # -- the end of clients and states ---------------------------------------------------------------------------
    def expire_client(self, client: Client, why: Gone = Gone.SILENT) -> None:
        """Give up everything a client has, and its records here and (before any reply that depends on it) on stable
        storage: expired, replaced by its next incarnation, or destroyed."""
        if client.expired:
            return
        if client.confirmed:
            self.on_gone(client, why)
        client.expired = True
        self.grace.unheard.discard(client)
        for session in list(client.sessions.values()):
            self.sessions.drop(session)
        for entry in list(client.states.values()):
            if isinstance(entry, OpenState):
                self.opens.release(entry)
            elif isinstance(entry, CopyState):
                self.copies.release(entry)
            elif isinstance(entry, Delegation):
                self.delegations.release(entry)
        for entry in list(client.states.values()):
            self.drop_revoked(entry)
        for owner in list(client.open_owners.values()):
            self.opens.forget_owner(owner)
        for holder in client.lock_owners.values():
            client.account.charge(-LOCK_OWNER - len(holder.owner))
        client.lock_owners.clear()
        self.locks.waits.forget_client(client)
        self.clients.forget(client, why)
        self._forget_record(client)

    def _forget_record(self, client: Client, *, earlier: bool = False) -> None:
        """Take a client off the record; ``earlier``: off an earlier instance's too."""
        if client.recorded or earlier:
            client.recorded = False
            self._remove_record(client, client.stored_principal)
            if earlier and client.claim not in ("", client.stored_principal):
                self._remove_record(client, client.claim)

    def _remove_record(self, client: Client, principal: str) -> None:
        self._write(StoreWrite("remove", client.minor, client.owner, principal, self._store_epoch))

    def drop_revoked(self, entry: StateEntry) -> None:
        """Forget a revoked state: its client has acknowledged the loss, or is gone."""
        client = entry.client
        self.stateids.remove(entry)
        if entry.status:
            client.revoked -= 1
            if not client.revoked and client.reclaim_complete and not client.expired:
                self.record_client(client)  # it knows now what it has lost

    def revoke(self, entry: StateEntry, status: int = codes.NFS4ERR_ADMIN_REVOKED) -> None:
        """Take an open, a lock state or a delegation from its client (administration, unanswered recall). What it held
        is free at once; the stateid answers ``status`` until the client frees it (RFC 8881 section 8.5)."""
        client = entry.client
        lost: list[StateEntry] = [entry]
        if isinstance(entry, OpenState):
            lost += entry.lock_states.values()
            self.opens.release(entry)
        elif isinstance(entry, LockState):
            self.locks.release(entry)
        elif isinstance(entry, Delegation):
            self.delegations.release(entry)
        for one in lost:
            one.status = status
            client.revoked += 1
            self.stateids.add(one)
        # RFC 8881 section 8.4.3: after a restart it could reclaim what another has held since, until it knows of this.
        self.forget_claims(client)

    def forget_claims(self, client: Client) -> None:
        """A client must not reclaim anything after a restart, for now: it does not know yet what it has lost."""
        self._forget_record(client, earlier=client.may_reclaim)

    def revoked_flags(self, client: Client) -> int:
        """The sr_status_flags for its revoked states (RFC 8881 section 18.46.3)."""
        flags = 0
        for entry in client.states.values():
            if entry.status == codes.NFS4ERR_ADMIN_REVOKED:
                flags |= codes.SEQ4_STATUS_ADMIN_STATE_REVOKED
            elif entry.status == codes.NFS4ERR_DELEG_REVOKED:
                flags |= codes.SEQ4_STATUS_RECALLABLE_STATE_REVOKED
            elif entry.status == codes.NFS4ERR_EXPIRED:
                flags |= codes.SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED
        return flags

    # -- connections ---------------------------------------------------------------------------------------------
    def connection_closed(self, connection: Connection) -> None:
        """Forget a connection: it is bound to nothing any more. To be called for every connection that a SEQUENCE,
        CREATE_SESSION or BIND_CONN_TO_SESSION came on (Transport.on_close, registered after the first of them)."""
        self.sessions.connection_closed(connection)

    # -- local locks left over by expiry -------------------------------------------------------------------------
    def note_dirty(self, file: FileState) -> None:
        """A file has ranges that may be held locally without need."""
        self._dirty_files[file] = None

    def files_to_clear(self) -> list[FileState]:
        """Files with ranges held locally that nobody needs (after expiry, client restart): take each one's gate, ask
        ``locks.local_clears``, clear. Each file is told once."""
        files = [file for file in self._dirty_files if file.dirty]
        self._dirty_files.clear()
        return files

    # -- stable storage ------------------------------------------------------------------------------------------
    def record_client(self, client: Client) -> None:
        """Put a client on record, unless it is, or has not acknowledged a revocation."""
        if not client.recorded and not client.revoked:
            client.recorded = True
            self._write(StoreWrite("record", client.minor, client.owner, client.stored_principal, self._store_epoch))
            if client.claim not in ("", client.stored_principal):
                # It was on record as another instance, or at another address.
                self._remove_record(client, client.claim)

    def reclaims_over(self, client: Client) -> None:
        """A client has said RECLAIM_COMPLETE; the grace period ends with the last one."""
        if self.grace.completed(client):
            self.end_grace()

    def end_grace(self) -> None:
        """End the grace period: who has not come back by now has no claim any more, in later instances either."""
        if self.grace.active:
            self.grace.end()
            self._write(StoreWrite("grace_done", epoch=self._store_epoch))
            for client in self.clients.all():
                if not client.states:
                    self.clients.room.emptied(client)  # nor anything to come
                if client.minor == 0 and client.may_reclaim and client.recorded:
                    client.unheard = True
                    self.grace.unheard.add(client)

    def _doubt_unheard(self) -> None:
        """Somebody gets a new lock: who may have missed some of its reclaims has no claim to any (RFC 7530 section
        9.6.3.4.2, the second edge condition) until it is heard of."""
        for client in self.grace.unheard:
            self._forget_record(client)
        self.grace.unheard.clear()

    def heard(self, client: Client) -> None:
        """A v4.0 client that came back in the grace period is heard of after it."""
        client.unheard = False
        self.grace.unheard.discard(client)
        self.record_client(client)

    def _write(self, write: StoreWrite) -> None:
        self._writes.append(write)
        self._issued += 1
        self.stable = False

    @property
    def writes_issued(self) -> int:
        """How many changes of stable storage there have been so far."""
        return self._issued

    @property
    def writes_committed(self) -> int:
        """How many of them are on stable storage."""
        return self._committed

    def take_writes(self) -> list[StoreWrite]:
        """Changes not yet handed to the store, in order."""
        writes, self._writes = self._writes, []
        return writes

    def writes_done(self, count: int) -> None:
        """The next ``count`` outstanding changes are on stable storage."""
        self._committed += count
        self.stable = self._issued == self._committed
