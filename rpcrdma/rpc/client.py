"""A small RPC client over TCP: calls this process makes to somebody else's server (NFSv4.0 callbacks).

Owns :class:`RpcClient`: one connection, any number of outstanding calls, replies matched by XID, every size bounded.
Imports asyncio only. RFC 5531 section 11 (record marking).
"""

from __future__ import annotations

import asyncio
import struct

MAX_REPLY = 1 << 16
"""Octets of the longest reply taken."""
_LAST = 0x80000000


class RpcClient:
    """One connection. Made by :meth:`connect`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._calls: dict[int, asyncio.Future[memoryview]] = {}
        self.closed = False
        loop = asyncio.get_running_loop()
        self.last_used = loop.time()
        """When the latest call was sent or answered."""
        self._task = loop.create_task(self._receive())

    @classmethod
    async def connect(cls, host: str, port: int, *, seconds: float) -> RpcClient:
        """Connect to a literal address. Raises OSError (TimeoutError among them)."""
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, port)
        return cls(reader, writer)

    @property
    def outstanding(self) -> int:
        """Calls sent and not answered."""
        return len(self._calls)

    async def call(self, message: bytes) -> memoryview:
        """Send a whole RPC call and return the whole reply. Raises ConnectionError when the connection is or gets
        closed; one who stops waiting cancels."""
        if self.closed:
            raise ConnectionError("the connection is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[memoryview] = loop.create_future()
        xid = int.from_bytes(message[:4], "big")
        self._calls[xid] = future
        self.last_used = loop.time()
        try:
            self._writer.write(struct.pack(">I", _LAST | len(message)) + message)
            return await future
        finally:
            self._calls.pop(xid, None)
            self.last_used = loop.time()

    async def _receive(self) -> None:
        try:
            while True:
                reply = await self._record()
                future = self._calls.pop(int.from_bytes(reply[:4], "big"), None)
                if future is not None and not future.done():
                    future.set_result(memoryview(reply))
        except (OSError, EOFError, ValueError) as error:
            self._fail(str(error) or "the peer has closed the connection")

    async def _record(self) -> bytes:
        record = b""
        while True:
            (mark,) = struct.unpack(">I", await self._reader.readexactly(4))
            length = mark & ~_LAST
            if len(record) + length > MAX_REPLY:
                raise ValueError("a reply that is too long")
            record += await self._reader.readexactly(length)
            if mark & _LAST:
                return record
            if not length:
                raise ValueError("an empty fragment that is not the last")

    def _fail(self, reason: str) -> None:
        self.closed = True
        self._writer.close()
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(ConnectionError(reason))

    def close(self) -> None:
        """Close the connection now; outstanding calls fail."""
        if not self.closed:
            self._task.cancel()
            self._fail("the connection is closed")
