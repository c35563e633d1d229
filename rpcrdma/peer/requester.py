"""The peer itself: memory it exposes, messages it sends, and what it gets back."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Sequence
from typing import NamedTuple

from rpcrdma.memory import Account, Lease
from rpcrdma.peer.wire import ReplyHeader, Segment
from rpcrdma.verbs.interface import Endpoint, ListenAddress, Provider, RdmaRead, RdmaWrite, Received, Send

FILL = 0xEE
"""What exposed memory holds before anybody writes to it."""


class Message(NamedTuple):
    """What one Send brought, and the handle that it invalidated."""

    octets: bytes
    invalidated: int | None

    @property
    def header(self) -> ReplyHeader:
        """Its header, read. Raises Malformed."""
        return ReplyHeader.parse(self.octets)


class Exposed:
    """A registered region of the peer's memory, cut into segments."""

    def __init__(self, peer: Peer, memory: bytearray | bytes, *, read: bool, write: bool) -> None:
        # Without memory of a pool: loopback and softiwarp take any, and devices are not the peer's business. From a
        # page's beginning: siw answers a Read of a tiny segment across a page's end with other octets (siw_try_1seg).
        self.memory = memoryview(mmap.mmap(-1, max(len(memory), 1)))[: len(memory)]
        self.memory[:] = memory
        self.readable, self.writable = read, write
        self.handle, self.base = peer.endpoint.register(self.memory, remote_read=read, remote_write=write)

    def segment(self, start: int = 0, length: int | None = None) -> Segment:
        """``length`` octets from ``start`` on; all that follow unless told."""
        return Segment(self.handle, len(self.memory) - start if length is None else length, self.base + start)

    def segments(self, *lengths: int) -> list[Segment]:
        """Consecutive segments of these lengths."""
        cut, start = [], 0
        for length in lengths:
            cut.append(self.segment(start, length))
            start += length
        return cut


class Peer:
    """One connection, seen from the client."""

    def __init__(self, account: Account, receive_size: int = 4096) -> None:
        self.endpoint: Endpoint
        self.private_data = b""
        """What the server sent."""
        self.reason: str | None = None
        """Why the connection ended."""
        self.reposts = True
        self._account = account
        self._receive_size = receive_size
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._over = asyncio.Event()
        self._completions: list[bool] = []

    async def connect(
        self, provider: Provider, address: ListenAddress, private_data: bytes, receives: int = 160, **depths: int
    ) -> Peer:
        """Connect, with so many Receives posted; returns itself. Raises ConnectionError."""
        leases = [self._account.lease(self._receive_size) for _ in range(receives)]
        try:
            self.endpoint, self.private_data = await provider.connect(address, self, private_data, leases, **depths)
        except BaseException:
            for lease in leases:
                lease.release()
            raise
        return self

    # Events

    def received(self, messages: Sequence[Received]) -> None:
        """Messages came."""
        for lease, length, invalidated in messages:
            self._messages.put_nowait(Message(bytes(lease.view[:length]), invalidated))
            lease.release()
        if self.reposts and self.reason is None:
            self.endpoint.post_receives([self._account.lease(self._receive_size) for _ in messages])

    def completed(self, token: object, ok: bool) -> None:
        """What was posted is done."""
        if isinstance(token, Lease):
            token.release()
        if isinstance(token, asyncio.Future) and not token.done():
            token.set_result(ok)
        self._completions.append(ok)

    def disconnected(self, reason: str) -> None:
        """The connection is over."""
        assert self.reason is None, "disconnected twice"
        self.reason = reason
        self._over.set()

    # What whoever tests does

    def readable(self, data: bytes) -> Exposed:
        """Memory for RDMA Reads."""
        return Exposed(self, data, read=True, write=False)

    def writable(self, length: int) -> Exposed:
        """Memory for RDMA Writes."""
        return Exposed(self, bytearray([FILL]) * length, read=False, write=True)

    def send(self, *parts: bytes, invalidate: int | None = None) -> None:
        """One Send of any octets, perhaps with an invalidation."""
        self.endpoint.post((), Send((b"".join(parts),), invalidate), None)

    async def fetch(self, segment: Segment) -> bytes:
        """RDMA Read of the server's memory, as the responder of a backward call does it. Fails if that is refused."""
        sink = self._account.lease(max(segment.length, 1))
        done = asyncio.get_running_loop().create_future()
        self.endpoint.post_reads([RdmaRead(segment.handle, segment.offset, sink.view[: segment.length])], done)
        ok = await asyncio.wait_for(done, 20)
        octets = bytes(sink.view[: segment.length])
        sink.release()
        if not ok:
            raise ConnectionError(self.reason or "the RDMA Read was refused")
        return octets

    def place(self, segment: Segment, data: bytes) -> None:
        """RDMA Write into the server's memory."""
        self.endpoint.post([RdmaWrite(segment.handle, segment.offset, memoryview(data))], None, None)

    async def message(self) -> Message:
        """The next message. Fails when the connection ends first."""
        waiting = asyncio.ensure_future(self._messages.get())
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({waiting, over}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
        finally:
            # If nobody waits any more, the next to wait must get the message.
            over.cancel()
            waiting.cancel()
        raise ConnectionError(self.reason or "no message within 20 s")

    async def reply(self) -> ReplyHeader:
        """The next message's header. Raises Malformed, ConnectionError."""
        return (await self.message()).header

    async def call(self, *parts: bytes) -> ReplyHeader:
        """Send, and take the next message for the answer."""
        self.send(*parts)
        return await self.reply()

    async def over(self) -> str:
        """Wait for the end of the connection; returns the reason."""
        await asyncio.wait_for(self._over.wait(), 20)
        assert self.reason is not None
        return self.reason

    @property
    def waiting(self) -> int:
        """Messages received and not looked at."""
        return self._messages.qsize()
