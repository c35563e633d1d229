"""Blocked lock requests (READW_LT, WRITEW_LT): who waits for what, whose turn it is, and who waits for ever.

Operation. A denied request takes a place in its file's queue and keeps it as long as its client asks again. When a
range becomes free its first waiter is told (``notices``, for CB_NOTIFY_LOCK) and the range is kept for it, for a short
time only: a client may have given up without saying so. A waiter that cannot be told polls; for it, once it has waited
for some time, the range is kept around the moments when it is expected to ask, and not in between: if every lock
changed hands at the pace of polls, those who share a file would stand in line for a second each.

Deadlock. Owners that wait for each other's locks, over any number of files and clients, wait for ever. That a request
was denied says little of whether its process still waits, so a cycle is believed only when everybody in it has been
heard of again since it was first seen; who can be called back is called, to be heard of at once. What a client makes
its own processes wait for never gets here, and counts for nothing.

Work. A waiter remembers one client whose lock is in its way, found when it is denied and whenever something of the
file's locks goes. So to ask whether anybody waits for a client that has gone takes no search. Of several in the way
only one is remembered; the others' turns come when that one is gone. Those that have stopped asking are the first of
a queue.

Imports the records' types. RFC 8881 sections 9.6, 18.10, 20.11; RFC 7530 section 9.4.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from nfsd.state.accounts import WAITER
from nfsd.state.types import NLM

if TYPE_CHECKING:
    from nfsd.state.clients import Client
    from nfsd.state.engine import StateEngine
    from nfsd.state.files import FileState
    from nfsd.state.owners import LockOwner

KEEP = 2.0
"""Seconds for which a free range is kept for the waiter whose turn it is."""
POLLER_WAITS = 5.0
"""Seconds after which a waiter that has to poll is given a turn."""
LONGEST_POLL = 30.0
"""Seconds between two requests of a waiting client at most: what Linux does."""
ANSWER = 5.0
"""Seconds within which a waiting client that was called back has asked again; if not, it has stopped waiting."""
SEARCH = 1000
"""How many owners a search for a cycle looks at."""


class Waiter:
    """A blocked lock request."""

    __slots__ = (
        "asked", "blocker", "called", "client", "deaf", "end", "exclusive", "file", "handle", "interval",
        "notified", "order", "owner", "probed", "since", "start", "suspected", "waiting",
    )  # fmt: skip

    def __init__(self, file: FileState, client: Client, owner: bytes, span: tuple[int, int, bool], now: float) -> None:
        self.file = file
        self.client = client
        self.owner = owner
        self.start, self.end, self.exclusive = span
        self.handle = b""
        """The filehandle the client asked with: CB_NOTIFY_LOCK names it."""
        self.asked = self.since = now
        """When it was last and first asked for."""
        self.interval = 1.0
        """Between the two requests before, as far as they were the client's own idea (at first a guess)."""
        self.blocker: Client | None = None
        """One whose lock was in the way when that was last looked at."""
        self.called = False
        """Whether its client was called since."""
        self.deaf = False
        """A call failed: it polls, as far as one knows."""
        self.notified: float | None = None
        """When its client was told that the range may be free, if that was after the last request."""
        self.waiting = True
        """False once the owner has done something else: it may have stopped waiting, unless that was another thread."""
        self.order = 0
        """The number of its last request among all that were denied."""
        self.suspected: int | None = None
        """The number of the request with which it was first seen in a cycle."""
        self.probed: float | None = None
        """When the others in the cycle were called."""

    @property
    def steady(self) -> bool:
        """Whether it waits until it says otherwise (NLM's CANCEL), or is called with the lock: it need not ask
        again."""
        return self.client.minor == NLM

    @property
    def span(self) -> tuple[int, int, bool]:
        """What is asked for: start, end, exclusive."""
        return self.start, self.end, self.exclusive

    def clashes(self, start: int, end: int, exclusive: bool) -> bool:
        """Whether the two cannot both be granted to different owners."""
        return self.start < end and start < self.end and (self.exclusive or exclusive)

    def is_of(self, client: Client, owner: bytes) -> bool:
        """Whether this owner asked."""
        return self.client is client and self.owner == owner


class WaitTable:
    """All blocked requests of all files."""

    def __init__(self, engine: StateEngine) -> None:
        self._engine = engine
        self._by_client: dict[Client, dict[bytes, list[Waiter]]] = {}
        self._counts: dict[Client, int] = {}
        self._blocking: Counter[Client] = Counter()
        """Of how many waiters each is the ``blocker``."""
        self._asking: OrderedDict[Waiter, None] = OrderedDict()
        """Those that must ask again, who has asked last at the end."""
        self._stirred: dict[FileState, None] = {}
        """Files where somebody's turn may have come."""
        self._probes: dict[Waiter, None] = {}
        self._local: OrderedDict[Waiter, None] = OrderedDict()
        """Those that a local process keeps waiting, who was looked at last at the end."""
        self._denials = 0

    # -- the queue -----------------------------------------------------------------------------------------------
    def join(
        self, file: FileState, client: Client, owner: bytes, span: tuple[int, int, bool], handle: bytes
    ) -> Waiter | None:
        """A blocking request was denied: its place in the queue, the one it held before if it did. None when the file's
        or the client's queue is full: the client polls then like anybody, without a turn."""
        now = self._engine.now()
        waiter = self.find(file, client, owner, span)
        waited = waiter is not None and waiter.waiting
        self.busy(client, owner)  # with whatever else it waited for
        if waiter is None:
            limits = self._engine.limits
            octets = WAITER + len(owner)
            if (
                len(file.waiters) >= limits.waiters
                or self._counts.get(client, 0) >= limits.client_waiters
                or self._too_many(file, client)
                or not self._engine.ledger.room(client.account, octets)
            ):
                return None
            client.account.charge(octets)
            waiter = Waiter(file, client, owner, span, now)
            file.waiters.append(waiter)
            self._by_client.setdefault(client, {}).setdefault(owner, []).append(waiter)
            self._counts[client] = self._counts.get(client, 0) + 1
            self._engine.watch(now + self._patience)
        else:
            if not waited or now > waiter.asked + LONGEST_POLL + KEEP:
                waiter.suspected = None  # it may have stopped waiting, and begun again
            if not waiter.called:
                waiter.interval = min(max(now - waiter.asked, 0.1), LONGEST_POLL)
            waiter.asked = now
            waiter.notified = None
            waiter.called = False
        if not waiter.steady:
            self._asking[waiter] = None
            self._asking.move_to_end(waiter)
        self._conflict(waiter)
        self._denials += 1
        waiter.order = self._denials
        waiter.handle = handle
        waiter.waiting = True
        self._local.pop(waiter, None)
        return waiter

    def _too_many(self, file: FileState, client: Client) -> bool:
        """Whether the client's host has its share of the file's queue."""
        share = self._engine.limits.share(self._engine.limits.waiters)
        if len(file.waiters) < share:
            return False
        return sum(waiter.client.account is client.account for waiter in file.waiters) >= share

    def leave(self, file: FileState, client: Client, owner: bytes, span: tuple[int, int, bool]) -> bool:
        """The request was granted, or the client will not ask again (RFC 8881 section 9.6: a nonblocking request for
        the same lock says so). Whether it had a place in the queue."""
        waiter = self.find(file, client, owner, span)
        if waiter is not None:
            self._drop(waiter)
        return waiter is not None

    def busy(self, client: Client, owner: bytes) -> None:
        """The owner does something else: whether it still waits is not known until it asks again."""
        if client.minor != NLM:
            for waiter in self._by_client.get(client, {}).get(owner, ()):
                waiter.waiting = False

    def gone(self, client: Client, owner: bytes, file: FileState | None = None) -> None:
        """The owner waits no more, on this file or on any: its state is gone."""
        for waiter in list(self._by_client.get(client, {}).get(owner, ())):
            if file is None or waiter.file is file:
                self._drop(waiter)

    def forget_client(self, client: Client) -> None:
        """Nothing of the client waits any more."""
        for owner in list(self._by_client.get(client, {})):
            self.gone(client, owner)

    def sweep(self, now: float) -> None:
        """Give up the places of those that have stopped asking."""
        while self._asking:
            waiter = next(iter(self._asking))
            ends = waiter.asked + self._patience
            if now < ends:
                self._engine.watch(ends)
                return
            self._drop(waiter)

    def find(self, file: FileState, client: Client, owner: bytes, span: tuple[int, int, bool]) -> Waiter | None:
        """The place of a request in its file's queue, if it has one."""
        for waiter in self._by_client.get(client, {}).get(owner, ()):
            if waiter.file is file and waiter.span == span:
                return waiter
        return None

    def _drop(self, waiter: Waiter) -> None:
        file, client = waiter.file, waiter.client
        file.waiters.remove(waiter)
        client.account.charge(-WAITER - len(waiter.owner))
        owners = self._by_client[client]
        owners[waiter.owner].remove(waiter)
        if not owners[waiter.owner]:
            del owners[waiter.owner]
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client], self._by_client[client]
            if not client.states:
                client.emptied()
        self._probes.pop(waiter, None)
        self._asking.pop(waiter, None)
        self._local.pop(waiter, None)
        self._blocked_by(waiter, None)
        self.freed(file)  # who stood behind it may be next
        self._engine.opens.drop_if_idle(file)

    @property
    def _patience(self) -> float:
        """How long a place is kept for one that does not ask: a lease (RFC 8881 section 9.6), if Linux asks that often;
        it does not ask more often where leases are short."""
        return max(self._engine.limits.lease, 1.5 * LONGEST_POLL)

    def _alive(self, waiter: Waiter, now: float) -> bool:
        client = waiter.client
        return (waiter.steady or now < waiter.asked + self._patience) and not client.courtesy and not client.expired

    # -- whose turn it is ----------------------------------------------------------------------------------------
    def freed(self, file: FileState) -> None:
        """Something of the file's locks or queue went away."""
        if file.waiters:
            self._stirred[file] = None

    def reserved(self, file: FileState, client: Client, owner: bytes, span: tuple[int, int, bool]) -> Waiter | None:
        """The waiter for whom a range that is free is kept at the moment; None: the owner may have it."""
        now = self._engine.now()
        turns: list[Waiter] = []
        for waiter in file.waiters:
            if waiter.is_of(client, owner):
                if waiter.span == span:
                    return None  # its own turn comes before those behind it
                continue
            if self._expected(waiter, now) and self._grantable(waiter, now, turns):
                if waiter.clashes(*span):
                    self._stirred[file] = None  # who is refused now must hear of it when this turn is over
                    return waiter
                turns.append(waiter)
        return None

    def notices(self) -> list[Waiter]:
        """Whose clients to tell now that the lock may be had (CB_NOTIFY_LOCK); each is told once for every request of
        its own. To be asked after every operation and every turn of the timer."""
        now = self._engine.now()
        told = [waiter for waiter in self._probes if waiter.notified is None]
        self._probes.clear()
        # Where nothing new is granted for another server's sake, turns come when that is over.
        for file in () if self._engine.grace.elsewhere else list(self._stirred):
            pending = False
            turns: list[Waiter] = []
            for waiter in file.waiters:
                if not self._grantable(waiter, now, []):
                    continue
                if any(waiter.clashes(*turn.span) for turn in turns):
                    pending = True
                    continue
                if waiter.notified is None and _can_be_called(waiter):
                    waiter.notified = now
                    if waiter not in told:
                        told.append(waiter)
                if self._expected(waiter, now):
                    turns.append(waiter)
            if pending:
                self._engine.watch(now + 1.0)
            else:
                del self._stirred[file]
        for waiter in told:
            waiter.called = True
        return told

    def postponed(self, waiter: Waiter) -> None:
        """Its turn had come, and nothing new was granted by then: it comes again."""
        waiter.notified = None
        self.freed(waiter.file)

    @staticmethod
    def unreachable(waiter: Waiter) -> None:
        """A call to its client failed."""
        waiter.deaf = True

    def waits_for_any(self, client: Client) -> bool:
        """Whether the client waits for anything."""
        return client in self._counts

    def waits_on(self, client: Client, file: FileState, owner: bytes | None = None) -> bool:
        """Whether the client, or one owner of it, waits for a lock of this file."""
        return any(w.client is client and (owner is None or w.owner == owner) for w in file.waiters)

    def wanted(self, client: Client) -> bool:
        """Whether somebody waits for a lock of the client's."""
        return client in self._blocking

    def blocked_locally(self, waiter: Waiter) -> None:
        """A local process is in the waiter's way: nobody tells when it goes."""
        self._local[waiter] = None

    def locally_blocked(self, most: int) -> list[Waiter]:
        """So many of those whom a local process keeps waiting, in turns: somebody must look from time to time whether
        it still does, and say ``locally_free``."""
        waiters = list(itertools.islice(self._local, most))
        for waiter in waiters:
            self._local.move_to_end(waiter)
        return waiters

    def is_locally_blocked(self, waiter: Waiter) -> bool:
        """Whether a local process was in the waiter's way when that was last looked at."""
        return waiter in self._local

    def locally_free(self, waiter: Waiter) -> None:
        """No local process is in the waiter's way any more."""
        if self._local.pop(waiter, 0) is None:
            self.freed(waiter.file)

    def _grantable(self, waiter: Waiter, now: float, turns: list[Waiter]) -> bool:
        """Whether nothing but those whose turn comes before it (of these ``turns``) is in its way."""
        holder = self._conflict(waiter)  # first, so that what is remembered is right
        if waiter in self._local or not self._alive(waiter, now):
            return False
        if holder is not None and not holder.courtesy:
            return False  # one that is kept out of courtesy goes when the lock is asked for
        return not any(waiter.clashes(*turn.span) for turn in turns)

    def _conflict(self, waiter: Waiter) -> Client | None:
        """A client whose lock is in the waiter's way; it is remembered."""
        locks = waiter.file.locks
        owner = waiter.client.lock_owners.get(waiter.owner)
        found = None if locks is None else locks.conflict(owner, *waiter.span)
        holder = None if found is None else found[0].client
        self._blocked_by(waiter, holder)
        return holder

    def _blocked_by(self, waiter: Waiter, holder: Client | None) -> None:
        before, waiter.blocker = waiter.blocker, holder
        if before is holder:
            return
        if before is not None:
            self._blocking[before] -= 1
            if not self._blocking[before]:
                del self._blocking[before]
        if holder is not None:
            self._blocking[holder] += 1

    @staticmethod
    def _expected(waiter: Waiter, now: float) -> bool:
        """Whether it is likely to ask about now: after it was told, or when it polls next. Clients poll in equal
        intervals or, as Linux does, double them. Nothing is kept for one that may have stopped waiting."""
        if not waiter.waiting:
            return False
        if waiter.notified is not None and now <= waiter.notified + KEEP:
            return True
        if now < waiter.since + POLLER_WAITS:
            return False
        since = now - waiter.asked
        return abs(since - waiter.interval) <= KEEP or abs(since - min(2 * waiter.interval, LONGEST_POLL)) <= KEEP

    # -- deadlock ------------------------------------------------------------------------------------------------
    def deadlocked(self, waiter: Waiter) -> bool:
        """Whether the waiter, which has just been denied again, waits for itself: everybody in the cycle was heard of
        since it was first seen, and lately."""
        now = self._engine.now()
        since = waiter.suspected
        if self._cycle(waiter, lambda w: w.steady or (since is not None and w.order > since and self._fresh(w, now))):
            return True
        cycle = self._cycle(waiter, lambda w: self._alive(w, now))
        if not cycle:
            waiter.suspected = waiter.probed = None
            return False
        if since is None:
            waiter.suspected = waiter.order
        if waiter.probed is None or now >= waiter.probed + ANSWER:
            waiter.probed = now
            self._probes.update((w, None) for w in cycle if w is not waiter and not w.steady and _can_be_called(w))
        return False

    @staticmethod
    def _fresh(waiter: Waiter, now: float) -> bool:
        """Whether it has asked as lately as one would that still waits."""
        if _can_be_called(waiter):
            return now <= waiter.asked + ANSWER
        return now <= waiter.asked + min(2 * waiter.interval, LONGEST_POLL) + KEEP

    def _cycle(self, start: Waiter, counts: Callable[[Waiter], bool]) -> list[Waiter]:
        """The shortest cycle of waiters that leads back to the owner of the first; empty: there is none. Gives up after
        a bounded search."""
        owner = start.client.lock_owners.get(start.owner)
        if owner is None or not owner.states:
            return []  # it holds nothing that anybody could wait for
        before: dict[Waiter, Waiter | None] = {start: None}
        seen: set[LockOwner] = set()
        queue = deque([start])
        while queue and len(seen) < SEARCH:
            waiter = queue.popleft()
            for holder in self._blockers(waiter):
                if holder is owner:
                    return _path(waiter, before)
                if holder in seen:
                    continue
                seen.add(holder)
                for following in self._by_client.get(holder.client, {}).get(holder.owner, ()):
                    if following.waiting and following not in before and counts(following):
                        before[following] = waiter
                        queue.append(following)
        return []

    @staticmethod
    def _blockers(waiter: Waiter) -> Iterator[LockOwner]:
        locks = waiter.file.locks
        if locks is None:
            return iter(())
        owner = waiter.client.lock_owners.get(waiter.owner)
        return locks.holders(owner, *waiter.span, limit=SEARCH)


def _path(last: Waiter, before: dict[Waiter, Waiter | None]) -> list[Waiter]:
    path: list[Waiter] = []
    at: Waiter | None = last
    while at is not None:
        path.append(at)
        at = before[at]
    return path[::-1]


def _can_be_called(waiter: Waiter) -> bool:
    """Whether there is a way to call the client (4.0 has no CB_NOTIFY_LOCK, and its client no session)."""
    return waiter.steady or (
        not waiter.deaf and any(session.backchannel.usable for session in waiter.client.sessions.values())
    )
