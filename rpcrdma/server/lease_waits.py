"""Waiting for a buffer of a connection's account. Owns :func:`wait_for_lease`."""

from __future__ import annotations

import asyncio
from functools import partial

from rpcrdma.memory import Account, Lease, OutOfMemory


async def wait_for_lease(
    account: Account, loop: asyncio.AbstractEventLoop, waiters: set[asyncio.Future[Lease]], size: int
) -> Lease:
    """A buffer of ``size`` octets, when there is one. The end of the connection fails what is in ``waiters``. Raises
    OutOfMemory when a bound is smaller than ``size``."""
    waiter: asyncio.Future[Lease] = loop.create_future()
    waiters.add(waiter)
    try:
        account.when_available(size, partial(_available, account, waiter, size))
        return await waiter
    except asyncio.CancelledError:
        # A cancelled call leaves what it waited for alone, so that the lease may arrive, or have arrived.
        if not waiter.cancel() and not waiter.cancelled() and waiter.exception() is None:
            waiter.result().release()
        raise
    finally:
        waiters.discard(waiter)
        del waiter  # it may hold an exception whose traceback holds this frame


def _available(account: Account, waiter: asyncio.Future[Lease], size: int) -> None:
    if waiter.done():
        return
    try:
        waiter.set_result(account.lease(size))
    except OutOfMemory:
        account.when_available(size, partial(_available, account, waiter, size))
