"""Descriptors that a worker closes. Implemented in ``closing.pyx``."""

from asyncio import AbstractEventLoop, Future
from collections.abc import Callable

from nfsd.vfs.executor import Executor

on_close: Callable[[int], None] | None
"""Told of each descriptor that a worker is to close; for tests."""

class Closing:
    """What is about to close."""

    def __init__(self, failed_in: Callable[[int, int], None]) -> None:
        """``failed_in(lane, errno)`` is told of closes that fail."""
    def start(self, loop: AbstractEventLoop, executor: Executor) -> None:
        """There are workers from now on."""
    def stop(self) -> None:
        """There are none: what is closed from now on is closed at once."""
    def later(self, descriptor: int, lane: int = 0, freed: Callable[[], None] | None = None) -> None:
        """Close on a worker of the export's lane: the last close of a removed file waits for its blocks to be freed,
        and on a stalled disk for long. Then ``freed`` is called."""
    def under_way_in(self, lane: int) -> list[Future[None]]:
        """The closes in a lane that are not over, those that were handed in by now among them."""
