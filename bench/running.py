"""What a load is to whoever measures: a generator's own, or something around it; and that it cannot be measured."""

from __future__ import annotations

from typing import Protocol


class Running(Protocol):
    """One connection's load, or that of many."""

    def run(self, seconds: float, most: int = 0) -> tuple[float, float]: ...
    def percentile(self, part: float) -> float: ...


class Impossible(Exception):
    """Something that a measurement needs is not here."""
