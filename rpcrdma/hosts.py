"""Who holds what: one record per client address, and who gives way when connections run out.

Owns :class:`Hosts`, shared by all listeners and providers; imports the pool and networks. A client is its IPv4 address,
or the /64 of its IPv6 address: within one of these a peer has as many addresses as it likes.

Seats
    Every connection has a seat, also while it is half open. Seats are bounded for each host and in all. When a host is
    at its own bound, one of its connections gives way to a new one. The oldest connection that never made a call goes
    first. If there is none, the least useful of a few goes: one that has no call in progress, is not quite new, and has
    made the fewest calls lately.

    At the bound in all, the newcomer's network is compared with the others. If it is among those that have most, its
    parts are compared next, down to hosts (:mod:`rpcrdma.networks`). A network that has more than the newcomer's gives
    way, with a connection that never made a call, or with the least useful of a few. So many addresses in one network
    are worth no more than a few. If no network has more, a host without any connection replaces one that has been
    silent for some time, or the least useful of a few. A host that has connections replaces one of its own that it has
    not used for some time, because its client may have forgotten that one. Connections that have made a call in the
    last minutes give way to newcomers only a few times a second (:class:`rpcrdma.networks.Displacements`), unless the
    newcomer's host makes more calls on each of its connections. If nobody is worse, the newcomer is refused.

    All this takes the same time however many connections there are. The calls of hosts that may make only NULL do not
    count: their connections give way like those without a call.

Calls
    Calls in progress are bounded for each host and in all. A host that has none may always begin one. A connection
    whose call has to wait is not read from, and those that wait take turns.

Memory
    The connections of a host share an account of the pool (:class:`rpcrdma.memory.Host`).

Pace
    They also share its rate, if it has one (:mod:`rpcrdma.pace`): then it has only a second's calls in progress.

Headway
    While memory is short, some connections that wait for their peer must give back half of what they hold within 15
    seconds, or all of it if that is at most a MiB. These are the connections that hold much, and those of hosts that
    use more than their part. So all memory comes back to be shared out again, at a pace that grows with it. A
    connection that holds much and waits for more memory gives way if its host uses more than its part.
"""

from __future__ import annotations

import collections
import itertools
import math
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from rpcrdma import memory
from rpcrdma.addresses import host_of as host_of
from rpcrdma.departed import DEPARTED
from rpcrdma.in_progress import AllCalls, CountingSeat, HostCalls
from rpcrdma.log_limits import limited_logger
from rpcrdma.memory import Account, Pool
from rpcrdma.networks import Displacements, Group, Networks, Recent
from rpcrdma.pace import Pace
from rpcrdma.paces import Paces

_log = limited_logger(__name__)

_LOOKS = 8
"""Connections of a host that are compared to find who gives way."""
_SILENCE = 5.0
"""Seconds without a call after which a connection may give way to another host's first, or to one of its own host's."""
_YOUTH = 10.0
"""Seconds in which a connection cannot have made many calls."""
_QUIET = 120.0
"""Seconds without a call after which nobody is hurt much, and what is in progress is something that the peer does not
take. NFSv4's clients renew their leases more often."""
_WINDOW = 15.0
"""Seconds that headway is looked at over."""
_PATIENCE = 60.0
"""Seconds that a connection may wait for memory which its own host has used up."""
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


class Seat(CountingSeat):
    """One connection's place among its host's."""

    __slots__ = (
        "_accounts",
        "_heard",
        "_holding_since",
        "_hosts",
        "_lately",
        "_return_to",
        "_seen",
        "_starved_since",
        "_waits_for_turn",
        "host",
        "member",
        "since",
    )

    member: Member
    """To be set by the owner before it returns to the loop."""

    def __init__(self, hosts: Hosts, host: Host, now: float) -> None:
        super().__init__(host.in_progress)
        self._hosts, self.host = hosts, host
        self.since = now
        self._accounts: list[Account] = []
        self._seen, self._lately = 0, Recent(now)
        self._heard = now
        self._holding_since: float | None = None
        self._return_to = 0
        self._starved_since: float | None = None
        self._waits_for_turn = False

    def account(self, limit: int) -> Account:
        """A share of the host's memory."""
        account = self.host.memory.account(limit)
        self._accounts.append(account)
        return account

    def look(self, now: float) -> None:
        """Note what calls have been made. To be called about every second."""
        served = self.member.served
        if served != self._seen:
            self._lately.add(served - self._seen, now)
            if self.called:
                self.host.lately.add(served - self._seen, now)
            self._seen, self._heard = served, now

    def lately(self, now: float) -> float:
        """About how many calls were made in the last minutes."""
        self.look(now)
        return self._lately.at(now)

    def unused(self, now: float) -> float:
        """Seconds without a call."""
        self.look(now)
        return now - self._heard

    def rank(self, now: float) -> tuple[bool, bool, int, int, int]:
        """Less than another's if this gives less: has nothing in progress, is not quite new, made fewer calls lately,
        has made none for longer, and holds more."""
        unused = self.unused(now)
        held = sum(account.in_use for account in self._accounts)
        lately = int(math.log2(1 + self._lately.at(now)))
        in_progress = not self.member.idle and unused < _QUIET
        return in_progress, now - self.since < _YOUTH, lately, -int(unused / _YOUTH), -held

    def call_made(self) -> None:
        """The connection's first call has come, of a host that calls are executed of."""
        if not self.called:
            self.called = True
            if self in self.host.silent:
                self.host.call_made(self)

    def leave(self) -> None:
        """The connection is gone; calls in progress still count. Idempotent."""
        self._hosts.leave(self)
        self.member = DEPARTED

    def delayed(self) -> None:
        """A call has to wait; ``member.proceed`` is called when there may be room."""
        self._hosts.events["delayed_calls"] += 1

    def let_others(self) -> None:
        """A call is over, and others wait."""
        self._hosts.let_proceed()

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
        """Whether the connection holds much, while memory is short, and its peer does too little about it. To be asked
        about every second."""
        looked_at = account.in_use > _MUCH or (account.in_use and self._hosts.takes_too_much(self.host))
        if not (waits_for_peer and looked_at and account.pressed):
            self._holding_since = None
        elif self._holding_since is None:
            self._hold(now, account)
        elif now - self._holding_since >= _WINDOW:
            if account.returned < self._return_to:
                return True
            self._hold(now, account)
        return False

    def _hold(self, now: float, account: Account) -> None:
        """Half of what is held must be given back by the window's end, but as much of it as is not much in any case."""
        self._holding_since = now
        self._return_to = account.returned + max(account.in_use // 2, min(account.in_use, _MUCH))

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


class Host(Group[Seat]):
    """One client."""

    __slots__ = ("in_progress", "lately", "memory", "pace")

    pace: Pace
    """From its first connection on."""

    def __init__(self, key: str, parent: Group[Seat], memory: memory.Host, now: float, in_progress: HostCalls) -> None:
        super().__init__(key, parent)
        self.memory = memory
        self.lately = Recent(now)
        """Calls that its connections have made."""
        self.in_progress = in_progress
        """Its calls."""

    @property
    def calls(self) -> int:
        """In progress."""
        return self.in_progress.calls

    def worst(self, now: float) -> Seat | None:
        """Which connection gives way to another one of this host."""
        for seat in self.silent:
            return seat
        return least(self, now)

    def unused(self, now: float, seconds: float) -> Seat | None:
        """One that no call has come by for so long, if there is one; its client may know nothing of it any more."""
        for seat in self.silent:
            if now - seat.since >= seconds:
                return seat
            break
        found = least(self, now, busy=True)
        return found if found is not None and found.unused(now) >= seconds else None


def least(group: Group[Seat], now: float, *, busy: bool = False) -> Seat | None:
    """Of a few connections that make calls the one that gives least; with ``busy`` one with calls in progress too, if
    need be."""
    found = (seat for seat in group.callers.some(_LOOKS) if busy or seat.member.idle or seat.unused(now) >= _QUIET)
    return min(found, key=lambda seat: seat.rank(now), default=None)


class Hosts:
    """All clients that hold something."""

    def __init__(self, pool: Pool, limits: HostLimits | None = None, paces: Paces | None = None) -> None:
        self.pool = pool
        self.paces = Paces() if paces is None else paces
        self.paces.weights.for_all.append(self._weigh)
        self.limits = limits or HostLimits()
        self.events: collections.Counter[str] = collections.Counter()
        """Connections refused and closed for want of something, by reason."""
        most = self.limits.connections
        self._networks: Networks[Seat] = Networks(most // 8, most // 16, most // 64)
        self.everybody = self._networks.everybody
        self.in_progress = AllCalls(self.limits.calls, self.limits.host_calls)
        """All calls."""
        self.waiting_for_turns = 0
        """Connections with calls that their last turns were too short for."""
        self.guard: Callable[[socket.socket], str] | None = None
        """Asked about each TCP connection, if there is one: why it is refused, or nothing."""
        self._hosts: dict[str, Host] = {}
        self._of_more_displaced = Displacements(of_host=8, of_network=32, of_site=32, of_all=96)
        self._of_equals_displaced = Displacements(of_host=4, of_network=8, of_site=16, of_all=32)
        self._told: collections.Counter[str] = collections.Counter()
        self._ticked = 0.0

    def __len__(self) -> int:
        return len(self._hosts)

    @property
    def calls(self) -> int:
        """In progress."""
        return self.in_progress.calls

    @property
    def connections(self) -> int:
        """Of all hosts."""
        return self.everybody.connections

    def enter(self, address: str, now: float, sock: socket.socket | None = None) -> Seat:
        """A seat for a new connection, perhaps another's; ``sock`` is its own, if it has one. Raises Refused."""
        if self.guard is not None and sock is not None and (why := self.guard(sock)):
            self.events["refused_user"] += 1
            _log.warning("%s is refused: %s", address, why)
            raise Refused("user", why)
        key = host_of(address)
        host = self.known(key) or self._new_host(key, now)
        try:
            self._make_room(host, now)
        except Refused as refused:
            self.events["refused_" + refused.reason] += 1
            raise
        if key not in self._hosts:
            self._hosts[key] = host
            host.pace = host.in_progress.pace = self.paces.of(key)
            host.memory.weight = self.paces.weights.of(key)
        seat = Seat(self, host, now)
        host.enter(seat)
        return seat

    def _new_host(self, key: str, now: float) -> Host:
        shared = self.pool.host(self.limits.host_memory)
        return Host(key, self._networks.of(key), shared, now, HostCalls(self.in_progress))

    def known(self, key: str) -> Host | None:
        """A host that holds something."""
        return self._hosts.get(key)

    def _weigh(self, key: str, weight: int) -> None:
        if key in self._hosts:
            self._hosts[key].memory.weight = weight

    def _make_room(self, host: Host, now: float) -> None:
        limits = self.limits
        if host.connections >= limits.host_connections:
            victim = host.worst(now)
            if victim is None:
                raise Refused("host_connections", f"too many connections of {host.key} ({host.connections})")
        elif self.connections >= limits.connections:
            victim = self._worst(host, now) or (host.unused(now, _SILENCE) if host.connections else None)
            if victim is None:
                raise Refused("connections", f"too many connections ({self.connections})")
        else:
            return
        self.evict(victim, "room", "to make room for another connection")

    def _worst(self, newcomer: Host, now: float) -> Seat | None:
        """Which connection of any host gives way to one of ``newcomer``."""
        chain = newcomer.chain()
        for depth, (group, own) in enumerate(itertools.pairwise(chain), 1):
            if group.most > own.weight + 1:
                return self._of_more(group.fullest(), newcomer, chain[depth:], now, site=depth == 1)
            if own.weight == group.floor:
                return None if newcomer.connections else self._of_equals(group, chain[1:], now)
            # This is one of those that have most: one of its own connections gives way.
        return newcomer.worst(now)

    def _of_more(
        self, group: Group[Seat], newcomer: Host, chain: list[Group[Seat]], now: float, *, site: bool
    ) -> Seat | None:
        """Of a group that has more than the newcomer's, the first of ``chain``."""
        for seat in group.silent:
            return seat
        found = least(group.crowd(), now, busy=not newcomer.connections)
        if found is not None and (
            found.unused(now) >= _QUIET
            or newcomer.lately.at(now) > (1 + newcomer.connections) * (1 + found.lately(now))
            or self._of_more_displaced.may(chain, now, site=site)
        ):
            return found
        return None if newcomer.connections else self._silent(now)

    def _of_equals(self, group: Group[Seat], chain: list[Group[Seat]], now: float) -> Seat | None:
        """Of a group all of whose parts are alike, for a host without any connection."""
        found = self._silent(now)
        if found is None:
            found = least(group, now, busy=True)
            if found is not None and not self._of_equals_displaced.may(chain, now):
                return None
        return found

    def _silent(self, now: float) -> Seat | None:
        """The connection that has been silent for longest, if that is long enough."""
        for seat in self.everybody.silent:
            return seat if now - seat.since >= _SILENCE else None
        return None

    def evict(self, seat: Seat, event: str, reason: str) -> None:
        """Close a connection: its seat is free at once."""
        self.events["evicted_" + event] += 1
        self.leave(seat)
        seat.member.evict(reason)

    def leave(self, seat: Seat) -> None:
        """A connection is gone."""
        seat.begin_turn()  # it does not wait for one any more
        if seat.host.leave(seat):
            seat.queued = False
            self._drop(seat.host)

    def _drop(self, host: Host) -> None:
        """Forget a host that holds nothing."""
        idle = not host.connections and not host.memory.in_use and not host.calls
        if idle and self._hosts.pop(host.key, None) is not None:
            self.paces.left(host.key)

    def let_proceed(self) -> None:
        """A call is over: one of the connections that wait may go on."""
        looks, queue = 0, cast("collections.deque[Seat]", self.in_progress.waiting)
        while queue and looks < _LOOKS:
            seat = queue.popleft()
            if not seat.queued:
                continue  # it is closed
            if seat.host.in_progress.may_begin():
                seat.queued = False
                seat.member.proceed()
                return
            queue.append(seat)
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
        self.paces.tidy()
        for _ in range(len(self.in_progress.waiting)):
            self.let_proceed()  # whoever was told before may have had nothing to do after all
        for host in [host for host in self._hosts.values() if not host.connections]:
            self._drop(host)
        if self.events != self._told:
            news = {name: count - self._told[name] for name, count in self.events.items() if count != self._told[name]}
            self._told = collections.Counter(self.events)
            _log.warning("connections: %s", ", ".join(f"{name} {count}" for name, count in sorted(news.items())))

    def statistics(self) -> Mapping[str, int]:
        """What is held now."""
        hosts = list(self._hosts.values())
        return {
            "hosts": len(self._hosts),
            "connections": self.connections,
            "silent_connections": len(self.everybody.silent),
            "calls": self.calls,
            "slowed_hosts": sum(pace.held for pace in self.paces.all().values()),
            "most_connections_of_a_host": max((host.connections for host in hosts), default=0),
            "most_memory_of_a_host": max((host.memory.in_use for host in hosts), default=0),
        }
