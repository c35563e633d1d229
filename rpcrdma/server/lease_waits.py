"""Waiting for a buffer of a connection's account. Owns :class:`LeaseWaits`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from rpcrdma.memory import Account, Lease, OutOfMemory


class LeaseWaits:
    """Who waits for buffers of one connection's ``account``, each for ``timeout`` seconds at most (None: for ever)."""

    def __init__(self, account: Account, loop: asyncio.AbstractEventLoop, timeout: float | None = None) -> None:
        self._account = account
        self._loop = loop
        self._timeout = timeout
        self._waiters: dict[asyncio.Future[Lease], Callable[[], None]] = {}
        """What the account calls for each."""
        self._ended = ""

    async def lease(self, size: int) -> Lease:
        """A buffer of ``size`` octets, at once or, as :meth:`wait`, later."""
        try:
            return self._account.lease(size)
        except OutOfMemory:
            if self._ended:
                raise ConnectionResetError(self._ended) from None
        return await self.wait(size)

    async def wait(self, size: int) -> Lease:
        """A buffer of ``size`` octets, when there is one. Raises OutOfMemory when a bound is smaller than ``size`` or
        the time is over, ConnectionResetError when the connection ends."""
        waiter: asyncio.Future[Lease] = self._loop.create_future()
        available = self._waiters[waiter] = partial(self._available, waiter, size)
        timer = None
        if self._timeout is not None:
            timer = self._loop.call_later(self._timeout, self._timed_out, waiter, size)
        try:
            self._account.when_available(size, available)
            return await waiter
        except asyncio.CancelledError:
            # A cancelled call leaves what it waited for alone, so that the lease may arrive, or have arrived.
            if not waiter.cancel() and not waiter.cancelled() and waiter.exception() is None:
                waiter.result().release()
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._waiters.pop(waiter, None)
            del waiter, timer, available  # they may hold an exception whose traceback holds this frame

    def fail(self, why: str) -> None:
        """The connection has ended: whoever waits gets ConnectionResetError, each one of its own."""
        self._ended = why
        for waiter in list(self._waiters):
            if not waiter.done():
                waiter.set_exception(ConnectionResetError(why))

    def _available(self, waiter: asyncio.Future[Lease], size: int) -> None:
        if waiter.done():
            return
        try:
            waiter.set_result(self._account.lease(size))
        except OutOfMemory:
            # Somebody was faster.
            self._account.when_available(size, self._waiters[waiter])

    def _timed_out(self, waiter: asyncio.Future[Lease], size: int) -> None:
        if not waiter.done():
            self._account.wait_no_more(self._waiters[waiter])
            waiter.set_exception(OutOfMemory(f"no {size} octets within {self._timeout} s"))
