"""Who has how many descriptors open for peers, in records: a share of each host and export, hosts, networks, lanes.

Owns the records and the order in which what nobody needs is closed. The bounds, and whose turn it is, are those of
:mod:`nfsd.vfs.shares`.
"""

from __future__ import annotations

import asyncio
import collections
import enum
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, Protocol

from rpcrdma.networks import Part

if TYPE_CHECKING:
    from nfsd.vfs.records import OpenFile
    from nfsd.vfs.shares import Shares

_LOOKS: Final = 16
"""Descriptors that are looked at to find one to close."""


class Bound(enum.Enum):
    """Which bound is met."""

    HOST_IN_EXPORT = "host_in_export"
    HOST = "host"
    EXPORT = "export"
    ALL = "all"


class Cache(Protocol):
    """Where open files are that nobody needs at the moment."""

    def let_go(self, share: Share, bound: Bound) -> bool:
        """Close one that has a place within this bound, if there is one; whether there is."""


class Share:
    """What one host has open of one export."""

    __slots__ = ("cached", "guests", "host", "in_use", "lane", "leaving", "shares", "waiters", "whole_lane")

    def __init__(self, shares: Shares, host: Host, lane: int, whole_lane: Lane) -> None:
        self.shares, self.host, self.lane, self.whole_lane = shares, host, lane, whole_lane
        self.in_use = 0
        self.guests = 0
        """Descriptors that it keeps open too, in places of others."""
        self.leaving = 0
        """Those that are about to close: because others want their places, or once they are synchronised."""
        self.cached: OrderedDict[OpenFile, None] = OrderedDict()
        """Those in the cache that no client keeps open; the ones used lately are not first."""
        self.waiters: collections.deque[asyncio.Future[None]] = collections.deque()

    def give_back(self) -> None:
        """A descriptor is closed, or was not opened after all: somebody else may have the place."""
        shares = self.shares
        self.in_use -= 1
        self.whole_lane.in_use -= 1
        self.host.shrink()
        if shares.waiting:
            shares.serve(self.host)
        if not self.in_use:
            shares.drop(self)

    def remember(self, opened: OpenFile) -> None:
        """One is in the cache, and may close when somebody wants its place."""
        if not self.cached:
            self.host.find()
        self.cached[opened] = None

    def forget(self, opened: OpenFile) -> None:
        """It is in use by clients, or in the cache no more. Idempotent."""
        if self.cached.pop(opened, self) is None and not self.cached:
            self.host.hide_if_bare()

    def leaves(self, opened: OpenFile) -> None:
        """One is about to close."""
        if not opened.leaving:
            opened.leaving = True
            self.leaving += 1
            self.shares.leaving += 1

    def left(self) -> None:
        """That one is closed."""
        self.leaving -= 1
        self.shares.leaving -= 1
        self.give_back()


class Network(Part["Network"]):
    """What hosts have open that are in one network."""

    __slots__ = ("queue",)

    coarse = True

    def __init__(self, key: str, parent: Network | None, floor: int = 1) -> None:
        super().__init__(key, parent, floor)
        self.queue: OrderedDict[Any, None] = OrderedDict()
        """Networks and hosts in it, or shares of a host, with waiters."""


class Host(Network):
    """One client. Those with something in the cache are found by how much they have."""

    __slots__ = ("guests", "lanes")

    def __init__(self, key: str, parent: Network) -> None:
        super().__init__(key, parent)
        self.guests = 0
        self.lanes: dict[int, Share] = {}

    @property
    def in_use(self) -> int:
        """Places that it has."""
        return self.has

    def hide_if_bare(self) -> None:
        """It may have nothing in the cache any more."""
        if not any(share.cached for share in self.lanes.values()):
            self.hide()


class Lane:
    """What all hosts have open of one export."""

    __slots__ = ("in_use",)

    def __init__(self) -> None:
        self.in_use = 0


def oldest_idle(table: OrderedDict[OpenFile, None], lane: int | None) -> OpenFile | None:
    """The first of a table that nobody holds, of this export (None: any), and that need not be synchronised; otherwise
    the first that nobody holds. None if there is none among the first few."""
    best: OpenFile | None = None
    for _ in range(min(len(table), _LOOKS)):
        opened = next(iter(table))
        if not opened.count and (lane is None or opened.node.mount.lane == lane):
            if not opened.unstable:
                return opened
            best = best or opened
        table.move_to_end(opened)
    return best


def idle_within(share: Share, bound: Bound, everything: OrderedDict[OpenFile, None]) -> OpenFile | None:
    """One that nobody holds and whose place is within a bound that ``share`` has met: at a host's own bounds one of its
    own, of this export first, otherwise of those who have most, or at last any of ``everything``."""
    lane = share.lane if bound is Bound.EXPORT else None
    tables: list[OrderedDict[OpenFile, None]] = [share.cached]
    if bound is Bound.HOST:
        tables += [other.cached for other in share.host.lanes.values() if other is not share]
    elif bound is not Bound.HOST_IN_EXPORT:
        crowd = share.shares.crowd()
        if crowd is not None:
            tables = [one.cached for one in crowd.lanes.values() if lane in (None, one.lane)] + tables
        tables.append(everything)
    for table in tables:
        found = oldest_idle(table, lane)
        if found is not None:
            return found
    return None
