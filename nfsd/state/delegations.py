"""Delegations: who may be given one, what conflicts with it, and how it comes back.

A delegation is made in two steps, since the layer above protects it against local processes in between: ``offer``
enters it in the tables (from then on it conflicts as if given), ``settle`` says whether it may be told to the client.
An operation that conflicts asks ``clear``; what is in the way is recalled, and the operation is answered DELAY unless
it comes back soon. Recalls are collected here and taken by the layer above, which sends them; what is not returned in
time is revoked. A holder whose lease has run out (courtesy) loses everything instead.

The policy is about the Linux server's: a read delegation for who reads a file that no other client has open for
writing, a write delegation for who writes a file that no other client has open at all, none for a while after one was
recalled (the file is shared, then), none beyond the limits.

RFC 8881 sections 10.2 to 10.4, 18.6, 18.16, 18.49; RFC 7530 sections 10.2 to 10.4, 16.8, 16.16. Imports records, codes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

from nfsd.protocol import nfs4 as codes
from nfsd.state.accounts import DELEGATION
from nfsd.state.errors import Nfs4Error
from nfsd.state.files import FileState
from nfsd.state.records import Delegation
from nfsd.state.types import Gone, StateidLike

if TYPE_CHECKING:
    from nfsd.state.clients import Client
    from nfsd.state.engine import StateEngine
    from nfsd.state.opens import OpenReservation
    from nfsd.state.records import OpenState

_PAUSED_FILES: Final = 65536
_RECALL_ANY_PERIOD: Final = 5.0
"""Seconds between two CB_RECALL_ANY to one client (RFC 8881 section 20.6.3 leaves it to the server)."""
_KEPT_OF_MANY: Final = 0.9
"""The part of its delegations a client is asked to keep when there are too many."""

Why = codes.why_no_delegation4


class Hold:
    """While it lasts, a file is not delegated: an operation is changing it. A context manager."""

    __slots__ = ("_holds", "_key")

    def __init__(self, holds: dict[bytes, int], key: bytes) -> None:
        self._holds = holds
        self._key = key

    def __enter__(self) -> Self:
        self._holds[self._key] = self._holds.get(self._key, 0) + 1
        return self

    def __exit__(self, *_: object) -> None:
        left = self._holds[self._key] - 1
        if left:
            self._holds[self._key] = left
        else:
            del self._holds[self._key]


def _nothing(_: Delegation) -> None:
    pass


def _no(_: Delegation) -> bool:
    return False


class DelegationTable:
    """All delegations."""

    def __init__(self, engine: StateEngine) -> None:
        self._engine = engine
        self.count = 0
        """Delegations now, revoked ones not among them."""
        self.granted = 0
        """Given so far, of files."""
        self.granted_directories = 0
        """Likewise, of directories."""
        self.reclaimed = 0
        """Of these, given back after a restart of the server."""
        self.recalled = 0
        """Recalls begun so far."""
        self.returned = 0
        """DELEGRETURNs so far."""
        self.revoked = 0
        """Revocations so far, for want of an answer to a recall."""
        self.on_gone: Callable[[Delegation], None] = _nothing
        """Called when a delegation has left the tables, however; must not call back into the engine."""
        self.on_overdue: Callable[[Delegation], None] = _nothing
        """Called when a delegation that was recalled has not come back, and is about to be revoked; likewise."""
        self._holds: dict[bytes, int] = {}
        self._paused: dict[bytes, float] = {}
        self._recalling: dict[Delegation, None] = {}
        self._to_recall: dict[Delegation, None] = {}
        self._asked: dict[Client, float] = {}
        self._to_ask: dict[Client, int] = {}

    @property
    def limit(self) -> int:
        """How many there may be at a time."""
        return self._engine.limits.delegations

    # -- giving --------------------------------------------------------------------------------------------------
    def offer(self, client: Client, file_key: bytes, *, write: bool, reclaim: bool = False) -> Delegation | Why:
        """A delegation for the client, or why there is none. ``reclaim``: the client had it before the restart, so
        only a conflict stands against it (RFC 8881 section 10.2.1)."""
        refusal = self.refusal(client, file_key, write=write, reclaim=reclaim)
        if refusal is not None:
            return refusal
        file = self._engine.opens.make_file(file_key)
        made = Delegation(self._engine.stateids.new_other(client), client, file, write)
        self._engine.stateids.add(made)
        file.delegations[client] = made
        client.delegations += 1
        client.account.delegations += 1
        self.count += 1
        self.reclaimed += reclaim
        return made

    def refusal(self, client: Client, file_key: bytes, *, write: bool, reclaim: bool = False) -> Why | None:
        """Why the client would not be given a delegation now; None: it would."""
        limits = self._engine.limits
        if client.expired or client.courtesy:
            return Why.WND4_RESOURCE
        if file_key in self._holds or self._contended(client, file_key, write=write):
            return Why.WND4_CONTENTION
        if reclaim:
            return None if limits.delegations else Why.WND4_RESOURCE
        if self._engine.grace.holds_back or self._in_pause(file_key):
            return Why.WND4_CONTENTION
        if (
            client.delegations >= limits.client_delegations
            or client.account.delegations >= limits.share(limits.delegations)
            or not self._engine.ledger.fits(client.account, DELEGATION)
        ):
            self._ask(client)
            return Why.WND4_RESOURCE
        if self.count >= limits.delegations:
            if limits.delegations:
                self._ask_all()
            return Why.WND4_RESOURCE
        return None

    def _contended(self, client: Client, file_key: bytes, *, write: bool) -> bool:
        """Whether other clients use the file in a way that conflicts, or it is delegated to this one already."""
        file = self._engine.opens.file(file_key)
        if file is None:
            return False
        if file.delegations and (write or client in file.delegations or self.writing(file) is not None):
            return True
        if not (write or file.access_write or file.deny_read):
            return False  # however many read it
        holders: list[OpenState | OpenReservation] = [*file.opens, *file.reservations]
        for holder in holders:
            if holder.owner.client is client:
                continue
            if write or holder.access & codes.OPEN4_SHARE_ACCESS_WRITE or holder.deny & codes.OPEN4_SHARE_DENY_READ:
                return True
        return False

    def _in_pause(self, file_key: bytes) -> bool:
        until = self._paused.get(file_key)
        if until is None:
            return False
        if until > self._engine.now():
            return True
        del self._paused[file_key]
        return False

    def settle(self, delegation: Delegation, *, directory: bool = False) -> bool:
        """What was offered is to be told to the client now: whether it may. If not, it is gone."""
        if delegation.unwanted or not self.holds(delegation):
            self.release(delegation)
            return False
        delegation.offered = False
        self.granted += not directory
        self.granted_directories += directory
        return True

    @staticmethod
    def holds(delegation: Delegation) -> bool:
        """Whether the delegation is in force: not returned, revoked or lost with its client."""
        return delegation.file.delegations.get(delegation.client) is delegation

    def held_by(self, client: Client, file_key: bytes) -> Delegation | None:
        """The client's delegation of a file."""
        file = self._engine.opens.file(file_key)
        if file is None:
            return None
        held = file.delegations.get(client)
        return None if held is None or held.offered else held

    @staticmethod
    def writing(file: FileState) -> Delegation | None:
        """The file's write delegation, beside which there is no other."""
        first = next(iter(file.delegations.values()), None)
        return first if first is not None and first.write else None

    def covers(self, client: Client, file_key: bytes, *, write: bool) -> bool:
        """Whether a delegation gives the client already what it asks for; ``write``: more than a read delegation."""
        held = self.held_by(client, file_key)
        return held is not None and (held.write or not write)

    def hold(self, file_key: bytes) -> Hold:
        """``with table.hold(key):`` nobody is given a delegation of the file meanwhile."""
        return Hold(self._holds, file_key)

    def is_held(self, file_key: bytes) -> bool:
        """Whether somebody holds the file, or the names in a directory."""
        return file_key in self._holds

    # -- conflicts -----------------------------------------------------------------------------------------------
    def clear(
        self, file_key: bytes, client: Client | None, *, write: bool, spared: Callable[[Delegation], bool] = _no
    ) -> bool:
        """Whether an operation may go on that reads (``write``: changes) a file. What other clients than ``client``
        (None: any) hold against it, and is not ``spared``, is being recalled otherwise."""
        if not self.count:
            return True
        while (one := self.in_the_way(file_key, client, write=write, spared=spared)) and one.client.courtesy:
            self._engine.expire_client(one.client, Gone.WANTED)
        if one is None:
            return True
        for delegation in list(one.file.delegations.values()):
            if delegation.client is not client and (write or delegation.write) and not spared(delegation):
                self.recall(delegation)
        return False

    def in_the_way(
        self, file_key: bytes, client: Client | None, *, write: bool, spared: Callable[[Delegation], bool] = _no
    ) -> Delegation | None:
        """A delegation that conflicts, of a courtesy client if there is one."""
        file = self._engine.opens.file(file_key)
        if file is None:
            return None
        if not write:
            writing = self.writing(file)
            return None if writing is None or writing.client is client or spared(writing) else writing
        found = None
        for delegation in file.delegations.values():
            if delegation.client is not client and not spared(delegation):
                found = delegation
                if delegation.client.courtesy:
                    break
        return found

    def other_writer(self, file_key: bytes, client: Client | None) -> Delegation | None:
        """Another client's write delegation: it may know the file's size and change attribute better than we do (RFC
        8881 section 10.4.3)."""
        if not self.count:
            return None
        found = self.in_the_way(file_key, client, write=False)
        return found if found is not None and not found.offered else None

    def recall(self, delegation: Delegation, within: float | None = None) -> None:
        """Ask for a delegation back; ``within``: seconds after which it is revoked, if that is less than usual."""
        if not self.holds(delegation):
            return
        self.pause(delegation.file.key)
        if delegation.offered:
            delegation.unwanted = True
            return
        limits = self._engine.limits
        period = limits.lease if limits.recall is None else limits.recall
        by = self._engine.now() + (period if within is None else min(period, within))
        if delegation.recall_by is None:
            self.recalled += 1
            self._recalling[delegation] = None
            self._to_recall[delegation] = None
            delegation.recall_by = by
        else:
            delegation.recall_by = min(delegation.recall_by, by)

    def pause(self, file_key: bytes) -> None:
        """The file is shared, it seems: leave it undelegated for a while."""
        now = self._engine.now()
        self._paused.pop(file_key, None)
        self._paused[file_key] = now + self._engine.limits.delegation_pause
        while self._paused:
            oldest = next(iter(self._paused))
            if self._paused[oldest] > now and len(self._paused) <= _PAUSED_FILES:
                break
            del self._paused[oldest]

    # -- what the layer above sends ------------------------------------------------------------------------------
    def take_recalls(self) -> list[Delegation]:
        """Delegations whose recall is to be sent; each is told once."""
        taken = [delegation for delegation in self._to_recall if self.holds(delegation)]
        self._to_recall.clear()
        return taken

    def take_recall_any(self) -> list[tuple[Client, int]]:
        """Clients to be sent CB_RECALL_ANY, and how many delegations each may keep."""
        taken = [(client, keep) for client, keep in self._to_ask.items() if not client.expired]
        self._to_ask.clear()
        return taken

    def _ask(self, client: Client) -> None:
        now = self._engine.now()
        if not client.minor or not client.delegations or now - self._asked.get(client, -1e9) < _RECALL_ANY_PERIOD:
            return  # CB_RECALL_ANY is of 4.1
        if len(self._asked) > 1000:
            self._asked.clear()
        self._asked[client] = now
        self._to_ask[client] = int(client.delegations * _KEPT_OF_MANY)

    def _ask_all(self) -> None:
        """Ask everybody who has more than a fair share."""
        holders = [client for client in self._engine.clients.all() if client.delegations]
        for client in holders:
            if client.delegations * len(holders) >= self.count:
                self._ask(client)

    # -- time ----------------------------------------------------------------------------------------------------
    def next_deadline(self) -> float | None:
        """When the first recalled delegation is overdue."""
        return min((one.recall_by for one in self._recalling if one.recall_by is not None), default=None)

    @property
    def recalling(self) -> int:
        """Delegations that were recalled and have not come back yet."""
        return len(self._recalling)

    def revoke_overdue(self, now: float) -> None:
        """Revoke what was recalled and has not come back (RFC 8881 section 10.4.6). What its client does not know it
        could not free either, and would be told of for ever: that just goes."""
        for delegation in list(self._recalling):
            if delegation.recall_by is None or delegation.recall_by > now:
                continue
            if delegation.disclaimed:
                self.release(delegation)
            else:
                self.on_overdue(delegation)
                self.revoke(delegation)

    def revoke(self, delegation: Delegation) -> None:
        """Take it from its client. In 4.1 the client is told by a status flag and the stateid's status until it frees
        it; in 4.0, which has neither, the stateid is BAD_STATEID from now on."""
        if not self.holds(delegation):
            return
        self.revoked += 1
        if delegation.client.minor:
            self._engine.revoke(delegation, codes.NFS4ERR_DELEG_REVOKED)
        else:
            self.release(delegation)
            # It hears of the loss when it uses the stateid: until it opens something again it has no claim.
            self._engine.forget_claims(delegation.client)

    # -- the end -------------------------------------------------------------------------------------------------
    def find(self, stateid: StateidLike, client: Client | None, file_key: bytes) -> Delegation:
        """The delegation of a stateid, as StateidTable.find; BAD_STATEID too when it is none or of another file."""
        entry = self._engine.stateids.find(stateid, client)
        if not isinstance(entry, Delegation) or entry.file.key != file_key:
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "not a delegation of this file")
        return entry

    def give_back(self, delegation: Delegation) -> None:
        """DELEGRETURN."""
        self.returned += 1
        self.release(delegation)

    def release(self, delegation: Delegation) -> None:
        """Take a delegation out of the tables (return, expiry, revocation…). Harmless when it is out."""
        if not self.holds(delegation):
            return
        file: FileState = delegation.file
        del file.delegations[delegation.client]
        self._recalling.pop(delegation, None)
        self._to_recall.pop(delegation, None)
        delegation.client.delegations -= 1
        delegation.client.account.delegations -= 1
        self.count -= 1
        self._engine.stateids.remove(delegation)
        for held in (delegation.lease, delegation.opened):
            if held is not None:
                self._engine.on_release(held)
        delegation.lease = delegation.opened = None
        self.on_gone(delegation)
        self._engine.opens.drop_if_idle(file)
