"""Group commit: changes that come while others are being committed wait together, and are committed together.

Owns :class:`GroupCommit`, which every kind of stable storage is. One thread has the storage. A flush returns when
everything that the engine had promised by then is committed. If a commit fails, its changes stay first in line, and
every flush fails until they are kept. So no reply promises what a restart would not know.

Imports asyncio and the engine's records.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from nfsd.state.engine import StateEngine
from nfsd.state.recovery import Recovered, StoreWrite

_T = TypeVar("_T")


class GroupCommit(ABC):
    """Stable storage, but for where it is. See :class:`nfsd.stable.interface.StableStorage`."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "stable-storage")
        self._queue: list[StoreWrite] = []
        self._committing: asyncio.Task[None] | None = None

    async def start(self, *, lease: float = 90.0) -> Recovered:
        """See the interface."""
        return await self._run(lambda: self._open(lease))

    async def flush(self, engine: StateEngine) -> None:
        """See the interface."""
        target = engine.writes_issued
        while engine.writes_committed < target:
            self._queue += engine.take_writes()
            if self._committing is None:
                self._committing = asyncio.create_task(self._commit(engine))
            # Shielded: a caller that is cancelled must not take the commit of the others with it.
            await asyncio.shield(self._committing)

    def follow(self, engine: StateEngine) -> None:  # noqa: B027 (whoever has records alone has nothing to do)
        """See the interface. There is no other server."""

    async def part(self) -> None:  # noqa: B027 (likewise)
        """See the interface. There is nobody to wait for."""

    async def close(self) -> None:
        """See the interface."""
        if self._committing is not None:
            await asyncio.wait([self._committing])
        await self._run(self._close)
        self._thread.shutdown()

    async def _commit(self, engine: StateEngine) -> None:
        """Commit what is queued, as one transaction."""
        batch = list(self._queue)
        try:
            await self._run(lambda: self._apply(batch))
        finally:
            self._committing = None
        del self._queue[: len(batch)]
        engine.writes_done(len(batch))

    async def _run(self, job: Callable[[], _T]) -> _T:
        """Run in the storage's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, job)

    # -- in the thread -------------------------------------------------------------------------------------------
    @abstractmethod
    def _open(self, lease: float) -> Recovered:
        """What :meth:`start` does."""

    @abstractmethod
    def _apply(self, batch: list[StoreWrite]) -> None:
        """Make the changes, all or none. Raises OSError."""

    @abstractmethod
    def _close(self) -> None:
        """Give everything back, whether it was opened or not."""
