"""A running server by TCP, for :class:`tests.support.nfs4.Client4`; from a port of the caller's choice if wanted."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any


class OverTcp:
    """Each call has a connection of its own. ``ports``: the local ports to take turns in. ``own``: the local
    address."""

    def __init__(self, host: str, port: int, ports: Sequence[int] = (), *, own: str | None = None) -> None:
        self._address = host, port
        self._ports = ports
        self._own = own

    async def call(self, transport: Any, message: bytes, chunks: Sequence[Any] = ()) -> bytes:
        """One RPC. Raises OSError."""
        reader, writer = await connect(*self._address, self._ports, self._own)
        try:
            writer.write(struct.pack(">I", 1 << 31 | len(message)) + message)
            (mark,) = struct.unpack(">I", await reader.readexactly(4))
            return await reader.readexactly(mark & 0x7FFFFFFF)
        finally:
            writer.close()


async def connect(
    host: str, port: int, ports: Sequence[int] = (), own: str | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection from one of these ports, or from any. Raises OSError."""
    for local in ports:
        try:
            return await asyncio.open_connection(host, port, local_addr=(host, local))
        except PermissionError:
            raise
        except OSError:
            continue  # taken
    return await asyncio.open_connection(host, port, local_addr=None if own is None else (own, 0))
