"""Connections of an NFSv4 client over real transports: TCP, and RPC-over-RDMA by any provider.

A :class:`TcpWire` or :class:`RdmaWire` is given to :class:`~tests.support.nfs4.Client4` as its transport, and
:class:`Network` as its server. Callbacks that arrive are answered by a :class:`~tests.support.callbacks.CallbackEnd`.
"""

from __future__ import annotations

import asyncio
import struct

from rpcrdma.memory import Pool
from rpcrdma.peer.requester import Peer
from rpcrdma.peer.wire import header, header_two
from rpcrdma.server.rdma import RdmaServer, RdmaServerOptions
from rpcrdma.server.tcp import TcpListener
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp.provider import SoftIwarp
from tests.peer.rig import LINUX
from tests.support.callbacks import CallbackEnd
from tests.support.nfs4 import Server4

_HEADER = {1: 28, 2: 36}
"""Octets of an RPC-over-RDMA header without chunks, by version."""


class _Wire:
    """What the kinds of connections share: matching replies with calls, and answering callbacks."""

    max_backchannel_size = 1

    def __init__(self, end: CallbackEnd) -> None:
        self.end = end
        self.closed = False
        self._calls: dict[bytes, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, message: bytes) -> bytes:
        """One RPC."""
        future = self._calls[message[:4]] = asyncio.get_running_loop().create_future()
        self.send(message)
        return await asyncio.wait_for(future, 20)

    def send(self, message: bytes) -> None:
        raise NotImplementedError

    def arrived(self, message: bytes) -> None:
        """A whole RPC message, of either direction."""
        if message[4:8] == bytes((0, 0, 0, 1)):
            self._calls.pop(message[:4]).set_result(message)
            return
        task = asyncio.create_task(self._answer(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: bytes) -> None:
        reply = await self.end.answer(message, self)
        if not self.closed:
            self.send(reply)

    def stop(self) -> None:
        """Nothing more is done for this connection."""
        self.closed = True
        for task in self._tasks:
            task.cancel()


class TcpWire(_Wire):
    """A TCP connection."""

    async def connect(self, host: str, port: int) -> TcpWire:
        self._reader, self._writer = await asyncio.open_connection(host, port)
        self._receiver = asyncio.create_task(self._receive())
        return self

    def send(self, message: bytes) -> None:
        self._writer.write(struct.pack(">I", 0x80000000 | len(message)) + message)

    async def _receive(self) -> None:
        try:
            while True:
                (mark,) = struct.unpack(">I", await self._reader.readexactly(4))
                self.arrived(await self._reader.readexactly(mark & 0x7FFFFFFF))
        except (EOFError, OSError):
            self.closed = True

    def close(self) -> None:
        self.stop()
        self._receiver.cancel()
        self._writer.close()


class RdmaWire(_Wire):
    """An RPC-over-RDMA connection of either version, short messages only."""

    def __init__(self, end: CallbackEnd, version: int = 1) -> None:
        super().__init__(end)
        self.version = version

    async def connect(self, provider: SoftIwarp, address: ListenAddress, pool: Pool) -> RdmaWire:
        self._peer = Peer(pool.account(16 << 20))
        await self._peer.connect(provider, address, LINUX)
        self._receiver = asyncio.create_task(self._receive())
        return self

    def send(self, message: bytes) -> None:
        xid, direction = (int.from_bytes(message[start : start + 4], "big") for start in (0, 4))
        if self.version == 1:
            self._peer.send(header(xid, credit=16) + message)
        else:
            self._peer.send(header_two(xid, credit=16, direction=direction) + message)

    async def _receive(self) -> None:
        while True:
            message = await self._peer._messages.get()
            assert message.octets[4:8] == self.version.to_bytes(4, "big")
            self.arrived(message.octets[_HEADER[self.version] :])

    def close(self) -> None:
        self.stop()
        self._receiver.cancel()
        if self._peer.reason is None:
            self._peer.endpoint.close(abort=True)


class Network:
    """Listeners for an NFSv4 server; use as an asynchronous context manager."""

    def __init__(self, server: Server4) -> None:
        self.engine = server.engine
        self.nfs4 = server.nfs4
        self._dispatcher = server.dispatcher
        self._pool = Pool(256 << 20)
        self._peer_pool = Pool(256 << 20)
        self.wires: list[_Wire] = []

    async def __aenter__(self) -> Network:
        self.tcp = TcpListener(self._dispatcher, self._pool, asyncio.get_running_loop())
        self.tcp.listen("127.0.0.1", 0)
        self._provider = SoftIwarp(self._pool)
        self.rdma = RdmaServer(self._provider, self._pool, self._dispatcher, RdmaServerOptions())
        self._listener = await self.rdma.listen(ListenAddress("127.0.0.1", 0))
        return self

    async def __aexit__(self, *_: object) -> None:
        for wire in self.wires:
            wire.close()
        self.tcp.close()
        await self.rdma.close()
        await self._provider.close()

    async def call(self, transport: _Wire, message: bytes) -> bytes:
        """What Client4 wants of its server."""
        return await transport.call(message)

    async def connect(self, kind: str, end: CallbackEnd) -> _Wire:
        """A connection: ``tcp``, ``rdma`` in version One, or ``rdma2`` in version Two."""
        if kind == "tcp":
            wire = await TcpWire(end).connect(*self.tcp.address)
        else:
            version = 2 if kind == "rdma2" else 1
            wire = await RdmaWire(end, version).connect(self._provider, self._listener.address, self._peer_pool)
        self.wires.append(wire)
        return wire
