"""Clients that record what they do: data, names and renames by NFSv3, each call made once and never again, so that a
lost answer is no second doing; and files by the client library, which does its calls again as programs want it to."""

from __future__ import annotations

import asyncio
import itertools
import random
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nfsd.client
from nfsd.client import NfsClientError
from nfsd.protocol import nfs3
from rpcrdma.memory import Pool
from rpcrdma.peer.requester import Peer
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp import SoftIwarp
from tests.hostile.peer import Refused, nfs3_call, results3
from tests.nfs3_client import Nfs3Client, attributes
from tests.peer.rig import LINUX
from tests.soak.record import Again, Key, Record
from tests.soak.relay import Relay
from tests.support.nfs_work import OverRdma, OverTcp, Way

KEYS = 3
"""Of each kind in an era."""
PATIENCE = 8.0
"""Seconds for an answer."""
PAUSE = 0.02
TROUBLE = (OSError, EOFError, TimeoutError, Refused, AssertionError)
"""A connection that is lost, or a message that did not come whole."""
_NO_ROOM = {nfs3.nfsstat3.NFS3ERR_NOSPC, nfs3.nfsstat3.NFS3ERR_IO, nfs3.nfsstat3.NFS3ERR_DQUOT}
values = itertools.count(1)
"""What is written: each is written once."""


class Unsure(OSError):
    """The server says that something went wrong on its disk: how much was done, nobody knows."""


class Door:
    """One client's ways to the server, by relays of its own."""

    def __init__(self, number: int, tcp: int, rdma: int, provider: SoftIwarp, pool: Pool) -> None:
        self.source = f"127.0.0.{10 + number}"
        self.relays = {"tcp": Relay(self.source, tcp), "rdma": Relay(self.source, rdma)}
        self._provider, self._pool = provider, pool

    @asynccontextmanager
    async def way(self, transport: str) -> AsyncIterator[Way]:
        """A connection. Raises OSError, TimeoutError."""
        port = self.relays[transport].port
        if transport == "tcp":
            async with asyncio.timeout(PATIENCE):
                client = await Nfs3Client.connect("127.0.0.1", port)
            async with client:
                yield OverTcp(client)
            return
        peer = Peer(self._pool.account(16 << 20))
        async with asyncio.timeout(PATIENCE):
            await peer.connect(self._provider, ListenAddress("127.0.0.1", port), LINUX, 32, initiator_depth=4)
        try:
            yield OverRdma(peer, 1)
        finally:
            if peer.reason is None:
                peer.endpoint.close(abort=True)
            await peer.over()


class Client:
    """One that works until it is cancelled, over one connection after the other."""

    def __init__(self, name: str, door: Door, transport: str, record: Record, root: nfs3.nfs_fh3, seed: int) -> None:
        self.name, self.door, self.transport = name, door, transport
        self.record, self.root = record, root
        self.chance = random.Random(seed)

    async def live(self) -> None:
        """Connect, work, and begin again when the connection is lost."""
        while True:
            try:
                async with self.door.way(self.transport) as way:
                    self.record.counts["connections of clients"] += 1
                    while True:
                        await self.step(way)
                        await asyncio.sleep(PAUSE * self.chance.random())
            except TROUBLE:
                await asyncio.sleep(0.1 + 0.3 * self.chance.random())

    async def step(self, way: Way) -> None:
        """Some operations."""
        raise NotImplementedError

    def key(self, kind: str) -> Key:
        """One of the era that is now."""
        return kind, self.record.era, self.chance.randrange(KEYS)


class Client3(Client):
    """Data and names by NFSv3."""

    def __init__(self, *more: Any) -> None:
        super().__init__(*more)
        self._files: dict[Key, nfs3.nfs_fh3] = {}

    async def step(self, way: Way) -> None:
        self._way = way
        try:
            match self.chance.randrange(3):
                case 0:
                    await self._data(self.key("data"))
                case 1:
                    await self._renamed(self.key("renamed"))
                case _:
                    await self._name(self.key("name"))
        except Again:
            self.record.counts["told to come again"] += 1
            await asyncio.sleep(0.2)
        except Unsure:
            self.record.counts["errors of the disk"] += 1

    async def _call(self, procedure: str, arguments: Any, *expected: nfs3.nfsstat3) -> Any:
        """A call's result union, whose status is NFS3_OK or one of these. Raises Again, Unsure, and TROUBLE."""
        async with asyncio.timeout(PATIENCE):
            reply, _ = await self._way.send(nfs3_call(procedure, arguments, uid=0, gid=0))
        result = results3(procedure, reply)
        status = result.status
        if status == nfs3.nfsstat3.NFS3_OK or status in expected:
            return result
        if status == nfs3.nfsstat3.NFS3ERR_JUKEBOX:
            raise Again
        if status in _NO_ROOM:
            raise Unsure(f"{procedure}: {status!r}")
        self.record.finding(f"{self.name}: {procedure} is answered with {status!r}")
        raise Unsure(f"{procedure}: {status!r}")

    def _there(self, name: bytes) -> nfs3.diropargs3:
        return nfs3.diropargs3(self.root, name)

    async def _create(self, name: bytes) -> nfs3.nfs_fh3:
        how = nfs3.createhow3(nfs3.createmode3.UNCHECKED, obj_attributes=attributes(mode=0o644))
        made: nfs3.nfs_fh3 = (await self._call("CREATE", nfs3.CREATE3args(self._there(name), how))).resok.obj
        return made

    async def _write(self, file: nfs3.nfs_fh3, value: int) -> None:
        data = memoryview(value.to_bytes(8, "big"))
        await self._call("WRITE", nfs3.WRITE3args(file, 0, 8, nfs3.stable_how.FILE_SYNC, data))

    async def _read(self, file: nfs3.nfs_fh3, *expected: nfs3.nfsstat3) -> int | None:
        result = await self._call("READ", nfs3.READ3args(file, 0, 8), *expected)
        if result.status:
            raise Again
        data = bytes(result.resok.data)
        return int.from_bytes(data, "big") if data else None

    async def _data(self, key: Key) -> None:
        if key not in self._files:
            self._files = {known: file for known, file in self._files.items() if known[1] >= self.record.era - 1}
            self._files[key] = await self._create(b"data-%d-%d" % key[1:])
        if self.chance.random() < 0.5:
            value = next(values)
            with self.record.operation(self.name, "write", key, value):
                await self._write(self._files[key], value)
        else:
            with self.record.operation(self.name, "read", key) as made:
                made.result = await self._read(self._files[key])

    async def _renamed(self, key: Key) -> None:
        name = b"renamed-%d-%d" % key[1:]
        if self.chance.random() < 0.5:
            value = next(values)
            source = b"new-%d" % value
            await self._write(await self._create(source), value)
            with self.record.operation(self.name, "write", key, value):
                await self._call("RENAME", nfs3.RENAME3args(self._there(source), self._there(name)))
            return
        gone = nfs3.nfsstat3.NFS3ERR_NOENT
        with self.record.operation(self.name, "read", key) as made:
            found = await self._call("LOOKUP", nfs3.LOOKUP3args(self._there(name)), gone)
            # Another file may take its place between the two calls: then this one is as if not asked.
            stale = nfs3.nfsstat3.NFS3ERR_STALE
            made.result = None if found.status == gone else await self._read(found.resok.object, stale)

    async def _name(self, key: Key) -> None:
        there = self._there(b"name-%d-%d" % key[1:])
        kind = self.chance.choice(["create", "remove", "look"])
        with self.record.operation(self.name, kind, key) as made:
            if kind == "create":
                how = nfs3.createhow3(nfs3.createmode3.GUARDED, obj_attributes=attributes(mode=0o644))
                if self.chance.random() < 0.5:
                    how = nfs3.createhow3(nfs3.createmode3.EXCLUSIVE, verf=next(values).to_bytes(8, "big"))
                found = await self._call("CREATE", nfs3.CREATE3args(there, how), nfs3.nfsstat3.NFS3ERR_EXIST)
            elif kind == "remove":
                found = await self._call("REMOVE", nfs3.REMOVE3args(there), nfs3.nfsstat3.NFS3ERR_NOENT)
            else:
                found = await self._call("LOOKUP", nfs3.LOOKUP3args(there), nfs3.nfsstat3.NFS3ERR_NOENT)
            made.result = found.status == nfs3.nfsstat3.NFS3_OK


class CloseToOpen:
    """One writer and readers of one file, each with the client library: who opens it after it was closed sees what was
    written before."""

    def __init__(self, doors: list[Door], record: Record) -> None:
        self._doors, self._record = doors, record
        self._closed = 0
        """The last number whose file was closed."""
        self._begun = 0

    async def live(self) -> None:
        """All of them, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number, door in enumerate(self._doors):
                group.create_task(self._one(door, self._reader if number else self._writer))

    async def _one(self, door: Door, turn: Any) -> None:
        url = f"tcp://127.0.0.1:{door.relays['tcp'].port}/soak"
        options = nfsd.client.Options(nfs_version="4.1", patience=30.0)
        while True:
            try:
                async with nfsd.client.connect(url, options) as files:
                    while True:
                        await turn(files)
                        await asyncio.sleep(PAUSE)
            except (OSError, NfsClientError, TimeoutError):
                self._record.counts["errors of the client library"] += 1
                await asyncio.sleep(0.2)
            except Exception:  # which its programs would not expect
                self._record.finding(f"the client library: {traceback.format_exc()}")
                await asyncio.sleep(0.2)

    async def _writer(self, files: Any) -> None:
        self._begun += 1
        number = self._begun
        async with files.open("close-to-open", "r+" if self._closed else "w") as file:
            await file.pwrite(number.to_bytes(8, "big"), 0)
        self._closed = number
        self._record.counts["close-to-open write"] += 1

    async def _reader(self, files: Any) -> None:
        least = self._closed
        if not least:
            return
        async with files.open("close-to-open") as file:
            data = bytes(await file.pread(8, 0))
        found = int.from_bytes(data, "big") if data else 0
        self._record.counts["close-to-open read"] += 1
        if not least <= found <= self._begun:
            self._record.finding(f"opened after {least} was closed, the file has {found} of {self._begun}")
