"""Networks within networks, with hosts at the end: how much each has (connections, descriptors), and which has most.

Owns the comparison by which :mod:`rpcrdma.hosts` decides which connection gives way, the state engine which client, and
the file service which descriptor. Imports addresses.

The parts of a group are sorted by weight: what they have, but at least ``floor``. So parts that have little weigh the
same. Adding or removing one takes the same time, however many connections and parts there are.
"""

from __future__ import annotations

import random
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

from rpcrdma.addresses import networks_of

Seat = TypeVar("Seat")
G = TypeVar("G", bound="Part[Any]")

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


class Part(Generic[G]):
    """A network, or a host, as a part of the network that it is in, with how much it has."""

    __slots__ = (
        "__weakref__",
        "_least",
        "_ranked",
        "_ranks",
        "_upto",
        "floor",
        "has",
        "key",
        "most",
        "parent",
        "weight",
    )

    coarse = False
    """Whether weights tell what a part has but for a factor of two, so that they seldom change."""

    def __init__(self, key: str, parent: G | None, floor: int = 1) -> None:
        """``floor``: what its parts weigh at least."""
        self.key, self.parent, self.floor = key, parent, floor
        self.has = 0
        """Connections, or what else is counted."""
        self.weight = self._upto = 1 if parent is None else parent.floor
        """Among the parts of its parent; the same for what it has from ``_least`` to ``_upto``."""
        self._least = 0
        self._ranked = False
        self._ranks: dict[int, Bag[G]] = {}
        """Its parts that are to be found, by weight."""
        self.most = 0
        """The weight of the part that weighs most."""

    def chain(self) -> list[G]:
        """From all there is to this."""
        found: list[G] = []
        group: G | None = cast(G, self)
        while group is not None:
            found.append(group)
            group = group.parent
        return found[::-1]

    def fullest(self) -> G:
        """The part that weighs most, or one of those."""
        return self.some_fullest(1)[0]

    def some_fullest(self, count: int) -> list[G]:
        """Parts that weigh most, so many if there are as many; none, if there are no parts."""
        return self._ranks[self.most].some(count) if self.most else []

    def crowd(self) -> G:
        """The smallest part of parts that is more than modest: where there is too much."""
        group = cast(G, self)
        while group.most > group.floor:
            group = group.fullest()
        return group

    def grow(self) -> None:
        """It has one more, and so has what it is in."""
        group: Any = self
        while group is not None:
            group.has += 1
            if group.has > group._upto:
                group._weigh()
            group = group.parent

    def shrink(self) -> None:
        """It has one less."""
        group: Any = self
        while group is not None:
            group.has -= 1
            if group.has < group._least:
                group._weigh()
            group = group.parent

    def find(self) -> None:
        """Let it be found, and what it is in."""
        parent = self.parent
        if parent is not None and not self._ranked:
            self._ranked = True
            parent._enlist(cast(G, self))
            parent.find()

    def hide(self) -> None:
        """Let it not be found any more, nor what has no other parts that are."""
        parent = self.parent
        if parent is not None and self._ranked:
            self._ranked = False
            parent._delist(cast(G, self))
            if parent.most not in parent._ranks:
                parent.most = max(parent._ranks, default=0)
            if not parent._ranks:
                parent.hide()

    def _weigh(self) -> None:
        """It weighs more or less than it did."""
        parent, has = self.parent, self.has
        if parent is None:
            self._least, self._upto = 0, 1 << 62
            return
        if self._ranked:
            parent._delist(cast(G, self))
        if has <= parent.floor:
            self._least, self._upto = 0, parent.floor
        elif self.coarse:
            power = 1 << has.bit_length()
            self._least, self._upto = max(power // 2, parent.floor + 1), power - 1
        else:
            self._least = self._upto = has
        self.weight = self._upto
        if self._ranked:
            parent._enlist(cast(G, self))
            if parent.most not in parent._ranks:
                parent.most = self.weight  # the next lower one: its own was the most, and the last of those

    def _enlist(self, part: G) -> None:
        if part.weight not in self._ranks:
            self._ranks[part.weight] = Bag()
        self._ranks[part.weight].add(part)
        self.most = max(self.most, part.weight)

    def _delist(self, part: G) -> None:
        same = self._ranks[part.weight]
        same.discard(part)
        if not same:
            del self._ranks[part.weight]


class Tree(Generic[G]):
    """All networks that hosts are in, as long as somebody has hold of them."""

    def __init__(self, make: Callable[[str, G | None, int], G], of_all: int, of_network: int, of_subnet: int) -> None:
        """``make``: a network, by its name, what it is in, and what its parts weigh at least; that is for the whole,
        for a network, and for a subnet of hosts."""
        self._make = make
        self.everybody = make("", None, max(1, of_all))
        self._floors = max(1, of_network), max(1, of_subnet)
        self._groups: weakref.WeakValueDictionary[str, G] = weakref.WeakValueDictionary()

    def of(self, host: str) -> G:
        """The smallest network that a host is in, and those that it is in are there as well. Who has no address is in
        none."""
        try:
            keys = networks_of(host)
        except ValueError:
            return self.everybody
        group = self.everybody
        for network in keys:
            found = self._groups.get(network)
            if found is None:
                found = self._groups[network] = self._make(network, group, self._floors[network == keys[-1]])
            group = found
        return group


class Group(Part["Group[Seat]"], Generic[Seat]):
    """A network, or a host, with its connections."""

    __slots__ = ("callers", "silent")

    def __init__(self, key: str, parent: Group[Seat] | None, floor: int = 1) -> None:
        super().__init__(key, parent, floor)
        self.silent: OrderedDict[Seat, None] = OrderedDict()
        """Connections without a call yet, the oldest first."""
        self.callers: Bag[Seat] = Bag()
        """The others."""

    @property
    def connections(self) -> int:
        """How many there are."""
        return self.has

    def enter(self, seat: Seat) -> None:
        """A connection has come."""
        self.grow()
        self.find()
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
        self.shrink()
        if not self.has:
            self.hide()
        return True


class Networks(Tree[Group[Seat]], Generic[Seat]):
    """Those of connections, or what else has seats."""

    def __init__(self, of_all: int, of_network: int, of_subnet: int) -> None:
        """What the parts of the whole, of a network and of a subnet of hosts weigh at least."""
        super().__init__(Group, of_all, of_network, of_subnet)


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
