"""One fsync for many callers.

Owns no descriptor. Imports asyncio for its futures, and contexts, in which it is known who calls.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Protocol


class Finished(Protocol):
    """What a started fsync calls at its end, with its errno or 0."""

    def __call__(self, error: int) -> None:
        """The fsync is over."""


class GroupSync:
    """Callers that wait for stable storage share an fsync, always one that starts after they asked.

    An fsync under way may have passed a caller's pages already, so those who ask meanwhile all wait for the next one.
    """

    __slots__ = ("_next", "_start", "failures", "running")

    def __init__(self) -> None:
        self._start: Callable[[Finished], None] | None = None
        self._next: list[asyncio.Future[int]] = []
        self.running = False
        self.failures: tuple[int, int] = (0, 0)
        """How many have failed, and the last one's errno."""

    def join(self, start: Callable[[Finished], None]) -> asyncio.Future[int]:
        """The future of the errno (or 0) of an fsync that starts from now on. ``start`` begins one and returns at once;
        of the callers that share one, the last one's is used."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._next.append(future)
        # Whose it is, too: it may begin at the end of another's.
        context = contextvars.copy_context()
        self._start = lambda finished: context.run(start, finished)
        if not self.running:
            self._begin()
        return future

    def _begin(self) -> None:
        waiting, self._next = self._next, []
        start, self._start = self._start, None
        self.running = True

        def finished(error: int) -> None:
            self.running = False
            if error:
                self.failures = (self.failures[0] + 1, error)
            for future in waiting:
                if not future.done():
                    future.set_result(error)
            if self._next:
                self._begin()

        assert start is not None
        start(finished)
