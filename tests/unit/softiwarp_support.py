"""A handler that records, a raw iWARP peer made of plain sockets, and FPDUs by hand for the softiwarp tests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from rpcrdma.memory import Account, Lease, Pool
from rpcrdma.verbs.interface import ListenAddress, Received
from rpcrdma.verbs.softiwarp import SoftIwarp, SoftIwarpOptions
from rpcrdma.verbs.softiwarp.crc import crc32c
from rpcrdma.verbs.softiwarp.endpoint import Endpoint
from rpcrdma.verbs.softiwarp.listener import HalfOpen

WRITE, READ_REQUEST, READ_RESPONSE, SEND, SEND_INVALIDATE, SEND_SE, SEND_SE_INVALIDATE, TERMINATE = range(8)
CLIENT_REQUEST = bytes.fromhex("4d504120494420526571204672616d651002000c00800000f6ab0e1801010303")
"""What the Linux NFS client sends: revision 2, IRD 128, ORD 0, no CRC."""
PRIVATE = bytes.fromhex("f6ab0e1801010303")
"""Its private data."""


async def settle() -> None:
    """Let everything that loopback TCP has already delivered be handled."""
    for _ in range(30):
        await asyncio.sleep(0)


class Recorder:
    """A connection's owner that keeps what it is told."""

    def __init__(self, account: Account, size: int = 65536, repost: bool = True) -> None:
        self.account, self.size, self.repost = account, size, repost
        self.messages: list[bytes] = []
        self.invalidated: list[int | None] = []
        self.batches: list[int] = []
        self.completions: list[tuple[Any, bool]] = []
        self.reasons: list[str] = []
        self.endpoint: Endpoint | None = None
        self.on_received: Callable[[Sequence[Received]], None] | None = None
        self._changed = asyncio.Event()

    def leases(self, count: int) -> list[Lease]:
        return [self.account.lease(self.size) for _ in range(count)]

    def received(self, messages: Sequence[Received]) -> None:
        assert not self.reasons
        self.batches.append(len(messages))
        for lease, length, invalidated in messages:
            self.messages.append(bytes(lease.view[:length]))
            self.invalidated.append(invalidated)
        if self.on_received is not None:
            self.on_received(messages)
        for lease, _, _ in messages:
            lease.release()
        if self.repost and self.endpoint is not None:
            self.endpoint.post_receives(self.leases(len(messages)))
        self._changed.set()

    def completed(self, token: object, ok: bool) -> None:
        assert not self.reasons
        self.completions.append((token, ok))
        self._changed.set()

    def disconnected(self, reason: str) -> None:
        self.reasons.append(reason)
        self._changed.set()

    async def until(self, condition: Callable[[Recorder], bool]) -> None:
        """Wait for events until ``condition`` holds."""
        async with asyncio.timeout(20):
            while not condition(self):
                assert not self.reasons, f"disconnected: {self.reasons}"
                self._changed.clear()
                await self._changed.wait()

    async def ended(self) -> str:
        await self.until(lambda me: bool(me.reasons))
        await asyncio.sleep(0)
        assert len(self.reasons) == 1
        return self.reasons[0]


class World:
    """A provider that listens, with a recorder for each connection it accepts."""

    def __init__(self, options: SoftIwarpOptions | None = None, pool: Pool | None = None) -> None:
        self.pool = pool if pool is not None else Pool(256 << 20)
        self.account = self.pool.account(256 << 20)
        self.provider = SoftIwarp(self.pool, options)
        self.servers: list[Recorder] = []
        self.requests: list[HalfOpen] = []
        self.receives = 8
        self.receive_size = 65536
        self.initiator_depth = 4
        self.answer: Callable[[HalfOpen], None] = self.accept
        self.arrived = asyncio.Event()
        self.address = ListenAddress("127.0.0.1", 0)

    def accept(self, request: HalfOpen) -> None:
        server = Recorder(self.account, self.receive_size)
        server.endpoint = request.accept(
            server, b"welcome", server.leases(self.receives), initiator_depth=self.initiator_depth
        )
        self.servers.append(server)

    def _on_request(self, request: Any) -> None:
        self.requests.append(request)
        self.answer(request)
        self.arrived.set()

    async def listen(self, host: str = "127.0.0.1") -> None:
        listener = await self.provider.listen(ListenAddress(host, 0), self._on_request)
        self.address = listener.address

    async def pair(self, **settings: int) -> tuple[Recorder, Recorder]:
        """Return (client, server) of a new connection."""
        client = Recorder(self.account)
        endpoint, _ = await self.provider.connect(
            self.address, client, b"", client.leases(8), initiator_depth=8, **settings
        )
        client.endpoint = endpoint
        return client, self.servers[-1]

    async def raw(self, request: bytes = CLIENT_REQUEST, options: Callable[[socket.socket], None] | None = None) -> Raw:
        """Return a raw peer whose MPA Request has been answered."""
        raw = Raw()
        await raw.connect(self.address, options)
        await raw.send(request)
        raw.reply = await raw.mpa_frame()
        raw.crc = bool(raw.reply[16] & 0x40)
        return raw

    async def close(self) -> None:
        async with asyncio.timeout(20):
            await self.provider.close()
        assert self.pool.in_use == 0, "a lease was lost"
        assert self.pool.leaked == 0, "a lease was dropped without its release"


@contextlib.asynccontextmanager
async def world(options: SoftIwarpOptions | None = None, host: str = "127.0.0.1") -> AsyncIterator[World]:
    it = World(options)
    await it.listen(host)
    yield it
    await it.close()


def fpdu(ulpdu: bytes, crc: bool = True) -> bytes:
    """Frame a ULPDU (RFC 5044 section 4.1)."""
    body = struct.pack(">H", len(ulpdu)) + ulpdu
    body += bytes(-len(body) % 4)
    return body + struct.pack("<I", crc32c(body) if crc else 0)


def control(opcode: int, last: bool = True, tagged: bool | None = None) -> bytes:
    if tagged is None:
        tagged = opcode in (WRITE, READ_RESPONSE)
    return bytes((tagged << 7 | last << 6 | 1, 0x40 | opcode))


def tagged(opcode: int, stag: int, offset: int, data: bytes = b"", last: bool = True) -> bytes:
    return control(opcode, last, True) + struct.pack(">IQ", stag, offset) + data


def untagged(opcode: int, queue: int, msn: int, mo: int, data: bytes = b"", last: bool = True, stag: int = 0) -> bytes:
    return control(opcode, last, False) + struct.pack(">IIII", stag, queue, msn, mo) + data


def read_request(
    msn: int, sink: tuple[int, int], size: int, source: tuple[int, int], *, queue: int = 1, mo: int = 0
) -> bytes:
    return untagged(READ_REQUEST, queue, msn, mo, struct.pack(">IQIIQ", sink[0], sink[1], size, *source))


class Raw:
    """A peer of plain sockets: what it sends is what the test says."""

    def __init__(self) -> None:
        self.socket = socket.socket()
        self.reply = b""
        self.crc = False
        self.send_msn = 1

    async def connect(self, address: ListenAddress, options: Callable[[socket.socket], None] | None = None) -> None:
        self.socket.close()
        self.socket = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if options is not None:
            options(self.socket)
        await asyncio.get_running_loop().sock_connect(self.socket, (address.host, address.port))

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def frame(self, *ulpdus: bytes) -> None:
        """Send FPDUs, all at once."""
        await self.send(b"".join(fpdu(ulpdu, self.crc) for ulpdu in ulpdus))

    async def message(self, data: bytes = b"") -> None:
        """Send one Send of one segment, with the next MSN."""
        await self.frame(untagged(SEND, 0, self.send_msn, 0, data))
        self.send_msn += 1

    async def exactly(self, length: int) -> bytes:
        data = b""
        async with asyncio.timeout(20):
            while len(data) < length:
                more = await asyncio.get_running_loop().sock_recv(self.socket, length - len(data))
                if not more:
                    raise EOFError(data)
                data += more
        return data

    async def mpa_frame(self) -> bytes:
        head = await self.exactly(20)
        return head + await self.exactly(int.from_bytes(head[18:20], "big"))

    async def next_ulpdu(self) -> bytes:
        """The next FPDU's ULPDU. Checks pad and CRC."""
        head = await self.exactly(2)
        length = int.from_bytes(head, "big")
        rest = await self.exactly(length + -(length + 2) % 4 + 4)
        body = head + rest[:-4]
        assert not any(rest[length:-4]), "the pad is not zero"
        assert rest[-4:] == (struct.pack("<I", crc32c(body)) if self.crc else bytes(4))
        return rest[:length]

    async def terminate(self) -> bytes:
        """The Terminate the other side sends next, from its control field on, and the FIN behind it."""
        ulpdu = await self.next_ulpdu()
        assert ulpdu[:18] == untagged(TERMINATE, 2, 1, 0)
        await self.end()
        return ulpdu[18:]

    async def end(self) -> None:
        """Wait for the other side's FIN, and close."""
        async with asyncio.timeout(20):
            data = await asyncio.get_running_loop().sock_recv(self.socket, 65536)
        assert data == b"", f"more came: {data.hex()}"
        self.close()

    def close(self) -> None:
        self.socket.close()


def request(
    flags: int = 0x10, revision: int = 2, body: bytes = struct.pack(">HH", 128, 0) + PRIVATE, length: int | None = None
) -> bytes:
    return b"MPA ID Req Frame" + struct.pack(">BBH", flags, revision, len(body) if length is None else length) + body


def enhanced(ird: int, ord_: int) -> bytes:
    return struct.pack(">HH", ird, ord_)


async def responder(reply: bytes) -> tuple[asyncio.Server, ListenAddress, list[bytes]]:
    """A listener that answers whatever comes with ``reply`` and keeps all it is sent."""
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readexactly(20)
        got.append(head + await reader.readexactly(int.from_bytes(head[18:20], "big")))
        writer.write(reply)
        try:
            got.append(await reader.read())
        except ConnectionResetError:
            got.append(b"")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, ListenAddress("127.0.0.1", server.sockets[0].getsockname()[1]), got


def reply_frame(flags: int = 0x10, revision: int = 2, body: bytes = enhanced(16, 4)) -> bytes:
    return b"MPA ID Rep Frame" + struct.pack(">BBH", flags, revision, len(body)) + body
