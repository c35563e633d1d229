"""Run in a guest: an RPC-over-RDMA requester on this project's own provider over devices, for what needs many
connections or a client that dies: ``verbs_client.py churn|hold|die ADDRESS PORT COUNT``.

churn  opens COUNT connections, eight at a time; each makes a NULL call; every other one is dropped without a word.
hold   opens COUNT connections, prints "holding", makes NULL calls on them until standard input ends or all are gone.
die    opens a connection, sends COUNT calls whose arguments the server must read from here, 1 MiB each, and is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import sys
from collections.abc import Sequence

from rpcrdma.memory import Pool
from rpcrdma.verbs.device import DeviceOptions, make_provider
from rpcrdma.verbs.device.provider import DeviceProvider
from rpcrdma.verbs.interface import Endpoint, ListenAddress, Received, Send
from rpcrdma.wire.private_data import PrivateData

NFS_PROGRAM, NFS_V3, NULL, WRITE = 100003, 3, 0, 7
MIB = 1 << 20
SEGMENTS = 16
PRIVATE_DATA = PrivateData(send_size=4096, receive_size=4096).encode()


def call(xid: int, procedure: int) -> bytes:
    """An RPC call with an empty credential and no arguments."""
    return struct.pack(">10I", xid, 0, 2, NFS_PROGRAM, NFS_V3, procedure, 0, 0, 0, 0)


class Connection:
    """One connection; its only calls are NULL."""

    def __init__(self, provider: DeviceProvider) -> None:
        self.provider = provider
        self.account = provider.pool.account(8 << 20)
        self.replies: asyncio.Queue[int] = asyncio.Queue()
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.endpoint: Endpoint

    async def open(self, address: ListenAddress) -> Connection:
        """Connect."""
        receives = [self.account.lease(4096) for _ in range(8)]
        try:
            self.endpoint, _ = await self.provider.connect(address, self, PRIVATE_DATA, receives, initiator_depth=0)
        except BaseException:
            for lease in receives:
                lease.release()
            raise
        return self

    def received(self, messages: Sequence[Received]) -> None:
        """Take replies."""
        for lease, _, _ in messages:
            self.replies.put_nowait(struct.unpack_from(">I", lease.view)[0])
            lease.release()
        self.endpoint.post_receives([self.account.lease(4096) for _ in messages])

    def completed(self, token: object, ok: bool) -> None:
        """Nothing is done about that."""

    def disconnected(self, reason: str) -> None:
        """The end."""
        self.over.set_result(str(reason))

    def post_null(self, xid: int) -> None:
        """Send a NULL call."""
        message = struct.pack(">7I", xid, 1, 8, 0, 0, 0, 0) + call(xid, NULL)
        self.endpoint.post((), Send((message,)), None)

    def post_write(self, xid: int) -> None:
        """Send a call of WRITE whose arguments, 1 MiB of nonsense, the server has to read."""
        memory = bytearray(MIB)
        handle, base = self.endpoint.register(memoryview(memory), remote_read=True)
        size = MIB // SEGMENTS
        message = call(xid, WRITE)
        header = struct.pack(">4I", xid, 1, 8, 0)
        for part in range(SEGMENTS):
            header += struct.pack(">4IQ", 1, len(message), handle, size, base + part * size)
        self.endpoint.post((), Send((header + bytes(12) + message,)), None)

    async def null(self, xid: int) -> None:
        """Make a NULL call. Raises ConnectionError when the connection ends first, TimeoutError after a minute."""
        self.post_null(xid)
        assert await self.reply() == xid

    async def reply(self) -> int:
        """The next reply's XID. Raises as :meth:`null` does."""
        reply = asyncio.ensure_future(self.replies.get())
        await asyncio.wait((reply, self.over), timeout=60, return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            reply.cancel()
            raise ConnectionError(self.over.result()) if self.over.done() else TimeoutError
        return reply.result()


async def churn(provider: DeviceProvider, address: ListenAddress, count: int) -> None:
    """Open, use and drop connections."""
    numbers = iter(range(count))

    async def one_after_another() -> None:
        for number in numbers:
            connection = await Connection(provider).open(address)
            await connection.null(number + 1)
            connection.endpoint.close(abort=bool(number % 2))
            await connection.over

    await asyncio.gather(*(one_after_another() for _ in range(8)))
    print(json.dumps({"connections": count}), flush=True)


async def hold(provider: DeviceProvider, address: ListenAddress, count: int) -> None:
    """Keep connections busy until told otherwise."""
    connections = [await Connection(provider).open(address) for _ in range(count)]
    print("holding", flush=True)
    told = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, told.set)
    calls = 0
    reasons = []

    async def busy(connection: Connection) -> None:
        nonlocal calls
        try:
            while not told.is_set():
                calls += 1
                await connection.null(calls)
            connection.endpoint.close()
        except (ConnectionError, TimeoutError) as error:
            reasons.append(str(error) or "no reply")

    await asyncio.gather(*map(busy, connections))
    print(json.dumps({"calls": calls, "lost": reasons}), flush=True)


async def die(provider: DeviceProvider, address: ListenAddress, count: int) -> None:
    """Send WRITE calls whose data is to be read from here, and die before that can be over."""
    connection = await Connection(provider).open(address)
    await connection.null(1)
    for number in range(count):
        connection.post_write(number + 2)
    await asyncio.sleep(0)
    # One turn of the loop posts them. SIGKILL: the kernel takes everything away under the server's Reads.
    await asyncio.sleep(float(os.environ.get("BEFORE_DEATH", "0.02")))
    os.kill(os.getpid(), signal.SIGKILL)


async def main(what: str, host: str, port: str, count: str) -> None:
    """Run a command."""
    provider = make_provider(Pool(256 << 20), DeviceOptions(send_depth=64, completion_depth=1024))
    address = ListenAddress(host, int(port))
    await {"churn": churn, "hold": hold, "die": die}[what](provider, address, int(count))
    await provider.close()


asyncio.run(main(*sys.argv[1:5]))
