from collections.abc import Iterator
from typing import Generic, TypeVar

_V = TypeVar("_V")

class SpanMap(Generic[_V]):
    """Disjoint ranges [start, end) of octets, 0 <= start < end <= 2**64, sorted, each with a value that is not None;
    neighbours with equal values are one. Changes and look-ups cost O(log n) plus the ranges they touch. The collector
    of cycles does not look in here: values that lead back to the map must be taken out again."""

    def __len__(self) -> int:
        """How many ranges."""
    def __iter__(self) -> Iterator[tuple[int, int, _V]]:
        """(start, end, value), ascending; the map may change meanwhile, behind what was seen."""
    def at(self, offset: int) -> tuple[int, int, _V] | None:
        """The range that has this octet."""
    def hull(self) -> tuple[int, int]:
        """From the first octet of all to behind the last; there must be one."""
    def between(self, start: int, end: int, *, mine: _V | None = None) -> Iterator[tuple[int, int, _V]]:
        """The whole ranges that share an octet with [start, end), ascending; without those whose value is this very
        object, which cost next to nothing."""
    def cut(self, start: int, end: int) -> list[tuple[int, int, _V]]:
        """Remove what is within [start, end), splitting ranges at its edges; returns the pieces removed."""
    def put(self, start: int, end: int, value: _V) -> None:
        """Let [start, end) have the value, whatever it had."""
    def clear(self) -> None:
        """Remove everything."""
