"""Interval maps for byte-range locks: one owner's ranges, and the union of all owners' ranges of a file.

Ranges are half-open, 0 <= start < end <= 2**64 (2**64 is "to the end of the file"). Both stand on
:class:`~nfsd.spans.SpanMap`, so that every change costs O(log n) plus the ranges it touches.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from nfsd.spans import SpanMap

if TYPE_CHECKING:
    from nfsd.state.owners import LockOwner

END = 1 << 64


class Held(NamedTuple):
    """How a piece of the union is held, and by whom. Exclusive pieces have one owner."""

    exclusive: bool
    owners: frozenset[LockOwner]


class OwnerRanges:
    """One owner's locks on one file, merged as POSIX has it: neighbours of the same kind are one range."""

    __slots__ = ("_map", "exclusive", "shared")

    def __init__(self, owner: LockOwner) -> None:
        self._map: SpanMap[bool] = SpanMap()
        alone = frozenset((owner,))
        self.exclusive = Held(True, alone)
        self.shared = Held(False, alone)
        """What the union's pieces of which it is the only owner have for a value: these very objects."""

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

    __slots__ = ("_pieces", "owners")

    def __init__(self) -> None:
        self.owners: dict[LockOwner, OwnerRanges] = {}
        self._pieces: SpanMap[Held] = SpanMap()

    def conflict(
        self, owner: LockOwner | None, start: int, end: int, exclusive: bool
    ) -> tuple[LockOwner, int, int, bool] | None:
        """The first lock in the way: (its owner, start, end, exclusive) as that owner holds it; None: there is none.
        ``owner`` None is an owner that holds nothing."""
        for left, _, piece in self._others(owner, start, end):
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
        for _, _, piece in islice(self._others(owner, start, end), limit):
            if exclusive or piece.exclusive:
                yield from (holder for holder in piece.owners if holder is not owner)

    def _others(self, owner: LockOwner | None, start: int, end: int) -> Iterator[tuple[int, int, Held]]:
        """The pieces that share an octet with [start, end), but for those that the owner alone holds."""
        own = self.owners.get(owner) if owner is not None else None
        if own is None:
            return self._pieces.between(start, end)
        if len(self.owners) == 1:
            return iter(())
        return self._pieces.between(start, end, mine=own.exclusive, also_mine=own.shared)

    def covered(self, start: int, end: int, exclusive: bool) -> bool:
        """Whether the union already holds all of [start, end) exactly this way."""
        at = start
        for left, right, piece in self._pieces.between(start, end):
            if left > at or piece.exclusive != exclusive:
                return False
            at = right
        return at >= end

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) nobody holds."""
        found: list[tuple[int, int]] = []
        at = start
        for left, right, _ in self._pieces.between(start, end):
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
            ranges = self.owners[owner] = OwnerRanges(owner)
        before = len(ranges)
        for left, right, _ in ranges.cut(start, end):
            self._withdraw(owner, left, right)
        ranges.put(start, end, exclusive)
        held = ranges.exclusive if exclusive else ranges.shared
        at = start
        for left, right, piece in self._pieces.cut(start, end):
            # Only shared pieces of others can be left here.
            if left > at:
                self._pieces.put(at, left, held)
            self._pieces.put(left, right, Held(False, piece.owners | held.owners))
            at = right
        if at < end:
            self._pieces.put(at, end, held)
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
        for left, right, _ in ranges.cut(start, end):
            free += self._withdraw(owner, left, right)
        grown = len(ranges) - before
        if not len(ranges):
            del self.owners[owner]
        return grown, free

    def pieces(self) -> Iterator[tuple[int, int, bool, frozenset[LockOwner]]]:
        """The union, ascending."""
        return ((start, end, held.exclusive, held.owners) for start, end, held in self._pieces)

    def _withdraw(self, owner: LockOwner, start: int, end: int) -> list[tuple[int, int]]:
        """Take the owner out of the pieces of [start, end), all of which it holds. Returns what nobody holds now."""
        free: list[tuple[int, int]] = []
        for left, right, piece in self._pieces.cut(start, end):
            if len(piece.owners) == 1:
                free.append((left, right))
                continue
            rest = piece.owners.difference((owner,))
            alone = self.owners[next(iter(rest))].shared if len(rest) == 1 else None
            self._pieces.put(left, right, alone or Held(False, rest))
        return free
