"""The load as those who measure see it: a generator's own, or something around it; and the failure to measure one."""

from __future__ import annotations

from typing import Protocol


class Running(Protocol):
    """One connection's load, or that of many."""

    def run(self, seconds: float, most: int = 0) -> tuple[float, float]: ...
    def percentile(self, part: float) -> float: ...


class Impossible(Exception):
    """Something that a measurement needs is not here."""
