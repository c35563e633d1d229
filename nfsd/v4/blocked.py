"""Blocked locks: clients are told when their turn may have come, local processes that keep them waiting are watched.

Owns the CB_NOTIFY_LOCK calls under way. The queues are the state engine's; here is what takes time. RFC 8881 section
20.11.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nfsd.protocol import nfs4 as p
from nfsd.state import StateEngine
from nfsd.state.locks import LOCAL_END
from nfsd.state.ranges import END
from nfsd.state.waiters import ANSWER, Waiter
from nfsd.v4.callbacks import CallbackError, CallbackService
from nfsd.vfs.service import FileService
from rpcrdma.firewall import spawn
from rpcrdma.log_limits import limited_logger

log = limited_logger(__name__)

_CALLS = 256
"""CB_NOTIFY_LOCK calls under way at most: they are hints, and clients poll all the same."""
_PROBES = 100
"""Waiters that are looked at for local locks at most in one turn of the timer."""


def _nothing(_: Waiter) -> None:
    pass


class BlockedLocks:
    """Tells clients whose blocked locks may be had."""

    def __init__(self, engine: StateEngine, service: FileService, callbacks: CallbackService) -> None:
        self._service = service
        self._callbacks = callbacks
        self._waits = engine.locks.waits
        self._calls: set[asyncio.Task[None]] = set()
        self.granter: Callable[[Waiter], None] = _nothing
        """Sees to those who are called with the lock itself (NLM)."""

    def tell(self) -> None:
        """Start to call those whose turn has come since this was asked last."""
        for waiter in self._waits.notices():
            if waiter.steady:
                self.granter(waiter)
                continue
            if len(self._calls) >= _CALLS:
                self._waits.unreachable(waiter)
                continue
            spawn(self._call(waiter), self._calls)

    async def _call(self, waiter: Waiter) -> None:
        owner = p.lock_owner4(clientid=waiter.client.clientid, owner=waiter.owner)
        arguments = p.CB_NOTIFY_LOCK4args(cnla_fh=waiter.handle, cnla_lock_owner=owner)
        try:
            results = await self._callbacks.call(waiter.client, [(p.OP_CB_NOTIFY_LOCK, arguments)], timeout=ANSWER)
        except CallbackError:
            self._waits.unreachable(waiter)
            return
        except Exception:
            log.exception("CB_NOTIFY_LOCK to client %016x", waiter.client.clientid)
            self._waits.unreachable(waiter)
            return
        if not results or results[0].cnlr_status != p.NFS4_OK:
            self._waits.unreachable(waiter)  # NOTSUPP: it does not know the operation

    async def watch_local(self) -> None:
        """Look whether the local processes that keep clients waiting have let go: the kernel does not tell. To be
        called about once a second."""
        for waiter in self._waits.locally_blocked(_PROBES):
            node = waiter.file.node
            if node is None or not self._waits.is_locally_blocked(waiter):
                continue  # it has had an answer while others were looked at
            length = 0 if waiter.end == END or waiter.end > LOCAL_END else waiter.end - waiter.start
            try:
                found = await self._service.test_local_lock(node, waiter.start, length, exclusive=waiter.exclusive)
            except OSError as error:
                log.info("looking for local locks: %s", error)
                continue
            if found is None:
                self._waits.locally_free(waiter)
        self.tell()

    async def close(self) -> None:
        """Give up the calls under way."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
