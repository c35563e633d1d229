"""Interval maps for byte-range locks: one owner's ranges, and the union of all owners' ranges of a file.

Ranges are half-open, 0 <= start < end <= 2**64 (2**64 is "to the end of the file"). Both maps are kept sorted, so that
every change costs O(log n) plus the ranges it touches. Imports sortedcontainers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from sortedcontainers import SortedDict  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from nfsd.state.owners import LockOwner

END = 1 << 64


class Held(NamedTuple):
    """A piece of the union: who holds it, and how. Exclusive pieces have one owner."""

    end: int
    exclusive: bool
    owners: frozenset[LockOwner]


class OwnerRanges:
    """One owner's locks on one file, merged as POSIX has it: neighbours of the same kind are one range."""

    __slots__ = ("_map",)

    def __init__(self) -> None:
        self._map: SortedDict[int, tuple[int, bool]] = SortedDict()

    def __len__(self) -> int:
        return len(self._map)

    def __iter__(self) -> Iterator[tuple[int, int, bool]]:
        """(start, end, exclusive), ascending."""
        return ((start, end, exclusive) for start, (end, exclusive) in self._map.items())

    def hull(self) -> tuple[int, int]:
        """From the first octet held to behind the last; there must be one."""
        last_end: int = self._map.peekitem(-1)[1][0]
        first: int = self._map.peekitem(0)[0]
        return first, last_end

    def at(self, offset: int) -> tuple[int, int, bool] | None:
        """The range that holds this octet."""
        start = _floor(self._map, offset)
        if start is None:
            return None
        end, exclusive = self._map[start]
        return (start, end, exclusive) if end > offset else None

    def cut(self, start: int, end: int) -> list[tuple[int, int]]:
        """Remove what is held within [start, end), splitting ranges at its edges. Returns the pieces removed."""
        removed: list[tuple[int, int]] = []
        for left in _touching(self._map, start, end):
            right, exclusive = self._map.pop(left)
            if left < start:
                self._map[left] = (start, exclusive)
            if right > end:
                self._map[end] = (right, exclusive)
            removed.append((max(left, start), min(right, end)))
        return removed

    def put(self, start: int, end: int, exclusive: bool) -> None:
        """Hold [start, end) this way, whatever of it was held before; merge with neighbours of the same kind."""
        self.cut(start, end)
        before = self.at(start - 1) if start else None
        if before is not None and before[1:] == (start, exclusive):
            start = before[0]
            del self._map[start]
        following = self._map.get(end)
        if following is not None and following[1] == exclusive:
            del self._map[end]
            end = following[0]
        self._map[start] = (end, exclusive)

    def growth(self, start: int, end: int, exclusive: bool) -> int:
        """By how many ranges a ``put`` here would grow the map (negative: shrink)."""
        grown = 1
        for left in _touching(self._map, start, end):
            right, kind = self._map[left]
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

    __slots__ = ("_pieces", "owners")

    def __init__(self) -> None:
        self.owners: dict[LockOwner, OwnerRanges] = {}
        self._pieces: SortedDict[int, Held] = SortedDict()

    def conflict(
        self, owner: LockOwner | None, start: int, end: int, exclusive: bool
    ) -> tuple[LockOwner, int, int, bool] | None:
        """The first lock in the way: (its owner, start, end, exclusive) as that owner holds it; None: there is none.
        ``owner`` None is an owner that holds nothing."""
        for left in _starts(self._pieces, start, end):
            piece = self._pieces[left]
            if not exclusive and not piece.exclusive:
                continue
            for holder in piece.owners:
                if holder is not owner:
                    found = self.owners[holder].at(max(left, start))
                    if found is not None:
                        return holder, *found
        return None

    def holders(
        self, owner: LockOwner | None, start: int, end: int, exclusive: bool, *, limit: int
    ) -> Iterator[LockOwner]:
        """Everybody in the way, each at least once, as far as ``limit`` pieces tell."""
        for left in islice(_starts(self._pieces, start, end), limit):
            piece = self._pieces[left]
            if exclusive or piece.exclusive:
                yield from (holder for holder in piece.owners if holder is not owner)

    def covered(self, start: int, end: int, exclusive: bool) -> bool:
        """Whether the union already holds all of [start, end) exactly this way."""
        at = start
        for left in _starts(self._pieces, start, end):
            piece = self._pieces[left]
            if left > at or piece.exclusive != exclusive:
                return False
            at = piece.end
        return at >= end

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) nobody holds."""
        found: list[tuple[int, int]] = []
        at = start
        for left in _touching(self._pieces, start, end):
            if left > at:
                found.append((at, left))
            at = self._pieces[left].end
        if at < end:
            found.append((at, end))
        return found

    def grant(self, owner: LockOwner, start: int, end: int, exclusive: bool) -> int:
        """Give the owner [start, end); the caller has excluded conflicts. Returns by how many its ranges grew."""
        ranges = self.owners.get(owner)
        if ranges is None:
            ranges = self.owners[owner] = OwnerRanges()
        before = len(ranges)
        for left, right in ranges.cut(start, end):
            self._withdraw(owner, left, right)
        ranges.put(start, end, exclusive)
        at = start
        for left in _touching(self._pieces, start, end):
            # Only shared pieces of others can be left here.
            inner, piece = self._split(left, start, end)
            if inner > at:
                self._pieces[at] = Held(inner, False, owner.alone)
            self._pieces[inner] = Held(piece.end, False, piece.owners | owner.alone)
            at = piece.end
        if at < end:
            self._pieces[at] = Held(end, exclusive, owner.alone)
        self._merge(start, end)
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
            self._pieces.clear()
            return -before, [(first, last)]
        free: list[tuple[int, int]] = []
        for left, right in ranges.cut(start, end):
            self._withdraw(owner, left, right)
            free.extend(self.gaps(left, right))
        self._merge(start, end)
        grown = len(ranges) - before
        if not len(ranges):
            del self.owners[owner]
        return grown, free

    def pieces(self) -> Iterator[tuple[int, int, bool, frozenset[LockOwner]]]:
        """The union, ascending."""
        return ((start, held.end, held.exclusive, held.owners) for start, held in self._pieces.items())

    def _withdraw(self, owner: LockOwner, start: int, end: int) -> None:
        """Take the owner out of the pieces of [start, end), all of which it holds."""
        for left in _touching(self._pieces, start, end):
            inner, piece = self._split(left, start, end)
            rest = piece.owners - owner.alone
            if rest:
                self._pieces[inner] = Held(piece.end, False, next(iter(rest)).alone if len(rest) == 1 else rest)
            else:
                del self._pieces[inner]

    def _split(self, left: int, start: int, end: int) -> tuple[int, Held]:
        """Cut the piece at ``left`` at the edges of [start, end); returns its part within: start and piece."""
        piece = self._pieces[left]
        if left < start:
            self._pieces[left] = piece._replace(end=start)
            self._pieces[start] = piece
            left = start
        if piece.end > end:
            self._pieces[end] = piece
            piece = self._pieces[left] = piece._replace(end=end)
        return left, piece

    def _merge(self, start: int, end: int) -> None:
        """Join equal neighbours in and around [start, end)."""
        previous: int | None = None
        for left in _touching(self._pieces, max(start - 1, 0), min(end + 1, END)):
            piece = self._pieces[left]
            if previous is not None:
                before = self._pieces[previous]
                if (before.end, before.exclusive, before.owners) == (left, piece.exclusive, piece.owners):
                    del self._pieces[left]
                    self._pieces[previous] = before._replace(end=piece.end)
                    continue
            previous = left


def _touching(pieces: SortedDict, start: int, end: int) -> list[int]:
    """The starts of the ranges that share an octet with [start, end), ascending; the map may change meanwhile."""
    return list(_starts(pieces, start, end))


def _starts(pieces: SortedDict, start: int, end: int) -> Iterator[int]:
    """As ``_touching``, one by one: for looking no further than needed."""
    first = _floor(pieces, start)
    if first is None or pieces[first][0] <= start:
        first = start
    found: Iterator[int] = pieces.irange(first, end, inclusive=(True, False))
    return found


def _floor(pieces: SortedDict, offset: int) -> int | None:
    """The greatest start up to ``offset``. By value and not by position: positions cost O(n) after every change."""
    return next(pieces.irange(None, offset, reverse=True), None)
