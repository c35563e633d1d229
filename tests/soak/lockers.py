"""Clients that lock by NFSv4.1: what a session makes exactly once is done exactly once, also over lost connections; and
who finds the server restarted reclaims."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from nfsd.protocol import nfs4 as p
from tests.soak.clients import PATIENCE, PAUSE, TROUBLE, Client, Door, Unsure
from tests.soak.record import Again, Key, Record
from tests.soak.server import LEASE
from tests.support.nfs4 import Client4, mode
from tests.support.nfs_work import Way

_LATER = {p.NFS4ERR_DELAY, p.NFS4ERR_GRACE}
_GONE = {p.NFS4ERR_BADSESSION, p.NFS4ERR_STALE_CLIENTID, p.NFS4ERR_DEADSESSION}
_REVOKED = {
    p.NFS4ERR_EXPIRED, p.NFS4ERR_ADMIN_REVOKED, p.NFS4ERR_BAD_STATEID, p.NFS4ERR_OLD_STATEID, p.NFS4ERR_STALE_STATEID,
    p.NFS4ERR_NO_GRACE, p.NFS4ERR_RECLAIM_BAD, p.NFS4ERR_DELEG_REVOKED,
}  # fmt: skip
_DISK = {p.NFS4ERR_NOSPC, p.NFS4ERR_IO, p.NFS4ERR_DQUOT}
_ACCESS = p.OPEN4_SHARE_ACCESS_BOTH | p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG
_REACHED_WITHIN = 90.0
"""Seconds within which a server is to be there again, with all that the schedule does to it."""


class SessionLost(Exception):
    """The server knows the session no more."""


class Lost(Again):
    """The server says that what the client held is no longer its own: it has done nothing."""


class Held:
    """An open file, and its lock once there is one."""

    def __init__(self, key: Key, handle: bytes, opened: p.stateid4) -> None:
        self.key, self.handle, self.opened = key, handle, opened
        self.lock: p.stateid4 | None = None


class Locker(Client):
    """Locks, writes and reads under the lock, and unlocks."""

    def __init__(self, name: str, door: Door, transport: str, record: Record, root: Any, seed: int) -> None:
        super().__init__(name, door, transport, record, root, seed)
        self.evicted = 0.0
        """When the schedule last had it evicted (CLOCK_MONOTONIC)."""
        self._stack = AsyncExitStack()
        self._way: Way | None = None
        self._client: Client4 | None = None
        self._heard = time.monotonic()
        """When the server last did what this client wanted."""
        self._silent = 0.0
        """How long that had been ago when the session was found lost."""
        self._known = self._heard
        """When this client's lock was certainly there."""
        self._tokens = 0

    async def live(self) -> None:
        try:
            while True:
                try:
                    await self._turn()
                except Again:
                    self.record.counts["told to come again"] += 1
                    await asyncio.sleep(0.2)
                except SessionLost:
                    self._client = None
                await asyncio.sleep(PAUSE * self.chance.random())
        finally:
            await self._stack.aclose()

    # Calls

    async def _connected(self) -> Way:
        end = time.monotonic() + _REACHED_WITHIN
        while self._way is None:
            try:
                self._way = await self._stack.enter_async_context(self.door.way(self.transport))
                self.record.counts["connections of clients"] += 1
            except TROUBLE as error:
                await self._disconnect()
                if time.monotonic() > end:
                    self.record.finding(f"{self.name}: no connection within {_REACHED_WITHIN:.0f} s: {error!r}")
                    end = time.monotonic() + _REACHED_WITHIN
                await asyncio.sleep(0.1 + 0.2 * self.chance.random())
        return self._way

    async def _disconnect(self) -> None:
        stack, self._stack, self._way = self._stack, AsyncExitStack(), None
        with contextlib.suppress(*TROUBLE):
            await stack.aclose()

    async def _exactly(self, *operations: Any) -> list[tuple[int, Any]]:
        """A COMPOUND in the session, sent again over new connections until it is answered: RFC 8881 section 2.10.6.1.
        Its status and results; the status is the last entry's. Raises SessionLost."""
        client = self._client
        assert client is not None
        message = client.message(*client.in_session(*operations, cache=True))
        while True:
            way = await self._connected()
            try:
                async with asyncio.timeout(PATIENCE):
                    status, results = client.parse(await way.call(None, message))
            except TROUBLE:
                self.record.counts["sent again in a session"] += 1
                await self._disconnect()
                await asyncio.sleep(0.1 + 0.2 * self.chance.random())
                continue
            if len(results) == 1 and results[0][0] == p.OP_SEQUENCE and status:
                if status == p.NFS4ERR_DELAY:
                    await asyncio.sleep(0.1)
                    continue
                if status not in _GONE:
                    self.record.finding(f"{self.name}: SEQUENCE is answered with {p.nfsstat4(status).name}")
                raise SessionLost(p.nfsstat4(status).name)
            if not status:
                self._heard = time.monotonic()
            return [*results[1:], (-1, status)]

    async def _do(self, *operations: Any, expected: frozenset[int] = frozenset()) -> tuple[int, list[Any]]:
        """Its status and results. Raises Again, Lost, SessionLost; whatever else is not expected is a finding."""
        *results, (_, status) = await self._exactly(*operations)
        if status in _LATER:
            raise Again
        if status in _REVOKED and status not in expected:
            raise Lost(p.nfsstat4(status).name)
        if status and status not in expected and status not in _DISK:
            number = p.nfs_opnum4(results[-1][0]).name
            self.record.finding(f"{self.name}: {number} is answered with {p.nfsstat4(status).name}")
            raise Lost(p.nfsstat4(status).name)
        if status in _DISK:
            self.record.counts["errors of the disk"] += 1
        return status, [result for _, result in results]

    async def _introduced(self, held: Held | None = None) -> bool:
        """Make a session, and reclaim; whether what was held is still there."""
        for _ in range(200):
            way = await self._connected()
            self._client = Client4(way, 1, name=self.name.encode(), transport=way)
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._client.connect(b"the same", reclaim_complete=False)
                kept = await self._reclaim(held) if held is not None else False
                *_, (_, status) = await self._exactly((p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(False)))
                if status in (p.NFS4_OK, p.NFS4ERR_COMPLETE_ALREADY):
                    return kept
            except SessionLost:
                pass  # killed again
            except TROUBLE:
                await self._disconnect()
            await asyncio.sleep(0.2)
        self.record.finding(f"{self.name}: no session can be made")
        return False

    async def _reclaim(self, held: Held) -> bool:
        client = self._client
        assert client is not None
        there = (p.OP_PUTFH, p.PUTFH4args(held.handle))
        args = client.open_args(b"", access=_ACCESS)
        args.claim = p.open_claim4(
            p.open_claim_type4.CLAIM_PREVIOUS, delegate_type=p.open_delegation_type4.OPEN_DELEGATE_NONE
        )
        while True:
            *results, (_, status) = await self._exactly(there, (p.OP_OPEN, args))
            if status == p.NFS4ERR_DELAY:
                await asyncio.sleep(0.1)
                continue
            if status:
                break
            held.opened = results[-1][1].resok4.stateid
            if held.lock is None:
                return True
            *results, (_, status) = await self._exactly(there, self._lock(held, reclaim=True))
            if status == p.NFS4ERR_DELAY:
                await asyncio.sleep(0.1)
                continue
            if status == 0:
                held.lock = results[-1][1].resok4.lock_stateid
                self.record.counts["locks reclaimed"] += 1
                return True
            break
        why = p.nfsstat4(status).name
        self.record.counts[f"reclaims refused ({why})"] += 1
        if held.lock is not None and self.evicted < self._known and self._silent < LEASE:
            self.record.finding(f"{self.name}: a lock cannot be reclaimed: {why}, silent for {self._silent:.1f} s")
        return False

    # Locks

    def _lock(self, held: Held, *, reclaim: bool = False) -> tuple[int, p.LOCK4args]:
        assert self._client is not None
        owner = p.lock_owner4(self._client.clientid, self.name.encode())
        locker = p.locker4(True, p.open_to_lock_owner4(0, held.opened, 0, owner))
        return p.OP_LOCK, p.LOCK4args(p.nfs_lock_type4.WRITE_LT, reclaim, 0, 8, locker)

    async def _turn(self) -> None:
        if self._client is None:
            await self._introduced()
        client = self._client
        assert client is not None
        key = self.key("lock")
        opening = client.open_args(b"lock-%d-%d" % key[1:], access=_ACCESS, create=mode(0o666))
        status, results = await self._do(*client.path("/soak"), (p.OP_OPEN, opening), p.OP_GETFH)
        if status:
            return
        held = Held(key, results[-1].resok4.object, results[-2].resok4.stateid)
        if await self._acquire(held):
            await self._work(held)
            await self._release(held)
        await self._insist(held, lambda: (p.OP_CLOSE, p.CLOSE4args(0, held.opened)))

    async def _insist(self, held: Held, operation: Callable[[], Any]) -> None:
        """Until the server does it. Raises Lost, SessionLost."""
        while True:
            try:
                status, _ = await self._do((p.OP_PUTFH, p.PUTFH4args(held.handle)), operation())
                if not status:
                    return
            except Lost:
                raise
            except Again:
                pass
            await asyncio.sleep(0.1)

    async def _acquire(self, held: Held) -> bool:
        there = (p.OP_PUTFH, p.PUTFH4args(held.handle))
        began = time.monotonic()
        try:
            with self.record.operation(self.name, "acquire", held.key) as made:
                status, results = await self._do(there, self._lock(held), expected=frozenset([p.NFS4ERR_DENIED]))
                if status in _DISK:
                    raise Again
                made.result = status == p.NFS4_OK
        except SessionLost:
            # Whether it was given or not, it is not reclaimed, and so goes with the session.
            await self._introduced()
            self.record.released(self.name, held.key, began)
            raise Lost from None
        except Lost:
            raise
        except Again:
            await asyncio.sleep(0.1)
            return False
        if made.result:
            held.lock = results[-1].resok4.lock_stateid
        return bool(made.result)

    async def _work(self, held: Held) -> None:
        """Write, and read it back: who has the lock is alone. Raises SessionLost, Lost if the lock is lost."""
        there = (p.OP_PUTFH, p.PUTFH4args(held.handle))
        key: Key = "locked", *held.key[1:]
        for _ in range(self.chance.randrange(4)):
            self._tokens += 1
            token = b"%-16s%16d" % (self.name.encode(), self._tokens)
            self._known = self._heard
            try:
                assert held.lock is not None
                args = p.WRITE4args(held.lock, 0, p.stable_how4.FILE_SYNC4, memoryview(token))
                with self.record.operation(self.name, "write", key, token):
                    status, _ = await self._do(there, (p.OP_WRITE, args))
                    if status:
                        raise Unsure
                await asyncio.sleep(PAUSE * self.chance.random())
                with self.record.operation(self.name, "read", key) as made:
                    _, results = await self._do(there, (p.OP_READ, p.READ4args(held.lock, 0, 32)))
                    made.result = found = bytes(results[-1].resok4.data)
                self.record.counts["written and read under a lock"] += 1
                if found != token:
                    self.record.finding(f"{self.name}: under its lock on {held.key} it wrote {token!r}, read {found!r}")
            except Lost:
                self._gone(held)
                raise
            except Again:
                await asyncio.sleep(0.1)
            except Unsure:
                pass
            except SessionLost:
                await self._recovered(held)

    async def _recovered(self, held: Held) -> None:
        """After the session's end: reclaim the lock, or know it lost. Raises Lost."""
        self._known, self._silent = self._heard, time.monotonic() - self._heard
        if not await self._introduced(held):
            self.record.released(self.name, held.key, self._known)
            raise Lost

    def _gone(self, held: Held) -> None:
        """The server knows the session, and the lock no more."""
        self.record.counts["locks lost"] += 1
        if self.evicted < self._known and time.monotonic() - self._known < LEASE:
            self.record.finding(f"{self.name}: the lock on {held.key} is gone, and nobody has evicted its client")
        self.record.released(self.name, held.key, self._known)

    async def _release(self, held: Held) -> None:
        began, self._known = time.monotonic(), self._heard

        def unlock() -> Any:
            assert held.lock is not None
            return p.OP_LOCKU, p.LOCKU4args(p.nfs_lock_type4.WRITE_LT, 0, held.lock, 0, 8)

        try:
            await self._insist(held, unlock)
        except Lost:
            self._gone(held)
            raise
        except SessionLost:
            await self._introduced()  # without the lock
            self.record.released(self.name, held.key, self._known)
            raise Lost from None
        self.record.released(self.name, held.key, began)
        self.record.counts["lock release"] += 1
