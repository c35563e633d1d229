"""Locks that clients have waited for: taken for them when their turn has come, then they are called (NLM_GRANTED).

Owns the calls under way. A client that does not want the lock any more, or does not answer, loses it again. A client
that asks for the lock once more while it is being called has it, whatever it answers to the call.

XNFS, NLM_GRANTED. Imports the NFSv4 server's parts.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable

from nfsd.nlm.peers import UNANSWERED, Peers
from nfsd.protocol.nfs4 import NFS4ERR_GRACE
from nfsd.protocol.nlm4 import (
    NLM_PROGRAM,
    NLM_V4,
    NLMPROC4_GRANTED,
    nlm4_lock,
    nlm4_res,
    nlm4_stats,
    nlm4_testargs,
)
from nfsd.state import LockDenied, Nfs4Error
from nfsd.state.nlm import NlmClient, owner_parts
from nfsd.state.ranges import END
from nfsd.state.types import UINT64_MAX
from nfsd.state.waiters import Waiter
from nfsd.v4.local_locks import take
from nfsd.v4.server import Nfs4Server, gate
from rpcrdma.firewall import spawn
from rpcrdma.log_limits import limited_logger

_log = limited_logger(__name__)

Span = tuple[int, int, bool]
Release = Callable[[NlmClient, bytes, bytes, Span], Awaitable[None]]
"""Unlocks: client, file key, owner, span."""


class Granter:
    """Gives out locks that are waited for."""

    def __init__(self, nfs4: Nfs4Server, peers: Peers, release: Release, pauses: tuple[float, ...]) -> None:
        self._nfs4 = nfs4
        self._peers = peers
        self._release = release
        self._pauses = pauses
        self._tasks: set[asyncio.Task[None]] = set()
        self._calling: set[tuple[NlmClient, bytes, bytes, Span]] = set()
        """Granted, and not known to the client as far as one can tell."""
        self._cookies = itertools.count(random.getrandbits(63))

    def turn_of(self, waiter: Waiter) -> None:
        """A range that somebody waits for is free."""
        spawn(self._give(waiter), self._tasks)

    def heard_of(self, client: NlmClient, key: bytes, owner: bytes, span: Span) -> bool:
        """The client has asked for the lock again, or does not want it: whether it is being called with it. What it
        answers to the call means nothing any more."""
        wanted = client, key, owner, span
        there = wanted in self._calling
        self._calling.discard(wanted)
        return there

    def heard_of_any(self, client: NlmClient, key: bytes, owner: bytes) -> None:
        """The client has unlocked a range: it knows what it has."""
        self._calling = {calling for calling in self._calling if calling[:3] != (client, key, owner)}

    async def close(self) -> None:
        """Give up calls under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _give(self, waiter: Waiter) -> None:
        client, key, span = waiter.client, waiter.file.key, waiter.span
        assert isinstance(client, NlmClient)
        calling = client, key, waiter.owner, span
        try:
            if not await self._take(waiter, client):
                return
            self._calling.add(calling)
            try:
                await self._nfs4.store.flush(self._nfs4.engine)
                wanted = await self._call(waiter, client, calling)
            except OSError as error:
                _log.error("a lock is not granted: %s", error)
                wanted = False
            unknown = calling in self._calling
            self._calling.discard(calling)
            if unknown and not wanted:
                await self._release(client, key, waiter.owner, span)
        except (OSError, Nfs4Error) as error:
            _log.warning("NLM_GRANTED for %s: %s", client.address, error)
        except Exception:
            _log.exception("NLM_GRANTED for %s", client.address)

    async def _take(self, waiter: Waiter, client: NlmClient) -> bool:
        """Take the lock for the waiter, unless somebody else was faster: then its turn comes again."""
        engine, file = self._nfs4.engine, waiter.file
        async with gate(file):
            opened = engine.nlm.open_of(client, file.key)
            if waiter not in file.waiters or opened is None or file.node is None:
                return False  # it does not wait any more
            length = UINT64_MAX if waiter.end == END else waiter.end - waiter.start
            try:
                plan = engine.locks.lock_new(
                    opened, waiter.owner, waiter.exclusive, waiter.start, length,
                    reclaim=False, wait=True, handle=waiter.handle,
                )  # fmt: skip
                await take(self._nfs4.service, file.node, plan, reclaim=False)
            except LockDenied:
                return False
            except Nfs4Error as error:
                if error.status == NFS4ERR_GRACE:
                    engine.locks.waits.postponed(waiter)
                else:
                    # It cannot have it at all (limits): it is for the client to ask again.
                    engine.locks.waits.leave(file, client, waiter.owner, waiter.span)
                return False
            finally:
                engine.nlm.settle(client, file)
        self._nfs4.blocked.tell()
        return True

    async def _call(self, waiter: Waiter, client: NlmClient, calling: tuple[NlmClient, bytes, bytes, Span]) -> bool:
        """Tell the client; whether it wants the lock."""
        svid, oh = owner_parts(waiter.owner)
        length = 0 if waiter.end == END else waiter.end - waiter.start
        # One for each lock, the same however often the client is called with it.
        cookie = next(self._cookies).to_bytes(8, "big")
        lock = nlm4_lock(client.name, waiter.handle, oh, svid, waiter.start, length)
        arguments = nlm4_testargs, nlm4_testargs(cookie, waiter.exclusive, lock)
        reason: object = ""
        for pause in (*self._pauses, None):
            if client.expired or calling not in self._calling:
                return False
            try:
                answer = await self._peers.call(
                    client.address, client.local_address, NLM_PROGRAM, NLM_V4, NLMPROC4_GRANTED, arguments, nlm4_res
                )
            except UNANSWERED as error:
                reason = error or type(error).__name__
            else:
                if answer.stat == nlm4_stats.NLM4_GRANTED:
                    return True
                if answer.stat != nlm4_stats.NLM4_DENIED_GRACE_PERIOD:
                    return False
                reason = "it is in a grace period of its own"
            if pause is not None:
                await asyncio.sleep(pause)
        _log.info("%s does not take the lock it has waited for: %s", client.address, reason)
        return False
