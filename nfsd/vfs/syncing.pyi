"""One fsync for many callers. Implemented in ``syncing.pyx``."""

import asyncio
from collections.abc import Callable
from typing import Any

class Sharer:
    """A call that waits for stable storage; derived from in native code."""

class GroupSync:
    """Callers that wait for stable storage share an fsync, always one that starts after they asked."""

    failures: tuple[int, int]
    """How many have failed, and the last one's errno."""
    running: bool
    waiting: list[Any]
    """Who waits for the fsync after the one that is under way."""

    def join(self, start: Callable[[Callable[[int], None]], None]) -> asyncio.Future[int]:
        """The future of the errno (or 0) of an fsync that starts from now on. ``start`` begins one, which at its end calls
        what it was given, with its errno or 0, and returns at once; of the callers that share one, the last one's is used."""
