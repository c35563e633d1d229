"""A port of this host whose connections go on to a server's.

Owns :class:`Passage` and :class:`Way`, one direction of one connection, which sees its octets before they go on. Ends
and resets go on as what they are. Imports asyncio only.
"""

from __future__ import annotations

import asyncio
from typing import Final

_PIECE: Final = 1 << 18


class Way:
    """One direction of a connection. This one looks at nothing."""

    async def take(self, octets: bytes) -> None:
        """They go on when this returns."""

    def over(self) -> None:
        """Nothing more comes."""


class Passage:
    """The port; use :meth:`open` and :meth:`close`."""

    def __init__(self, host: str, port: int, source: str = "") -> None:
        """``source``: the address from which the server sees the connections; any of this host's, if it is empty."""
        self.port = 0
        """Where it listens on loopback, once it is open."""
        self._host, self._port, self._source = host, port, source
        self._writers: set[asyncio.StreamWriter] = set()
        """Both ends of each connection."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def ways(self, onward: asyncio.StreamWriter) -> tuple[Way, Way]:
        """To the server, and back, of a new connection; ``onward`` is the server's end."""
        return Way(), Way()

    async def open(self) -> None:
        """Listen on loopback."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def drop(self) -> int:
        """Reset all connections, in the middle of whatever they carry; how many there were."""
        for writer in self._writers:
            writer.transport.abort()
        return len(self._writers) // 2

    async def close(self) -> None:
        """End all."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._connected(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source = (self._source, 0) if self._source else None
        try:
            there, onward = await asyncio.open_connection(self._host, self._port, local_addr=source)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, onward}
        self._writers |= both
        inward, outward = self.ways(onward)
        try:
            await asyncio.gather(self._pass(reader, onward, inward), self._pass(there, writer, outward))
        finally:
            self._writers -= both
            for each in both:
                each.transport.abort()

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        try:
            while octets := await reader.read(_PIECE):
                await way.take(octets)
                writer.write(octets)
                await writer.drain()
            writer.write_eof()
        except OSError:
            writer.transport.abort()  # a reset goes on as one
        finally:
            way.over()
