"""How many slots a session has: more on demand, fewer when the memory for replies runs short.

Owns :class:`SlotBudget`: what all sessions' reply caches may take together, and one client's. A session whose client
uses its last slot gets more, if the client has ever told of fewer slots in use (sa_highest_slotid): one that has not
takes its slots in turn or has but one, needs no more, and may take a target beyond what CREATE_SESSION granted for an
error (clients in the field do). A session asked to do with fewer (sr_target_highest_slotid, CB_RECALL_SLOT) keeps what
it has until its client shows that it knows: a new request on a slot whose last reply had the lower target, with a
sa_highest_slotid within it. A slot that comes back goes on with its old sequence id, or begins anew at 1; clients do
either.

RFC 8881 sections 2.10.6.1, 20.8.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nfsd.state.accounts import SLOT
from nfsd.state.limits import Limits
from nfsd.state.records import Slot

if TYPE_CHECKING:
    from nfsd.state.clients import Client
    from nfsd.state.sessions import Session


class SlotBudget:
    """The memory for cached replies, shared out among sessions as slots."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.promised = 0
        """Octets that the slots of all sessions may take."""
        self._recalls: dict[Session, None] = {}

    def affordable(self, cached: int, client: Client) -> int:
        """Slots of ``cached`` octets each that a client may have in addition."""
        limits = self._limits
        room = min(
            limits.client_cached_octets - client.cached_octets,
            limits.all_cached_octets - self.promised,
            limits.share(limits.all_cached_octets, 1 << 20) - client.account.cached_octets,
        )
        return min(max(room, 0) // max(cached, 1), max(client.account.left, 0) // SLOT)

    def open(self, session: Session) -> None:
        """Account for a new session's slots."""
        self._account(session, len(session.slots))

    def close(self, session: Session) -> None:
        """The session is gone."""
        self._recalls.pop(session, None)
        self._account(session, -len(session.slots))

    def _account(self, session: Session, slots: int) -> None:
        octets = slots * session.fore.maxresponsesize_cached
        self.promised += octets
        session.client.cached_octets += octets
        session.client.account.cached_octets += octets
        session.client.account.charge(slots * SLOT)

    def grow(self, session: Session) -> None:
        """The client uses the last slot: a quarter more, as far as the bounds allow."""
        have = len(session.slots)
        wanted = min(max(have // 4, 1), self._limits.slots - have)
        cached = session.fore.maxresponsesize_cached
        more = min(wanted, self.affordable(cached, session.client))
        if more <= 0:
            return
        for _ in range(more):
            retired = session.retired.pop() if session.retired else None
            session.slots.append(Slot() if retired is None else Slot(retired, True))
        self._account(session, more)
        session.highest_slotid = session.target_highest_slotid = len(session.slots) - 1
        self._recalls.pop(session, None)

    def shrink(self, session: Session, slots: int) -> None:
        """Ask the client to do with ``slots`` slots, at least one."""
        target = max(slots, 1) - 1
        if target >= session.target_highest_slotid:
            return
        session.target_highest_slotid = target
        session.generation += 1
        self._recalls[session] = None

    def relieve(self, wanted: int, sessions: Iterable[Session], spared: Session) -> None:
        """``spared`` has got ``wanted`` octets less than it would like: ask those of ``sessions`` that have most slots
        for half of theirs, as long as what they keep is more than what it has."""
        missing = wanted - max(self._limits.all_cached_octets - self.promised, 0)
        for session in sorted(sessions, key=lambda one: -one.target_highest_slotid):
            keep = (session.target_highest_slotid + 1) // 2
            if missing <= 0 or keep < len(spared.slots):
                return
            missing -= (session.target_highest_slotid + 1 - keep) * session.fore.maxresponsesize_cached
            self.shrink(session, keep)

    def seen(self, session: Session, slot: Slot, highest_slotid: int) -> None:
        """A new request, not yet marked with the present generation: retire what the client has given up."""
        target = session.target_highest_slotid
        if slot.generation != session.generation or highest_slotid > target or target == session.highest_slotid:
            return
        slots = session.slots
        before = len(slots)
        while len(slots) > target + 1 and not slots[-1].in_use:
            session.retired.append(slots.pop().seqid)
        self._account(session, len(slots) - before)
        session.highest_slotid = len(slots) - 1

    def take_recalls(self) -> list[Session]:
        """Sessions whose clients are to be told of a lower target by CB_RECALL_SLOT, once each."""
        sessions, self._recalls = list(self._recalls), {}
        return [session for session in sessions if session.target_highest_slotid < session.highest_slotid]
