"""Networks within networks, with hosts at the end: how many connections each has, and which has most.

Owns what :mod:`rpcrdma.hosts` decides by who gives way, and the state engine for clients; imports addresses.

A group's parts are sorted by weight: their connections, but no less than ``floor``. So parts that hold few weigh the
same. However many connections and parts there are, one that comes or goes takes the same time.
"""

from __future__ import annotations

import random
import weakref
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from rpcrdma.addresses import networks_of

Seat = TypeVar("Seat")

WINDOW = 10.0
"""Seconds over which displacements are counted."""
FIRST_COMERS = 32
"""Of the largest networks, those that hold nothing, that may displace somebody meanwhile whatever others do."""


class Bag(Generic[Seat]):
    """Things to be picked from by chance."""

    __slots__ = ("_places", "_things")

    def __init__(self) -> None:
        self._things: list[Seat] = []
        self._places: dict[Seat, int] = {}

    def __len__(self) -> int:
        return len(self._things)

    def add(self, thing: Seat) -> None:
        """Add one that is not there."""
        self._places[thing] = len(self._things)
        self._things.append(thing)

    def discard(self, thing: Seat) -> bool:
        """Take one out; whether it was there."""
        place = self._places.pop(thing, None)
        if place is None:
            return False
        last = self._things.pop()
        if last is not thing:
            self._things[place] = last
            self._places[last] = place
        return True

    def some(self, count: int) -> list[Seat]:
        """So many of them; all, if there are no more. (Not one after the other: those that came together would be
        compared with each other only.)"""
        return random.sample(self._things, count) if count < len(self._things) else list(self._things)


class Group(Generic[Seat]):
    """A network, or a host, as a part of the network that it is in."""

    __slots__ = ("__weakref__", "_ranks", "callers", "connections", "floor", "key", "most", "parent", "silent")

    def __init__(self, key: str, parent: Group[Seat] | None, floor: int = 1) -> None:
        """``floor``: what its parts weigh at least."""
        self.key, self.parent = key, parent
        self.floor = floor
        self.connections = 0
        self.silent: OrderedDict[Seat, None] = OrderedDict()
        """Connections without a call yet, the oldest first."""
        self.callers: Bag[Seat] = Bag()
        """The others."""
        self._ranks: dict[int, Bag[Group[Seat]]] = {}
        """Its parts that have connections, by weight."""
        self.most = 0
        """The weight of the part that weighs most."""

    @property
    def weight(self) -> int:
        """Among the parts of its parent."""
        assert self.parent is not None
        return max(self.connections, self.parent.floor)

    def chain(self) -> list[Group[Seat]]:
        """From all there is to this."""
        found: list[Group[Seat]] = []
        group: Group[Seat] | None = self
        while group is not None:
            found.append(group)
            group = group.parent
        return found[::-1]

    def fullest(self) -> Group[Seat]:
        """The part that weighs most, or one of those."""
        return self.some_fullest(1)[0]

    def some_fullest(self, count: int) -> list[Group[Seat]]:
        """Parts that weigh most, so many if there are as many; none, if there are no parts."""
        return self._ranks[self.most].some(count) if self.most else []

    def crowd(self) -> Group[Seat]:
        """The smallest part of parts that is more than modest: where the connections are that are too many."""
        group = self
        while group.most > group.floor:
            group = group.fullest()
        return group

    def _grow(self) -> None:
        """It has a connection more."""
        group = self
        while (parent := group.parent) is not None:
            before = group.connections and group.weight
            group.connections += 1
            parent._moved(group, before, group.weight)
            group = parent
        group.connections += 1

    def _shrink(self) -> None:
        """It has a connection less."""
        group = self
        while (parent := group.parent) is not None:
            before = group.weight
            group.connections -= 1
            parent._moved(group, before, group.connections and group.weight)
            group = parent
        group.connections -= 1

    def _moved(self, part: Group[Seat], before: int, now: int) -> None:
        """A part weighs one more or less, or is new (``before`` 0), or gone (``now`` 0)."""
        if before == now:
            return
        if before:
            same = self._ranks[before]
            same.discard(part)
            if not same:
                del self._ranks[before]
        if now:
            if now not in self._ranks:
                self._ranks[now] = Bag()
            self._ranks[now].add(part)
        if now > self.most or self.most not in self._ranks:
            self.most = now  # one less than it was; 0 if that was the last of all

    def enter(self, seat: Seat) -> None:
        """A connection has come."""
        self._grow()
        group: Group[Seat] | None = self
        while group is not None:
            group.silent[seat] = None
            group = group.parent

    def call_made(self, seat: Seat) -> None:
        """The first call of a connection that is here."""
        group: Group[Seat] | None = self
        while group is not None:
            del group.silent[seat]
            group.callers.add(seat)
            group = group.parent

    def leave(self, seat: Seat) -> bool:
        """A connection is gone. Whether it was here."""
        if seat not in self.silent and not self.callers.discard(seat):
            return False
        group: Group[Seat] | None = self
        while group is not None:
            if group.silent.pop(seat, 0) == 0:
                group.callers.discard(seat)
            group = group.parent
        self._shrink()
        return True


class Networks(Generic[Seat]):
    """All networks that hosts are in, as long as somebody has hold of them."""

    def __init__(self, of_all: int, of_network: int, of_subnet: int) -> None:
        """What the parts of the whole, of a network and of a subnet of hosts weigh at least."""
        self.everybody: Group[Seat] = Group("", None, max(1, of_all))
        self._floors = max(1, of_network), max(1, of_subnet)
        self._groups: weakref.WeakValueDictionary[str, Group[Seat]] = weakref.WeakValueDictionary()

    def of(self, host: str) -> Group[Seat]:
        """The smallest network that a host is in, and those that it is in are there as well."""
        group, keys = self.everybody, networks_of(host)
        for network in keys:
            found = self._groups.get(network)
            if found is None:
                found = self._groups[network] = Group(network, group, self._floors[network == keys[-1]])
            group = found
        return group


class Displacements:
    """How often newcomers have lately taken the place of connections that make calls."""

    def __init__(self, of_host: int, of_network: int, of_site: int, of_all: int) -> None:
        """How many there may be in ten seconds: for newcomers of one host, of one network, of one of the largest
        networks, and of all."""
        self._most = of_host, of_network, of_site, of_all
        self._since = 0.0
        self._taken: Counter[str] = Counter()
        self._first_comers = 0

    def may(self, chain: Sequence[Group[Any]], now: float, *, site: bool = True) -> bool:
        """Whether another newcomer may do so, who is in these groups, its host last; it is counted. The first group is
        one of the largest networks, if ``site``; who is of one that holds nothing may once in a while in any case."""
        if now - self._since >= WINDOW:
            self._since = now
            self._taken.clear()
            self._first_comers = 0
        of_host, of_network, of_site, of_all = self._most
        first, host = chain[0], chain[-1]
        if site and not first.connections and not self._taken[first.key] and self._first_comers < FIRST_COMERS:
            self._first_comers += 1
        elif (
            self._taken[""] >= of_all
            or self._taken[host.key] >= of_host
            or self._taken[first.key] >= (of_site if site else of_network)
            or any(self._taken[group.key] >= of_network for group in chain[1:-1])
        ):
            return False
        else:
            self._taken[""] += 1
        self._taken.update(group.key for group in chain)
        return True


class Recent:
    """A number that counts less and less as time goes by."""

    __slots__ = ("_at", "_number")

    HALF = 600.0
    """Seconds after which it counts half: who is idle for some minutes is worth more than who never did much."""

    def __init__(self, now: float) -> None:
        self._number, self._at = 0.0, now

    def add(self, more: int, now: float) -> None:
        """So many, now."""
        self._number = self.at(now) + more
        self._at = max(now, self._at)

    def at(self, now: float) -> float:
        """What it is."""
        return float(self._number * 2 ** (min(self._at - now, 0.0) / self.HALF))
