"""Loads with an end: calls whose changes are undone afterwards, and calls that can be made only once."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

from bench.running import Running

_NO_END = 3600.0


class Counted:
    """A load whose calls are of several things each, or of a part of one; at most ``most`` of them are made."""

    def __init__(self, load: Running, things: float = 1.0, most: int = 0) -> None:
        self._load, self._things = load, things
        self._left = most or math.inf

    def run(self, seconds: float, most: int = 0) -> tuple[float, float]:
        """As a load; the first figure is of things."""
        if self._left < 1:
            raise RuntimeError("there are no more calls")
        most = int(min(most or math.inf, self._left)) if min(most or math.inf, self._left) < math.inf else 0
        calls, elapsed = self._load.run(seconds, most)
        self._left -= calls
        return calls * self._things, elapsed

    def percentile(self, part: float) -> float:
        """As a load."""
        return self._load.percentile(part)


class Laps:
    """Calls that are all made, then undone by others, again and again. Only the first are measured."""

    def __init__(
        self, do: Running, number: int, undo: Running, undone: int, *, things: float, undo_first: bool
    ) -> None:
        """``number``, ``undone``: how many calls each has; ``undo_first``: what is done has something to undo first."""
        self._do, self._number, self._undo, self._undone = do, number, undo, undone
        self._things, self._undo_first = things, undo_first

    def run(
        self, seconds: float, most: int = 0, meter: AbstractContextManager[object] | None = None
    ) -> tuple[float, float]:
        """Go on for so long, at least one lap, and to its end; ``meter`` is on while calls are measured. Returns the
        things done and the seconds that they took."""
        done = took = 0.0
        while not done or (took < seconds and (not most or done < most)):
            if self._undo_first:
                self._undo.run(_NO_END, self._undone)
            with meter or nullcontext():
                calls, elapsed = self._do.run(_NO_END, self._number)
            if calls != self._number:
                raise RuntimeError(f"{calls:.0f} calls of {self._number} were made")
            if not self._undo_first:
                self._undo.run(_NO_END, self._undone)
            done += calls * self._things
            took += elapsed
        return done, took

    def percentile(self, part: float) -> float:
        """Of the last lap."""
        return self._do.percentile(part)
