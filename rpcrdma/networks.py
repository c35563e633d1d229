"""Networks within networks, with hosts at the end: how much each has (connections, descriptors), and which has most.

Owns the comparison by which :mod:`rpcrdma.hosts` decides which connection gives way, the state engine which client, and
the file service which descriptor. Imports addresses.

The parts of a group are sorted by weight: what they have, but at least ``floor``. So parts that have little weigh the
same. Adding or removing one takes the same time, however many connections and parts there are.
"""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from rpcrdma.addresses import networks_of
from rpcrdma.parts import Bag, Part

Seat = TypeVar("Seat")
G = TypeVar("G", bound="Part[Any]")

__all__ = ["Bag", "Displacements", "Group", "Networks", "Part", "Recent", "Tree"]

WINDOW = 10.0
"""Seconds over which displacements are counted."""
FIRST_COMERS = 32
"""Of the largest networks, those that hold nothing, that may displace somebody meanwhile whatever others do."""


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
        """The smallest network that a host is in, and those that it is in are there as well. A host without an address
        is in none."""
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
