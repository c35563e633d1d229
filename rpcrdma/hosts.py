"""Who holds what: one record per client address, and who gives way when connections run out.

Owns :class:`Hosts`, shared by all listeners and providers; imports the pool. A client is its IPv4 address, or the /64
of its IPv6 address: within one of these a peer has as many addresses as it likes.

Seats
    Every connection, half-open ones included, has a seat. Seats are bounded for each host and in all. At the host's own
    bound one of its connections gives way to a new one; at the bound in all, one of the host that has most, if that is
    more than the newcomer's has. Within a host go first those that never made a call, the oldest first; then, of a few,
    that which has made fewest calls and has none in progress. When nobody is worse, the newcomer is refused. This takes
    the same time however many there are. Calls of hosts that may make none but NULL do not count: their connections
    give way as those without a call.

Calls
    Calls in progress are bounded for each host and in all; a host that has none may always begin one. A connection
    whose call has to wait is not read from, and those that wait take turns.

Memory
    The connections of a host share an account of the pool (:class:`rpcrdma.memory.Host`).

Headway
    While memory is short, a connection that holds much of it and waits for its peer must give some of it back; one that
    holds much and waits for more memory gives way when its host uses more than its part.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rpcrdma import memory
from rpcrdma.addresses import host_of as host_of
from rpcrdma.log_limits import limited_logger
from rpcrdma.memory import Account, Pool

_log = limited_logger(__name__)

_LOOKS = 8
"""Connections of a host that are compared to find who gives way."""
_SILENCE = 5.0
"""Seconds without a call after which a connection may give way to another host's first."""
_WINDOW = 15.0
"""Seconds that headway is looked at over."""
_PATIENCE = 60.0
"""Seconds that a connection may wait for memory which its own host has used up."""
_SLOWEST = 64 << 10
"""Octets a second that must be given back meanwhile."""
TURN = 0.002
"""Seconds in which a connection begins calls before the others have their turn: a listing of a megabyte takes 50 ms,
and whoever waits should wait for one of each connection, not for all of them. Connections with more to do than their
turns take share it, for all of them come before whoever waits."""
_MUCH = 1 << 20
"""Octets that a connection may hold without being looked at."""


class Refused(Exception):
    """A connection is refused; the text says why. ``reason`` is the counter's name."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Member(Protocol):
    """A connection, as it is seen from here."""

    @property
    def served(self) -> int:
        """Calls that it has made."""

    @property
    def idle(self) -> bool:
        """Whether no call is in progress."""

    def evict(self, reason: str) -> None:
        """Close at once."""

    def proceed(self) -> None:
        """Take further calls: there may be room for them. Nothing else may be done before this returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """Bounds on connections, in all and of one host; octets of memory of one host; calls in progress."""

    connections: int = 1024
    host_connections: int = 256
    host_memory: int = 128 << 20
    calls: int = 8192
    host_calls: int = 1024


class Seat:
    """One connection's place among its host's."""

    __slots__ = (
        "_holding_since",
        "_hosts",
        "_returned_then",
        "_starved_since",
        "_waits_for_turn",
        "called",
        "host",
        "member",
        "queued",
        "since",
    )

    member: Member
    """To be set by the owner before it returns to the loop."""

    def __init__(self, hosts: Hosts, host: Host, now: float) -> None:
        self._hosts, self.host = hosts, host
        self.since = now
        self.called = False
        """Whether a call has been made."""
        self._holding_since: float | None = None
        self._returned_then = 0
        self._starved_since: float | None = None
        self.queued = False
        """Whether a call waits for its host's others."""
        self._waits_for_turn = False

    def account(self, limit: int) -> Account:
        """A share of the host's memory."""
        return self.host.memory.account(limit)

    def call_made(self) -> None:
        """The connection's first call has come, of a host that calls are executed of."""
        if not self.called:
            self.called = True
            if self.host.silent.pop(self, 0) is None:
                self._hosts.silent.pop(self, None)
                self.host.callers[self] = None

    def leave(self) -> None:
        """The connection is gone; calls in progress still count. Idempotent."""
        self._hosts.leave(self)

    def begin_call(self) -> bool:
        """Count a call in progress. False: there are too many; ``member.proceed`` is called when there may be room."""
        host, hosts = self.host, self._hosts
        if not hosts.may_begin(host):
            if not self.queued:
                hosts.events["delayed_calls"] += 1
                self.queued = True
                hosts.queue.append(self)
            return False
        host.calls += 1
        hosts.calls += 1
        return True

    def end_call(self) -> None:
        """A call that was counted is over."""
        self.host.calls -= 1
        hosts = self._hosts
        hosts.calls -= 1
        if hosts.queue:
            hosts.let_proceed()

    def begin_turn(self) -> float:
        """Seconds in which to begin calls."""
        hosts = self._hosts
        if self._waits_for_turn:
            self._waits_for_turn = False
            hosts.waiting_for_turns -= 1
        return TURN / (1 + hosts.waiting_for_turns)

    def cut_short(self) -> None:
        """The turn is over, and there are more calls to begin."""
        if not self._waits_for_turn:
            self._waits_for_turn = True
            self._hosts.waiting_for_turns += 1

    def stuck(self, now: float, account: Account, waits_for_peer: bool) -> bool:
        """Whether the connection holds much, while memory is short, and its peer does next to nothing about it. To be
        asked about every second."""
        if not (waits_for_peer and account.in_use > _MUCH and account.pressed):
            self._holding_since = None
        elif self._holding_since is None:
            self._holding_since, self._returned_then = now, account.returned
        elif now - self._holding_since >= _WINDOW:
            if account.returned - self._returned_then < _SLOWEST * (now - self._holding_since):
                return True
            self._holding_since, self._returned_then = now, account.returned
        return False

    def starved(self, now: float, account: Account, waits_for_memory: bool) -> bool:
        """Whether the connection has waited for memory for long, and holds some, and its host has too much."""
        if not (waits_for_memory and account.in_use):
            self._starved_since = None
        elif self._starved_since is None:
            self._starved_since = now
        else:
            waited = now - self._starved_since
            if waited >= _WINDOW and self._hosts.takes_too_much(self.host):
                return True
            # Those of one host that hold some and want more may wait for each other.
            return waited >= _PATIENCE and self.host.memory.pressed
        return False


class Host:
    """One client."""

    __slots__ = ("callers", "calls", "key", "memory", "silent")

    def __init__(self, key: str, memory: memory.Host) -> None:
        self.key, self.memory = key, memory
        self.silent: dict[Seat, None] = {}
        """Connections that have not made a call yet, the oldest first."""
        self.callers: dict[Seat, None] = {}
        """The others; those that were compared lately last."""
        self.calls = 0
        """In progress."""

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self.silent) + len(self.callers)

    def worst(self, *, busy: bool = False) -> Seat | None:
        """Which connection gives way; with ``busy`` one with calls in progress too, if need be."""
        for seat in self.silent:
            return seat
        looked_at = list(itertools.islice(self.callers, _LOOKS))
        for seat in looked_at:
            self.callers[seat] = self.callers.pop(seat)
        found = [seat for seat in looked_at if seat.member.idle] or (looked_at if busy else [])
        return min(found, key=lambda seat: seat.member.served, default=None)


class Hosts:
    """All clients that hold something."""

    def __init__(self, pool: Pool, limits: HostLimits | None = None) -> None:
        self.pool = pool
        self.limits = limits or HostLimits()
        self.events: collections.Counter[str] = collections.Counter()
        """Connections refused and closed for want of something, by reason."""
        self.connections = 0
        self.silent: dict[Seat, None] = {}
        """Connections of all hosts without a call yet, the oldest first."""
        self.calls = 0
        """In progress."""
        self.waiting_for_turns = 0
        """Connections with calls that their last turns were too short for."""
        self.queue: collections.deque[Seat] = collections.deque()
        """Connections whose calls wait for there being fewer."""
        self._hosts: dict[str, Host] = {}
        self._by_connections: dict[int, dict[Host, None]] = {}
        self._most = 0
        self._told: collections.Counter[str] = collections.Counter()
        self._ticked = 0.0

    def __len__(self) -> int:
        return len(self._hosts)

    def enter(self, address: str, now: float) -> Seat:
        """A seat for a new connection, perhaps another's. Raises Refused."""
        key = host_of(address)
        host = self._hosts.get(key)
        if host is None:
            host = Host(key, self.pool.host(self.limits.host_memory))
        try:
            self._make_room(host, now)
        except Refused as refused:
            self.events["refused_" + refused.reason] += 1
            raise
        self._hosts[key] = host
        seat = Seat(self, host, now)
        self._rank(host, host.connections, host.connections + 1)
        host.silent[seat] = self.silent[seat] = None
        self.connections += 1
        return seat

    def _make_room(self, host: Host, now: float) -> None:
        limits = self.limits
        if host.connections >= limits.host_connections:
            victim = host.worst()
            if victim is None:
                raise Refused("host_connections", f"too many connections of {host.key} ({host.connections})")
        elif self.connections >= limits.connections:
            victim = self._worst(host, now)
            if victim is None:
                raise Refused("connections", f"too many connections ({self.connections})")
        else:
            return
        self.evict(victim, "room", "to make room for another connection")

    def _worst(self, newcomer: Host, now: float) -> Seat | None:
        """Which connection of any host gives way to one of ``newcomer``."""
        largest = next(iter(self._by_connections[self._most]))
        if largest is newcomer:
            return largest.worst()
        if largest.connections > newcomer.connections + 1:
            victim = largest.worst(busy=not newcomer.connections)
            if victim is not None:
                return victim
        for seat in self.silent:
            return seat if not newcomer.connections and now - seat.since >= _SILENCE else None
        return None

    def evict(self, seat: Seat, event: str, reason: str) -> None:
        """Close a connection: its seat is free at once."""
        self.events["evicted_" + event] += 1
        self.leave(seat)
        seat.member.evict(reason)

    def leave(self, seat: Seat) -> None:
        """A connection is gone."""
        host = seat.host
        count = host.connections
        seat.begin_turn()  # it does not wait for one any more
        if host.silent.pop(seat, 0) is not None and host.callers.pop(seat, 0) is not None:
            return
        self.silent.pop(seat, None)
        seat.queued = False
        self.connections -= 1
        self._rank(host, count, count - 1)
        self._drop(host)

    def _rank(self, host: Host, before: int, now: int) -> None:
        """Keep hosts sorted by their connections, which change by one."""
        if before:
            same = self._by_connections[before]
            del same[host]
            if not same:
                del self._by_connections[before]
        if now:
            self._by_connections.setdefault(now, {})[host] = None
        if now > self._most or self._most not in self._by_connections:
            self._most = now

    def _drop(self, host: Host) -> None:
        """Forget a host that holds nothing."""
        if not host.connections and not host.memory.in_use and not host.calls:
            self._hosts.pop(host.key, None)

    def may_begin(self, host: Host) -> bool:
        """Whether the bounds allow the host another call. One each is allowed in any case: those that fill the bound in
        all may take long, and would keep everybody else from being served at all."""
        return not host.calls or (host.calls < self.limits.host_calls and self.calls < self.limits.calls)

    def let_proceed(self) -> None:
        """A call is over: one of the connections that wait may go on."""
        looks = 0
        while self.queue and looks < _LOOKS:
            seat = self.queue.popleft()
            if not seat.queued:
                continue  # it is closed
            if self.may_begin(seat.host):
                seat.queued = False
                seat.member.proceed()
                return
            self.queue.append(seat)
            looks += 1

    def takes_too_much(self, host: Host) -> bool:
        """Whether memory is short and the host uses more than its part of it."""
        return self.pool.pressed and host.memory.in_use >= self.pool.limit // max(1, len(self._hosts)) // 2

    def tick(self, now: float) -> None:
        """Look after memory, and say what happened. Every listener calls this about every second."""
        if now - self._ticked < 0.9:
            return
        self._ticked = now
        self.pool.tidy()
        for _ in range(len(self.queue)):
            self.let_proceed()  # whoever was told before may have had nothing to do after all
        for host in [host for host in self._hosts.values() if not host.connections]:
            self._drop(host)
        if self.events != self._told:
            news = {name: count - self._told[name] for name, count in self.events.items() if count != self._told[name]}
            self._told = collections.Counter(self.events)
            _log.warning("connections: %s", ", ".join(f"{name} {count}" for name, count in sorted(news.items())))

    def statistics(self) -> Mapping[str, int]:
        """What is held now."""
        return {
            "hosts": len(self._hosts),
            "connections": self.connections,
            "silent_connections": len(self.silent),
            "calls": self.calls,
            "most_connections_of_a_host": self._most,
            "most_memory_of_a_host": max((host.memory.in_use for host in list(self._hosts.values())), default=0),
        }
