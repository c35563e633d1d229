"""Whole RPC messages over one TCP connection, for callers that make and read them themselves (NFSv4.0 callbacks).

Owns :class:`WholeClient`; imports this package. No reconnection, no retransmission, no backward calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from rpcrdma.client import tcp
from rpcrdma.client.calls import Carrier
from rpcrdma.client.messages import Message
from rpcrdma.client.options import ClientOptions
from rpcrdma.engine.choice import LINUX
from rpcrdma.engine.requester import Request
from rpcrdma.memory import Pool
from rpcrdma.wire.errors import TransportError

_OPTIONS = ClientOptions(max_reply=1 << 16, memory=1 << 20)


class _Exchange:
    """One call; implements :class:`rpcrdma.engine.requester.Request`."""

    into: Sequence[memoryview] = ()
    reply_max = 0
    choice = LINUX

    def __init__(self, message: bytes) -> None:
        self.message = Message(int.from_bytes(message[:4], "big"), message, [])
        self.reply: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()

    def sent(self) -> None:
        """It is sent at once, and once."""

    def answered(self, octets: bytes, places: Sequence[tuple[memoryview, int]] = ()) -> None:
        """Take the whole RPC reply."""
        if not self.reply.done():
            self.reply.set_result(memoryview(octets))

    def refused(self, error: TransportError) -> None:
        """TCP has no such errors."""

    def malformed(self, reason: str) -> None:
        """What is no reply is dropped."""

    def failed(self, error: BaseException) -> None:
        """There will be no reply."""
        if not self.reply.done():
            self.reply.set_exception(error)


class WholeClient:
    """One connection. Made by :meth:`connect`."""

    takes_calls = False

    def __init__(self) -> None:
        self._carrier: tcp.TcpCarrier
        self._calls: set[_Exchange] = set()
        self._loop = asyncio.get_running_loop()
        self.closed = False
        self.last_used = self._loop.time()
        """When the latest call was sent or answered."""

    @classmethod
    async def connect(
        cls, host: str, port: int, *, seconds: float, pool: Pool, source: str | None = None
    ) -> WholeClient:
        """Connect to a literal address, from ``source`` if given. Raises OSError (TimeoutError among them)."""
        self = cls()
        options = replace(_OPTIONS, connect_timeout=seconds)
        self._carrier = await tcp.connect(host, port, self, options, pool, source=source)
        return self

    @property
    def outstanding(self) -> int:
        """Calls sent and not answered."""
        return len(self._calls)

    async def call(self, message: bytes) -> memoryview:
        """Send a whole RPC call and return the whole reply. Raises ConnectionError when the connection is or gets
        closed; one who stops waiting cancels."""
        if self.closed:
            raise ConnectionError("the connection is closed")
        exchange = _Exchange(message)
        self._calls.add(exchange)
        self.last_used = self._loop.time()
        try:
            self._carrier.send(exchange)
            return await exchange.reply
        finally:
            self._calls.discard(exchange)
            self.last_used = self._loop.time()
            self._carrier.forget(exchange)

    def close(self) -> None:
        """Close the connection now; outstanding calls fail."""
        if not self.closed:
            self._carrier.close()

    # What the carrier tells

    def finished(self, call: Request) -> None:
        """A call was answered."""

    def called_back(self, carrier: Carrier, message: memoryview, token: object) -> None:
        """No calls are taken."""

    def lost(self, carrier: Carrier, reason: str) -> None:
        """The connection is gone."""
        self.closed = True
        for exchange in self._calls:
            exchange.failed(ConnectionError(reason))
