"""A program and a TCP server in this process, over real sockets."""

import asyncio
import contextlib
import dataclasses
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from rpcrdma.hosts import HostLimits, Hosts
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import Call, DropCall, Procedure, Program
from rpcrdma.server.tcp import TcpConnection, TcpLimits, TcpListener
from rpcrdma.xdr import DDP, Payload, opaque, uint32
from rpcrdma.xdr import struct as xdr_struct
from tests.unit.rpc_support import call

HOST_LIMITS = {field.name for field in dataclasses.fields(HostLimits)}


@xdr_struct
class blob:
    data: Annotated[bytes | memoryview | Payload, opaque(1 << 20), DDP]


class Service:
    def __init__(self) -> None:
        self.gate: asyncio.Event | None = None
        self.transports: list[Any] = []
        self.running = 0
        self.most = 0

    async def null(self, call: Call, _: None) -> None:
        self.transports.append(call.transport)
        self.running += 1
        self.most = max(self.most, self.running)
        if self.gate is not None:
            await self.gate.wait()
        self.running -= 1

    async def drop(self, _: Call, __: None) -> None:
        raise DropCall

    async def sum(self, _: Call, value: blob) -> int:
        return sum(value.data) & 0xFFFFFFFF  # type: ignore[arg-type]

    async def data(self, call: Call, size: int) -> blob:
        lease = await call.transport.lease(size)
        lease.view[:size] = bytes(range(256)) * (size // 256) + bytes(size % 256)
        return blob(Payload(lease.view[:size], lease))

    def program(self) -> Program:
        rows = {
            0: Procedure("NULL", self.null),
            1: Procedure("DROP", self.drop),
            2: Procedure("SUM", self.sum, blob, uint32),
            3: Procedure("DATA", self.data, uint32, blob),
        }
        return Program(400000, "test", {3: rows})


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, message: bytes | memoryview) -> None:
        self.writer.write(struct.pack(">I", len(message) | 0x80000000) + message)

    async def receive(self) -> bytes:
        (mark,) = struct.unpack(">I", await self.reader.readexactly(4))
        assert mark & 0x80000000
        return await self.reader.readexactly(mark & 0x7FFFFFFF)

    async def xid(self) -> int:
        return int.from_bytes((await self.receive())[:4], "big")

    async def ended(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True


class Server:
    def __init__(self, host: str = "127.0.0.1", **limits: Any) -> None:
        self.service = Service()
        self.pool = Pool(64 << 20, 4 << 20)
        self.dispatcher = Dispatcher([self.service.program()])
        loop = asyncio.get_running_loop()
        hosts = HostLimits(**{key: limits.pop(key) for key in list(limits) if key in HOST_LIMITS})
        self.hosts = Hosts(self.pool, hosts)
        self.listener = TcpListener(self.dispatcher, self.pool, loop, TcpLimits(**limits), hosts=self.hosts)
        self.listener.listen(host, 0)

    async def connect(self, host: str = "127.0.0.1", **options: Any) -> Client:
        return Client(*await asyncio.open_connection(host, self.listener.address[1], **options))

    def connection(self) -> TcpConnection:
        (only,) = self.listener.connections
        return only


@contextlib.asynccontextmanager
async def serving(host: str = "127.0.0.1", **limits: Any) -> AsyncIterator[Server]:
    server = Server(host, **limits)
    yield server
    server.listener.close()
    assert server.listener.connections == set()
    await server.dispatcher.drain(0)
    assert server.pool.in_use == 0


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop work until ``condition`` holds (bounded by the test's timeout)."""
    while not condition():  # noqa: ASYNC110 (there is nothing to wait for but the loop itself)
        await asyncio.sleep(0.001)


def data_call(size: int, xid: int = 1) -> memoryview:
    return call(3, size.to_bytes(4, "big"), xid=xid)


def sum_call(data: bytes, xid: int = 1) -> memoryview:
    return call(2, len(data).to_bytes(4, "big") + data + bytes(-len(data) & 3), xid=xid)
