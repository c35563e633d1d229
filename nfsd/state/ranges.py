"""Interval maps for byte-range locks: one owner's ranges, and the union of all owners' ranges of a file.

Ranges are half-open, 0 <= start < end <= 2**64 (2**64 is "to the end of the file"). All stand on
:class:`~nfsd.spans.SpanMap`, so that every change costs O(log n) plus the ranges it touches. Of shared locks the union
knows how many there are and not whose: sets of owners would grow with their square, and only a refusal asks who.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from nfsd.spans import SpanMap

if TYPE_CHECKING:
    from nfsd.state.owners import LockOwner

END = 1 << 64
V = TypeVar("V")


class OwnerRanges:
    """One owner's locks on one file, merged as POSIX has it: neighbours of the same kind are one range."""

    __slots__ = ("_map",)

    def __init__(self) -> None:
        self._map: SpanMap[bool] = SpanMap()

    def __len__(self) -> int:
        return len(self._map)

    def __iter__(self) -> Iterator[tuple[int, int, bool]]:
        """(start, end, exclusive), ascending."""
        return iter(self._map)

    def hull(self) -> tuple[int, int]:
        """From the first octet held to behind the last; there must be one."""
        return self._map.hull()

    def at(self, offset: int) -> tuple[int, int, bool] | None:
        """The range that holds this octet."""
        return self._map.at(offset)

    def first(self, start: int, end: int) -> tuple[int, int, bool] | None:
        """The first range that shares an octet with [start, end)."""
        return next(self._map.between(start, end), None)

    def covers(self, start: int, end: int) -> bool:
        """Whether all of [start, end) is held, this way or that."""
        return _covers(self._map, start, end)

    def cut(self, start: int, end: int) -> list[tuple[int, int, bool]]:
        """Remove what is held within [start, end), splitting ranges at its edges. Returns the pieces removed."""
        return self._map.cut(start, end)

    def put(self, start: int, end: int, exclusive: bool) -> None:
        """Hold [start, end) this way, whatever of it was held before; merge with neighbours of the same kind."""
        self._map.put(start, end, exclusive)

    def growth(self, start: int, end: int, exclusive: bool) -> int:
        """By how many ranges a ``put`` here would grow the map (negative: shrink)."""
        grown = 1
        for left, right, kind in self._map.between(start, end):
            grown -= 1
            if kind != exclusive:  # what sticks out stays a range of its own
                grown += (left < start) + (right > end)
        before = self.at(start - 1) if start else None
        after = self.at(end) if end < END else None
        if before is not None and before[1] == start and before[2] == exclusive:
            grown -= 1
        if after is not None and after[0] == end and after[2] == exclusive:
            grown -= 1
        return grown

    def splits(self, start: int, end: int) -> bool:
        """Whether a ``cut`` here would leave one range more."""
        around = self.at(start)
        return around is not None and around[0] < start and around[1] > end


class FileLocks:
    """All owners' locks on one file."""

    __slots__ = ("exclusive", "owners", "shared")

    def __init__(self) -> None:
        self.owners: dict[LockOwner, OwnerRanges] = {}
        self.exclusive: SpanMap[LockOwner] = SpanMap()
        """Who holds an octet exclusively. Nobody holds it otherwise then."""
        self.shared: SpanMap[int] = SpanMap()
        """How many owners share an octet."""

    def conflict(
        self, owner: LockOwner | None, start: int, end: int, exclusive: bool
    ) -> tuple[LockOwner, int, int, bool] | None:
        """A lock in the way: (its owner, start, end, exclusive) as that owner holds it; None: there is none.
        ``owner`` None is an owner that holds nothing."""
        own = self.owners.get(owner) if owner is not None else None
        if own is not None and len(self.owners) == 1:
            return None
        for left, right, holder in self.exclusive.between(start, end, mine=owner):
            # What was merged in the owner's map is so in this one.
            return holder, left, right, True
        if not exclusive:
            return None
        pieces = self.shared.between(start, end)
        for _ in range(len(self.owners)):
            piece = next(pieces, None)
            if piece is None:
                return None
            left, right = max(piece[0], start), min(piece[1], end)
            if piece[2] > 1 or own is None or not own.covers(left, right):
                return self._holder(owner, left, right)
        return self._holder(owner, start, end)  # more pieces than owners: to ask each of these takes less

    def _holder(self, owner: LockOwner | None, start: int, end: int) -> tuple[LockOwner, int, int, bool] | None:
        """Somebody else who holds something of [start, end), and the first that it holds there."""
        for holder, ranges in self.owners.items():
            if holder is not owner:
                found = ranges.first(start, end)
                if found is not None:
                    return holder, *found
        return None

    def holders(
        self, owner: LockOwner | None, start: int, end: int, exclusive: bool, *, limit: int
    ) -> Iterator[LockOwner]:
        """Everybody in the way, each at least once, as far as ``limit`` pieces and as many owners tell."""
        yield from (holder for _, _, holder in islice(self.exclusive.between(start, end, mine=owner), limit))
        if exclusive:
            for holder, ranges in islice(self.owners.items(), limit):
                if holder is not owner and ranges.first(start, end) is not None:
                    yield holder

    def covered(self, start: int, end: int, exclusive: bool) -> bool:
        """Whether the union already holds all of [start, end) exactly this way."""
        return _covers(self.exclusive, start, end) if exclusive else _covers(self.shared, start, end)

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) nobody holds."""
        found: list[tuple[int, int]] = []
        at = start
        for left, right in heapq.merge(_ends(self.shared, start, end), _ends(self.exclusive, start, end)):
            if left > at:
                found.append((at, left))
            at = right
        if at < end:
            found.append((at, end))
        return found

    def grant(self, owner: LockOwner, start: int, end: int, exclusive: bool) -> int:
        """Give the owner [start, end); the caller has excluded conflicts. Returns by how many its ranges grew."""
        ranges = self.owners.get(owner)
        if ranges is None:
            ranges = self.owners[owner] = OwnerRanges()
        before = len(ranges)
        for left, right, kind in ranges.cut(start, end):
            self._withdraw(left, right, kind)
        ranges.put(start, end, exclusive)
        if exclusive:
            self.exclusive.put(start, end, owner)
            return len(ranges) - before
        at = start
        for left, right, count in self.shared.cut(start, end):
            if left > at:
                self.shared.put(at, left, 1)
            self.shared.put(left, right, count + 1)
            at = right
        if at < end:
            self.shared.put(at, end, 1)
        return len(ranges) - before

    def revoke(self, owner: LockOwner, start: int, end: int) -> tuple[int, list[tuple[int, int]]]:
        """Take what the owner holds of [start, end). Returns by how many its ranges grew (may be negative), and spans
        that hold all it held and nobody holds now (and may have held nothing of: they are for clearing)."""
        ranges = self.owners.get(owner)
        if ranges is None:
            return 0, []
        before = len(ranges)
        first, last = ranges.hull()
        if len(self.owners) == 1 and start <= first and last <= end:
            # The last owner gives up everything: no need to look at a million ranges one by one.
            self.owners.clear()
            self.exclusive.clear()
            self.shared.clear()
            return -before, [(first, last)]
        free: list[tuple[int, int]] = []
        for left, right, kind in ranges.cut(start, end):
            free += self._withdraw(left, right, kind)
        grown = len(ranges) - before
        if not len(ranges):
            del self.owners[owner]
        return grown, free

    def _withdraw(self, start: int, end: int, exclusive: bool) -> list[tuple[int, int]]:
        """Take an owner out of [start, end), all of which it holds this way. Returns what nobody holds now."""
        if exclusive:
            self.exclusive.cut(start, end)
            return [(start, end)]
        free: list[tuple[int, int]] = []
        for left, right, count in self.shared.cut(start, end):
            if count > 1:
                self.shared.put(left, right, count - 1)
            else:
                free.append((left, right))
        return free


def _covers(spans: SpanMap[V], start: int, end: int) -> bool:
    at = start
    for left, right, _ in spans.between(start, end):
        if left > at:
            return False
        at = right
    return at >= end


def _ends(spans: SpanMap[V], start: int, end: int) -> Iterator[tuple[int, int]]:
    return ((left, right) for left, right, _ in spans.between(start, end))
