"""Backward calls of a connection whose replies have not come. Owns :class:`Awaited`; imports asyncio only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Awaited:
    """By XID, who waits for a reply."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._futures: dict[int, asyncio.Future[memoryview]] = {}

    def __bool__(self) -> bool:
        return bool(self._futures)

    async def reply(self, xid: int, send: Callable[[], None], timeout: float | None) -> memoryview:  # noqa: ASYNC109
        """Send a call and return its reply. ValueError when a call with this XID is outstanding; TimeoutError;
        ConnectionError, and what ``send`` raises."""
        if xid in self._futures:
            raise ValueError(f"XID {xid:#x} is in use")
        future = self._futures[xid] = self._loop.create_future()
        try:
            send()
            return await asyncio.wait_for(future, timeout)
        finally:
            if self._futures.get(xid) is future:
                del self._futures[xid]

    def take(self, record: memoryview) -> None:
        """A reply. One that nobody waits for (any more) is dropped."""
        future = self._futures.pop(int.from_bytes(record[:4], "big"), None)
        if future is not None and not future.done():
            future.set_result(memoryview(bytes(record)))

    def fail(self) -> None:
        """The connection is closed: no reply comes."""
        futures, self._futures = self._futures, {}
        for future in futures.values():
            if not future.done():
                future.set_exception(ConnectionError("the connection is closed"))
