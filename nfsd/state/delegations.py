"""Delegations: who may be given one, what conflicts with it, and how it comes back.

A delegation is made in two steps (:mod:`nfsd.state.delegating`), since the layer above protects it against local
processes in between: ``offer`` enters it in the tables (from then on it conflicts as if given), ``settle`` says whether
it may be told to the client.
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
from nfsd.state.delegating import Delegating
from nfsd.state.errors import Nfs4Error
from nfsd.state.records import Delegation
from nfsd.state.types import Gone, StateidLike

if TYPE_CHECKING:
    from nfsd.state.clients import Client
    from nfsd.state.engine import StateEngine

_PAUSED_FILES: Final = 65536
_RECALL_ANY_PERIOD: Final = 5.0
"""Seconds between two CB_RECALL_ANY to one client (RFC 8881 section 20.6.3 leaves it to the server)."""
_KEPT_OF_MANY: Final = 0.9
"""The part of its delegations a client is asked to keep when there are too many."""


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


class DelegationTable(Delegating):
    """All delegations."""

    def __init__(self, engine: StateEngine) -> None:
        super().__init__(engine)
        self.recalled = 0
        """Recalls begun so far."""
        self.revoked = 0
        """Revocations so far, for want of an answer to a recall."""
        self.on_overdue: Callable[[Delegation], None] = _nothing
        """Called when a delegation that was recalled has not come back, and is about to be revoked; likewise."""
        self._asked: dict[Client, float] = {}
        self._to_ask: dict[Client, int] = {}

    @property
    def limit(self) -> int:
        """How many there may be at a time."""
        return self._engine.limits.delegations

    # -- who has what ------------------------------------------------------------------------------------------
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

    def ask(self, client: Client) -> None:
        """Have a client asked to give some back, unless that was done just now."""
        now = self._engine.now()
        if not client.minor or not client.delegations or now - self._asked.get(client, -1e9) < _RECALL_ANY_PERIOD:
            return  # CB_RECALL_ANY is of 4.1
        if len(self._asked) > 1000:
            self._asked.clear()
        self._asked[client] = now
        self._to_ask[client] = int(client.delegations * _KEPT_OF_MANY)

    def ask_all(self) -> None:
        """Ask everybody who has more than a fair share."""
        holders = [client for client in self._engine.clients.all() if client.delegations]
        for client in holders:
            if client.delegations * len(holders) >= self.count:
                self.ask(client)

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
