"""The ranges of one file that are to be held towards local processes, and how.

Sorted, disjoint and merged; every change costs O(log n) plus the ranges it touches. Imports sortedcontainers.
"""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict  # type: ignore[import-untyped]


class Ranges:
    """Octets, each held exclusively, shared, or not at all; ranges are [start, end)."""

    __slots__ = ("_map",)

    def __init__(self) -> None:
        self._map: SortedDict[int, tuple[int, bool]] = SortedDict()

    def __len__(self) -> int:
        return len(self._map)

    def __iter__(self) -> Iterator[tuple[int, int, bool]]:
        """(start, end, exclusive), ascending."""
        return ((start, end, exclusive) for start, (end, exclusive) in self._map.items())

    def remove(self, start: int, end: int) -> None:
        """Take a range out."""
        for low in self._touching(start, end):
            high, exclusive = self._map.pop(low)
            if low < start:
                self._map[low] = (start, exclusive)
            if high > end:
                self._map[end] = (high, exclusive)

    def add(self, start: int, end: int, exclusive: bool) -> None:
        """Put a range in, held this way whatever it was before."""
        self.remove(start, end)
        before = self._floor(start)
        if before is not None and self._map[before] == (start, exclusive):
            del self._map[before]
            start = before
        following = self._map.get(end)
        if following is not None and following[1] == exclusive:
            del self._map[end]
            end = following[0]
        self._map[start] = (end, exclusive)

    def _touching(self, start: int, end: int) -> list[int]:
        first = self._floor(start)
        if first is None or self._map[first][0] <= start:
            first = start
        return list(self._map.irange(first, end, inclusive=(True, False)))

    def _floor(self, offset: int) -> int | None:
        # By value and not by position: positions cost O(n) after every change.
        return next(self._map.irange(None, offset, reverse=True), None)
