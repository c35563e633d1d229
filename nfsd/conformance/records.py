"""A TCP connection to a server: RPC records (RFC 5531 section 11), octet by octet."""

from __future__ import annotations

import asyncio

from rpcrdma.peer.wire import words

PATIENCE = 20.0
"""Seconds for an answer."""
_LONGEST = 4 << 20
_LAST = 0x80000000


class Records:
    """One connection."""

    reason: str | None = None
    """As of a connection over RDMA; none is given."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, host: str, port: int) -> Records:
        """Raises OSError."""
        return cls(*await asyncio.open_connection(host, port))

    async def exchange(self, message: bytes, fragments: int = 1) -> bytes:
        """The next record after this message, which goes in so many fragments. Raises ConnectionError."""
        self.send(message, fragments)
        return await self.record()

    def send(self, message: bytes, fragments: int = 1) -> None:
        """One record, in so many fragments."""
        size = -(-len(message) // fragments) or 1
        for start in range(0, len(message), size):
            part = message[start : start + size]
            last = _LAST if start + size >= len(message) else 0
            self._writer.write(words(last | len(part)) + part)

    async def record(self) -> bytes:
        """The next record. Raises ConnectionError, TimeoutError."""
        async with asyncio.timeout(PATIENCE):
            return await self._record()

    async def _record(self) -> bytes:
        record = b""
        try:
            while True:
                mark = int.from_bytes(await self._reader.readexactly(4), "big")
                if len(record) + mark % _LAST > _LONGEST:
                    raise ConnectionError(f"a record of more than {_LONGEST} octets")
                record += await self._reader.readexactly(mark % _LAST)
                if mark & _LAST:
                    return record
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the server closed the connection") from error

    def close(self) -> None:
        """End it at once."""
        self._writer.transport.abort()
