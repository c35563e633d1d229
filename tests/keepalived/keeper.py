"""Clients of all versions that write, and keep a lock, whatever becomes of the server; beside each of them another one
that would take the lock. A process of its own, in the clients' namespace:

    python -m tests.keepalived.keeper ADDRESS       until its standard input ends

It prints a line when all have their locks and write, and in the end one JSON object with what each of them saw.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from nfsd.protocol import nfs4 as p
from nfsd.protocol import nlm4 as n
from nfsd.protocol.nfs3 import stable_how
from rpcrdma.xdr import pack
from tests.nfs3_client import Nfs3Client, Nfs3Failure
from tests.support.nfs4 import Client4, Failed, mode
from tests.support.over_tcp import OverTcp
from tests.unit.test_v4_locks import locking, unlocking

PLACE: Final = "/shared"
NFS, MOUNTD, NLM = 2049, 20048, 32803
VERSIONS: Final = ("3", "4.0", "4.1", "4.2")
_RECORD: Final = 8
_PATIENCE: Final = 2.0
"""Seconds for one call, and one attempt to connect."""
_LONGEST: Final = 60.0
"""Seconds within which the server is there again."""
TROUBLE: Final = (OSError, EOFError, AssertionError, TimeoutError)
"""AssertionError: the client's introduction was not accepted, and is made again."""
_LATER: Final = {p.NFS4ERR_DELAY, p.NFS4ERR_GRACE}
_GONE: Final = {
    p.NFS4ERR_BADSESSION, p.NFS4ERR_STALE_CLIENTID, p.NFS4ERR_STALE_STATEID, p.NFS4ERR_DEADSESSION,
    p.NFS4ERR_BAD_STATEID, p.NFS4ERR_EXPIRED,
}  # fmt: skip
_CREATED: Final = mode(0o666)
_THIS: Final = os.urandom(8)
"""The verifier of all clients of this process."""


async def patiently(work: Callable[[], Awaitable[Any]]) -> Any:
    """Its result, after as many attempts as it takes. Raises the last trouble after a long time."""
    end = time.monotonic() + _LONGEST
    while True:
        try:
            async with asyncio.timeout(_PATIENCE):
                return await work()
        except TROUBLE:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.05)


class Lost(Exception):
    """The server is another instance: what was held is to be reclaimed."""


class Version4:
    """A client of NFSv4 with an open file, and a lock on all of it."""

    def __init__(self, address: str, minor: int, name: bytes, file: bytes) -> None:
        self._address, self._minor, self._name, self._file = address, minor, name, file
        self._handle = b""

    async def introduce(self) -> None:
        self._client = Client4(OverTcp(self._address, NFS), self._minor, name=self._name)
        await self._client.connect(_THIS, reclaim_complete=False)

    async def complete(self) -> None:
        """There is nothing to be reclaimed any more."""
        if self._minor:
            args = p.RECLAIM_COMPLETE4args(False)
            status = await self._client.status((p.OP_RECLAIM_COMPLETE, args))
            assert status in (p.NFS4_OK, p.NFS4ERR_COMPLETE_ALREADY), p.nfsstat4(status).name

    async def open(self) -> None:
        """Anew, when nobody reclaims any more."""

        async def begin() -> None:
            await self.introduce()
            await self.complete()

        await patiently(begin)
        while True:
            try:
                self._opened, self._handle = await self._client.open(PLACE, self._file, create=_CREATED)
                return
            except Failed as failed:
                if failed.status not in _LATER:
                    raise
                await asyncio.sleep(0.2)

    async def lock(self) -> bool:
        """Whether it is to be had, now. Raises Lost, and Failed with GRACE."""
        owner = b"%d" % time.monotonic_ns()
        try:
            [locked] = await self._once(locking(self._client, self._opened, owner=owner))
        except Failed as failed:
            if failed.status == p.NFS4ERR_DENIED:
                return False
            raise
        self.stateid = locked.resok4.lock_stateid
        return True

    async def unlock(self) -> None:
        await self._once(unlocking(self.stateid, 1))

    async def reclaim(self) -> None:
        """The open and the lock. Raises Failed if they are lost."""
        while True:
            try:
                await patiently(self.introduce)
                args = self._client.open_args(b"")
                none = p.open_delegation_type4.OPEN_DELEGATE_NONE
                args.claim = p.open_claim4(p.open_claim_type4.CLAIM_PREVIOUS, delegate_type=none)
                [opened] = await self._once((p.OP_OPEN, args))
                self._opened = opened.resok4.stateid
                _, lock = locking(self._client, self._opened)
                lock.reclaim = True
                [locked] = await self._once((p.OP_LOCK, lock))
                self.stateid = locked.resok4.lock_stateid
                await self.complete()
                return
            except (Lost, *TROUBLE):
                continue

    async def write(self, offset: int, data: bytes, *, stable: bool) -> bytes:
        """The verifier. Raises Lost."""
        how = p.stable_how4.FILE_SYNC4 if stable else p.stable_how4.UNSTABLE4
        [written] = await self._once((p.OP_WRITE, p.WRITE4args(self.stateid, offset, how, data)))
        assert written.resok4.count == len(data)
        return bytes(written.resok4.writeverf)

    async def commit(self) -> bytes:
        [done] = await self._once((p.OP_COMMIT, p.COMMIT4args(0, 0)))
        return bytes(done.resok4.writeverf)

    async def read(self, count: int) -> bytes:
        [read] = await self._once((p.OP_READ, p.READ4args(self.stateid, 0, count)))
        return bytes(read.resok4.data)

    async def _once(self, operation: Any) -> list[Any]:
        """On the file, sent again until it is answered: in a session, and with the XID and seqid of before. Raises
        Lost, Failed."""
        client, there = self._client, (p.OP_PUTFH, p.PUTFH4args(self._handle))
        while True:
            message = client.message(*client.in_session(there, operation, cache=True))
            status, results = client.parse(await self._answered(client, message))
            if status in _GONE:
                raise Lost
            if status == p.NFS4ERR_DELAY:
                await asyncio.sleep(0.1)
                continue
            if status:
                raise Failed(status, [(p.nfs_opnum4(number).name, result) for number, result in results])
            return [result for _, result in results[2 if self._minor else 1 :]]

    @staticmethod
    async def _answered(client: Client4, message: bytes) -> Any:
        return await patiently(lambda: client.server.call(None, message))


class Version3:
    """A client of NFSv3 and its lock manager, with a lock on all of a file."""

    def __init__(self, address: str, minor: int, name: bytes, file: bytes) -> None:
        self._address, self._name, self._file = address, name, file
        self._connection: Nfs3Client | None = None

    async def open(self) -> None:
        async def work() -> None:
            async with await Nfs3Client.connect(self._address, MOUNTD) as client:
                root = await client.mount(PLACE)
            async with await Nfs3Client.connect(self._address, NFS) as client:
                try:
                    self._handle = await client.create(root, self._file, 0o666)
                except Nfs3Failure:
                    self._handle = await client.lookup(root, self._file)

        await patiently(work)

    async def lock(self, *, reclaim: bool = False) -> bool:
        """Whether it is to be had, now. Raises Failed with GRACE, and OSError where nobody answers."""
        args = n.nlm4_lockargs(b"", False, True, self._what(), reclaim, 1)
        answer = await self._manager(n.NLMPROC4_LOCK, pack(n.nlm4_lockargs, args))
        if answer == n.nlm4_stats.NLM4_DENIED_GRACE_PERIOD:
            raise Failed(p.NFS4ERR_GRACE, [])
        return bool(answer == n.nlm4_stats.NLM4_GRANTED)

    async def unlock(self) -> None:
        await self._manager(n.NLMPROC4_UNLOCK, pack(n.nlm4_unlockargs, n.nlm4_unlockargs(b"", self._what())))

    async def reclaim(self) -> None:
        """The lock, from a server that was restarted. Raises Failed if it is lost."""
        try:
            kept = await patiently(lambda: self.lock(reclaim=True))
        except Failed:  # only the connection was lost
            kept = await patiently(self.lock)
        if not kept:
            raise Failed(p.NFS4ERR_RECLAIM_CONFLICT, [])

    async def write(self, offset: int, data: bytes, *, stable: bool) -> bytes:
        how = stable_how.FILE_SYNC if stable else stable_how.UNSTABLE
        done = await self._once(lambda client: client.write(self._handle, offset, data, how))
        return bytes(done.verf)

    async def commit(self) -> bytes:
        return bytes((await self._once(lambda client: client.commit(self._handle))).verf)

    async def read(self, count: int) -> bytes:
        return bytes((await self._once(lambda client: client.read(self._handle, 0, count))).data)

    async def _once(self, work: Callable[[Nfs3Client], Awaitable[Any]]) -> Any:
        """Raises Lost when the connection is, as it is with the server: a lock is reclaimed before anything else."""
        try:
            async with asyncio.timeout(_PATIENCE):
                if self._connection is None:
                    self._connection = await Nfs3Client.connect(self._address, NFS)
                return await work(self._connection)
        except TROUBLE:
            if self._connection is not None:
                await self._connection.close()
                self._connection = None
            raise Lost from None

    async def _manager(self, procedure: int, args: bytes) -> Any:
        async with await Nfs3Client.connect(self._address, NLM) as client:
            return (await client.call(n.NLM_PROGRAM, 4, procedure, args, n.nlm4_res)).stat

    def _what(self) -> n.nlm4_lock:
        return n.nlm4_lock(self._name, self._handle.data, b"1@" + self._name, 1, 0, 0)


class Keeper:
    """Writes records one after the other, under a lock that it keeps."""

    def __init__(self, address: str, version: str) -> None:
        kind, minor = (Version3, 0) if version == "3" else (Version4, int(version[-1]))
        file = b"kept-" + version.encode()
        self._client: Version3 | Version4 = kind(address, minor, b"keeper-" + version.encode(), file)
        self._other = Version4(address, 1, b"thief-" + version.encode(), file)
        self._acknowledged: dict[int, float] = {}
        """Records, and when each of them was."""
        self._unsure: dict[int, bytes] = {}
        """Records that are not committed yet, and the verifiers that they got."""
        self.seen: dict[str, Any] = {"reclaims": 0, "sent again": 0, "stolen": 0, "refused": 0, "lost": []}

    async def begin(self) -> None:
        await self._client.open()
        assert await self._client.lock()
        await self._other.open()

    async def work(self, stop: asyncio.Event) -> None:
        """Write until told to stop; then see what is there."""
        thief = asyncio.ensure_future(self._try_to_steal(stop))
        for number in itertools.count():
            if stop.is_set():
                break
            await self._write(number, stable=number % 2 == 0)
            if number % 8 == 7:
                await self._commit()
            await asyncio.sleep(0.02)
        await self._commit()
        await thief
        data = await self._insist(lambda: self._client.read(len(self._acknowledged) * _RECORD))
        self.seen["lost"] = [one for one in self._acknowledged if _record(one) != data[one * 8 :][:8]]
        times = sorted(self._acknowledged.values())
        self.seen["writes"] = len(times)
        self.seen["gap"] = max(after - before for before, after in itertools.pairwise(times))
        await self._insist(self._client.unlock)
        self.seen["free"] = await self._steal()
        await self._other.unlock()

    async def _write(self, number: int, *, stable: bool) -> None:
        verifier = await self._insist(lambda: self._client.write(number * _RECORD, _record(number), stable=stable))
        self._acknowledged[number] = time.monotonic()
        if not stable:
            self._unsure[number] = verifier

    async def _commit(self) -> None:
        while self._unsure:
            verifier = await self._insist(self._client.commit)
            again = [one for one, before in self._unsure.items() if before != verifier]
            self.seen["sent again"] += len(again)
            self._unsure = {}
            for one in again:
                at = self._acknowledged[one]
                await self._write(one, stable=False)
                self._acknowledged[one] = at

    async def _insist(self, work: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await work()
            except Lost:
                await self._client.reclaim()
                self.seen["reclaims"] += 1

    async def _try_to_steal(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self.seen["stolen" if await self._steal() else "refused"] += 1
            await asyncio.sleep(0.2)

    async def _steal(self) -> bool:
        while True:
            try:
                return await self._other.lock()
            except Lost:
                await self._other.open()
            except Failed as failed:
                if failed.status not in _LATER:
                    raise
                await asyncio.sleep(0.2)


def _record(number: int) -> bytes:
    return struct.pack(">Q", number + 1)


async def main() -> None:
    """Until standard input ends."""
    keepers = {version: Keeper(sys.argv[1], version) for version in VERSIONS}
    await asyncio.gather(*(keeper.begin() for keeper in keepers.values()))
    stop = asyncio.Event()
    working = asyncio.gather(*(keeper.work(stop) for keeper in keepers.values()))
    print("ready", flush=True)
    ending = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait([ending, asyncio.ensure_future(working)], return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    await working
    print(json.dumps({version: keeper.seen for version, keeper in keepers.items()}))


if __name__ == "__main__":
    asyncio.run(main())
