"""The honest client: a process of its own, with steady users of each protocol and one who keeps arriving anew.

    python -m tests.hostile.honest HOST TCP_PORT RDMA_PORT MOUNTD_PORT [CACHE]

With a ticket of Kerberos in CACHE there are users who are known by that.
Every call is written to stdout as a JSON list: user, call, when it began and when it was over (CLOCK_MONOTONIC), and
what went wrong ("" for nothing). Words on stdin: ``pause``, ``resume``, and ``settle``, which is answered by
``["settled"]`` once each user has been through all its calls from then on, or failed to be. What is read is compared
with what was written. Between two ``settle`` the sleepers make no calls at all: a mount that nobody uses for a while.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import uvloop

from nfsd.client import Options, connect
from nfsd.protocol import nfs3
from nfsd.protocol import nfs4 as p
from rpcrdma.client import ClientOptions, Gss
from rpcrdma.memory import Pool
from rpcrdma.peer.requester import Peer
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp import SoftIwarp, SoftIwarpOptions
from tests.hostile.peer import NULL3, accepted, nfs3_call, results3
from tests.nfs3_client import Nfs3Client, attributes
from tests.peer.rig import LINUX
from tests.support.nfs4 import Client4, mode
from tests.support.nfs_work import OverRdma, OverTcp, Way

PATIENCE = 20.0
"""Seconds for one call, on a machine however busy."""
JOURNEY = 3 * PATIENCE
"""Seconds for several one after the other: a connection and what it is for, a mount."""
PAUSE = 0.01
UID = GID = 4000
BULK = 32768
LARGE = 1 << 20
SMALL = 1000


Calls = Sequence[tuple[str, Callable[[], Awaitable[None]]]]
"""A turn's: what they are called and what makes them."""


class Wrong(Exception):
    """The answer is not what it should be."""


def check(condition: bool, what: str) -> None:
    if not condition:
        raise Wrong(what)


class User:
    """Who makes calls in turns, over one connection; after a failure over a new one."""

    pause = PAUSE
    patience = PATIENCE

    def __init__(self, house: House, name: str) -> None:
        self.house, self.name = house, name
        self.turns = 0

    async def live(self) -> None:
        while True:
            try:
                async with AsyncExitStack() as stack:
                    calls: Calls = ()

                    async def connect(stack: AsyncExitStack = stack) -> None:
                        nonlocal calls
                        calls = await stack.enter_async_context(self.connected())

                    await self.timed("connect", connect, JOURNEY)
                    while True:
                        await self.rest()
                        for what, call in calls:
                            await self.house.running.wait()
                            await self.timed(what, call, self.patience)
                            await asyncio.sleep(self.pause)
                        self.turns += 1
            except Exception:
                self.turns += 2  # it has been told: nobody need wait for this one
                await asyncio.sleep(self.pause)

    async def rest(self) -> None:
        """Before a turn."""

    async def timed(self, what: str, call: Callable[[], Awaitable[None]], patience: float) -> None:
        began, failure = time.monotonic(), ""
        try:
            async with asyncio.timeout(patience):
                await call()
        except Exception as error:
            failure = f"{type(error).__name__} {error}"[:200]
            raise
        finally:
            print(json.dumps([self.name, what, began, time.monotonic(), failure]), flush=True)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Calls]:
        """Connect; gives a turn's calls."""
        raise NotImplementedError
        yield

    def content(self, size: int) -> bytes:
        return os.urandom(16) * (size // 16)


class User3(User):
    """NFSv3, on the disk over TCP and in memory over RDMA, with chunks there."""

    def __init__(self, house: House, name: str, export: bytes, way: Callable[[], Any], size: int = BULK) -> None:
        super().__init__(house, name)
        self.export, self.way, self.size = export, way, size
        if size == LARGE:
            self.pause = 0.2

    async def nfs(self, name: str, arguments: Any, **how: Any) -> tuple[Any, bytes]:
        reply, chunk = await self._way.send(nfs3_call(name, arguments, uid=UID, gid=GID), **how)
        if chunk:
            check(accepted(reply)[:4] == bytes(4), name)
            return None, chunk
        result = results3(name, reply)
        check(result.status == 0, f"{name}: {result.status!r}")
        return result.resok, b""

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Calls]:
        root = await self.house.mount(self.export)
        async with self.way() as self._way:
            where = nfs3.diropargs3(root, self.name.encode())
            how = nfs3.createhow3(nfs3.createmode3.UNCHECKED, obj_attributes=attributes(mode=0o600))
            self._file = (await self.nfs("CREATE", nfs3.CREATE3args(where, how)))[0].obj
            self._written = b""
            yield [("NULL", self.null), ("GETATTR", self.getattr), ("WRITE", self.write), ("READ", self.read)]

    async def null(self) -> None:
        accepted((await self._way.send(NULL3))[0])

    async def getattr(self) -> None:
        await self.nfs("GETATTR", nfs3.GETATTR3args(self._file))

    async def write(self) -> None:
        data = self.content(self.size)
        arguments = nfs3.WRITE3args(self._file, 0, len(data), nfs3.stable_how.UNSTABLE, memoryview(data))
        await self.nfs("WRITE", arguments, **({"bulk": data} if isinstance(self._way, OverRdma) else {}))
        self._written = data

    async def read(self) -> None:
        over_rdma = isinstance(self._way, OverRdma)
        result, chunk = await self.nfs(
            "READ", nfs3.READ3args(self._file, 0, self.size), **({"into": (self.size,)} if over_rdma else {})
        )
        check((chunk if over_rdma else bytes(result.data)) == self._written, "READ: other data than was written")


class User4(User):
    """NFSv4.0, or 4.1 with a session, and an open file."""

    def __init__(self, house: House, name: str, export: bytes, way: Callable[[], Any], minor: int = 1) -> None:
        super().__init__(house, name)
        self.export, self.way, self.minor = export, way, minor

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Calls]:
        async with self.way() as way:
            self._client = client = Client4(way, self.minor, uid=UID, gid=GID, name=self.name.encode(), transport=way)
            await client.connect(time.time_ns().to_bytes(8, "big"))
            access = p.OPEN4_SHARE_ACCESS_BOTH | (p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG if self.minor else 0)
            name = self.name.encode()
            self._state, self._handle = await client.open(self.export.decode(), name, access=access, create=mode(0o600))
            yield [("GETATTR", self.getattr), ("WRITE", self.write), ("READ", self.read)]

    async def getattr(self) -> None:
        await self._client.on(self._handle, (p.OP_GETATTR, p.GETATTR4args([1 << p.FATTR4_SIZE])))

    async def write(self) -> None:
        data = self.content(SMALL)
        arguments = p.WRITE4args(self._state, 0, p.stable_how4.UNSTABLE4, memoryview(data))
        await self._client.on(self._handle, (p.OP_WRITE, arguments))
        self._written = data

    async def read(self) -> None:
        [result] = await self._client.on(self._handle, (p.OP_READ, p.READ4args(self._state, 0, len(self._written))))
        check(bytes(result.resok4.data) == self._written, "READ: other data than was written")


class Secured(User):
    """Who is known by Kerberos: NFSv4.1 by this program's own client, encrypted."""

    pause = 0.3
    patience = JOURNEY

    def __init__(self, house: House, name: str, export: str, way: str) -> None:
        super().__init__(house, name)
        self.export, self.way = export, way

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Calls]:
        async with self.house.secured(self.way, self.export) as files:
            name = self.name.replace(" ", "-")

            async def write() -> None:
                self._written = self.content(BULK)
                await files.write_bytes(name, self._written)

            async def read() -> None:
                check(await files.read_bytes(name) == self._written, "read: other data than was written")

            yield [("write", write), ("read", read), ("new context", self.come)]

    async def come(self) -> None:
        async with self.house.secured(self.way, self.export) as files:
            await files.stat(".")


class Newcomer(User):
    """Who comes, asks once, and goes."""

    pause = 0.03
    patience = JOURNEY

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Calls]:
        ways = [(f"new {name}", functools.partial(self.null, way)) for name, way in self.house.ways.items()]
        yield [("MNT", self.mnt), *ways]

    async def mnt(self) -> None:
        await self.house.mount(b"/memory")

    async def null(self, way: Callable[[], Any]) -> None:
        async with way() as connection:
            accepted((await connection.send(NULL3))[0])


class Newclient(User):
    """Who mounts by NFSv4.1, and unmounts."""

    pause = 0.03
    patience = JOURNEY

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Calls]:
        yield [("mount 4.1", self.mount)]

    async def mount(self) -> None:
        async with self.house.tcp() as way:
            client = Client4(way, 1, uid=UID, gid=GID, name=b"new %d" % time.time_ns(), transport=way)
            await client.connect()
            await client.run(*client.path("/memory"), (p.OP_GETATTR, p.GETATTR4args([1 << p.FATTR4_SIZE])))
            for operation in (
                (p.OP_DESTROY_SESSION, p.DESTROY_SESSION4args(client.session)),
                (p.OP_DESTROY_CLIENTID, p.DESTROY_CLIENTID4args(client.clientid)),
            ):
                status, _ = await client.raw(operation)
                check(status == 0, f"{operation[0]}: {status}")


class Sleeper(User):
    """Who has a connection and makes no calls, until everybody is to make one."""

    def __init__(self, house: House, name: str, way: Callable[[], Any]) -> None:
        super().__init__(house, name)
        self.way = way

    async def rest(self) -> None:
        async with self.house.woken:
            await self.house.woken.wait()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Calls]:
        async with self.way() as way:

            async def null() -> None:
                accepted((await way.send(NULL3))[0])

            yield [("first for a while", null)]


class House:
    """All users, and the ways to the server."""

    def __init__(self, host: str, tcp: int, rdma: int, mountd: int, cache: str = "") -> None:
        self.host, self._ports = host, (tcp, rdma, mountd)
        self._gss = Gss("krb5p", "nfs@localhost", cache)
        self._pool = Pool(256 << 20)
        self._provider = SoftIwarp(self._pool, SoftIwarpOptions(mpa_timeout=JOURNEY))
        self.running = asyncio.Event()
        self.running.set()
        self.woken = asyncio.Condition()
        self.ways = {"TCP": self.tcp, "RDMA": self.rdma}
        self.users: list[User] = [
            User3(self, "v3 tcp", b"/disk", self.tcp),
            User3(self, "v3 rdma", b"/memory", self.rdma),
            User3(self, "v3 large tcp", b"/memory", self.tcp, LARGE),
            User3(self, "v3 large rdma", b"/disk", self.rdma, LARGE),
            User4(self, "v4.1 tcp", b"/memory", self.tcp),
            User4(self, "v4.1 rdma", b"/disk", self.rdma),
            User4(self, "v4.0 tcp", b"/memory", self.tcp, 0),
            Newcomer(self, "newcomer"),
            Newclient(self, "new client"),
            Sleeper(self, "sleeper tcp", self.tcp),
            Sleeper(self, "sleeper rdma", self.rdma),
        ]
        if cache:
            self.users += [Secured(self, "krb5p tcp", "/memory", "tcp"), Secured(self, "krb5p rdma", "/disk", "rdma")]

    @asynccontextmanager
    async def tcp(self) -> AsyncIterator[Way]:
        async with await Nfs3Client.connect(self.host, self._ports[0]) as client:
            yield OverTcp(client)

    @asynccontextmanager
    async def rdma(self) -> AsyncIterator[Way]:
        account = self._pool.account(64 << 20)
        peer = Peer(account)
        await peer.connect(self._provider, ListenAddress(self.host, self._ports[1]), LINUX, 32, initiator_depth=4)
        try:
            yield OverRdma(peer, 1)
        finally:
            if peer.reason is None:
                peer.endpoint.close()
            await peer.over()

    def secured(self, way: str, export: str) -> connect:
        """The files of an export, to one who is known by Kerberos."""
        port = self._ports[way == "rdma"]
        return connect(f"{way}://{self.host}:{port}{export}", Options(rpc=ClientOptions(gss=self._gss)))

    async def mount(self, path: bytes) -> nfs3.nfs_fh3:
        async with await Nfs3Client.connect(self.host, self._ports[2]) as client:
            return await client.mount(path)

    async def settle(self) -> None:
        """Wait until everybody has been through all calls once more."""
        then = [user.turns for user in self.users]
        turns = [1 if isinstance(user, Sleeper) else 2 for user in self.users]
        while any(user.turns < before + more for user, before, more in zip(self.users, then, turns, strict=True)):
            async with self.woken:
                self.woken.notify_all()
            await asyncio.sleep(PAUSE)
        print('["settled"]', flush=True)

    async def live(self) -> None:
        tasks: list[asyncio.Task[None]] = [asyncio.create_task(user.live()) for user in self.users]
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while word := await reader.readline():
            words: dict[bytes, Callable[[], Awaitable[None] | None]] = {
                b"pause\n": self.running.clear,
                b"resume\n": self.running.set,
                b"settle\n": lambda: tasks.append(asyncio.create_task(self.settle())),
            }
            words[word]()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def main() -> None:
    host, tcp, rdma, mountd, *cache = sys.argv[1:]
    uvloop.run(House(host, int(tcp), int(rdma), int(mountd), *cache).live())


if __name__ == "__main__":
    main()
