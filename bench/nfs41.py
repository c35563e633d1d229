"""COMPOUNDs of NFSv4.1 as Linux sends them (RFC 8881), for load generators: a session, an open file, and templates."""

from __future__ import annotations

import asyncio
import itertools
import struct
from typing import Any

from nfsd.protocol import nfs4 as p
from tests.support.nfs4 import Client4, LoopbackTransport, Operation, wanted

_SPARE_SLOTS = 2
"""The setting up uses slot 0; using the last one asks for more."""
_ATTRIBUTES = wanted(1, 3, 4, 8, 20, 33, 35, 36, 37, 41, 45, 47, 52, 53, 55)
_CACHE_CONSISTENCY = wanted(3, 4, 45, 52, 53)
_names = itertools.count(1)


class _Connection:
    """What :class:`Client4` takes for its server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def call(self, transport: Any, message: bytes) -> bytes:
        self._writer.write(struct.pack(">I", 1 << 31 | len(message)) + message)
        (mark,) = struct.unpack(">I", await self._reader.readexactly(4))
        return await self._reader.readexactly(mark & 0x7FFFFFFF)


class Session:
    """A session of a new client, with the file of data open for reading and writing. Any connection may use it: the
    first SEQUENCE binds it."""

    def __init__(self, port: int, outstanding: int, uid: int) -> None:
        slots = outstanding + _SPARE_SLOTS
        self._client, self._stateid, self._data, self._root = asyncio.run(_set_up(port, slots, uid))

    @property
    def sequence_at(self) -> int:
        """Where calls have their sequence id and slot."""
        return self._compound(p.OP_GETFH).index(self._client.session) + len(self._client.session)

    def _compound(self, *operations: Operation) -> bytes:
        sequence = p.SEQUENCE4args(self._client.session, 0, 0, self._client.slots - 1, False)
        return self._client.message((p.OP_SEQUENCE, sequence), *operations)

    def _on(self, handle: bytes, *operations: Operation) -> bytes:
        return self._compound((p.OP_PUTFH, p.PUTFH4args(handle)), *operations)

    def getattr(self) -> bytes:
        """GETATTR of the file."""
        return self._on(self._data, (p.OP_GETATTR, _ATTRIBUTES))

    def lookup(self) -> bytes:
        """LOOKUP of the file."""
        return self._on(self._root, (p.OP_LOOKUP, p.LOOKUP4args(b"data")), p.OP_GETFH, (p.OP_GETATTR, _ATTRIBUTES))

    def access(self) -> bytes:
        """ACCESS of the file."""
        return self._on(self._data, (p.OP_ACCESS, p.ACCESS4args(0x1F)), (p.OP_GETATTR, _CACHE_CONSISTENCY))

    def open(self) -> bytes:
        """OPEN of the file, which is there."""
        opening = (p.OP_OPEN, self._client.open_args(b"data"))
        looks = (p.OP_ACCESS, p.ACCESS4args(0x2D)), (p.OP_GETATTR, _ATTRIBUTES)
        return self._on(self._root, opening, p.OP_GETFH, *looks)

    def read(self, offset: int, size: int) -> bytes:
        """READ."""
        return self._on(self._data, (p.OP_READ, p.READ4args(self._stateid, offset, size)))

    def write(self, offset: int, octets: bytes) -> bytes:
        """WRITE, unstable."""
        written = p.WRITE4args(self._stateid, offset, p.stable_how4.UNSTABLE4, memoryview(octets))
        return self._on(self._data, (p.OP_WRITE, written), (p.OP_GETATTR, _CACHE_CONSISTENCY))


async def _set_up(port: int, slots: int, uid: int) -> tuple[Client4, p.stateid4, bytes, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    server: Any = _Connection(reader, writer)
    client = Client4(server, 1, uid=uid, gid=uid, name=b"load %d" % next(_names), transport=LoopbackTransport())
    client.slots = slots
    await client.connect()
    # Servers may have other handles for NFSv4 than for NFSv3.
    stateid, data = await client.open("/export", b"data")
    *_, root = await client.run(*client.path("/export"), p.OP_GETFH)
    writer.close()
    return client, stateid, data, root.resok4.object
