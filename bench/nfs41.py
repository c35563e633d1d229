"""COMPOUNDs of NFSv4.1 as Linux sends them (RFC 8881), for load generators: a session, an open file, and templates."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Sequence
from typing import Any, cast

from bench.servers import Server
from nfsd.protocol import nfs4 as p
from tests.support.nfs4 import Client4, LoopbackTransport, Operation, mode, wanted

MARK = b"\x2a-mark-\x2a"
"""Stands in a template for a name or an offset, 8 octets that nothing else in it has."""
_SPARE_SLOTS = 2
"""The setting up uses slot 0; using the last one asks for more."""
_ATTRIBUTES = wanted(1, 3, 4, 8, 20, 33, 35, 36, 37, 41, 45, 47, 52, 53, 55)
_CACHE_CONSISTENCY = wanted(3, 4, 45, 52, 53)
_OPENED_AT = 24 + 12 + 44 + 8 + 8
"""Of OPEN's stateid in a reply: behind RPC's header, the COMPOUND's, SEQUENCE's result, PUTFH's, and OPEN's status."""
_LACKING = p.stateid4(0, b"the stateid!")
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

    def __init__(self, server: Server, outstanding: int, uid: int) -> None:
        slots = outstanding + _SPARE_SLOTS
        self._server = server
        self._client, self._stateid, self._data, self._root = asyncio.run(_set_up(server, slots, uid))
        self._locking = p.stateid4(0, bytes(12))
        self.pairs = 0, 0
        """Where OPEN's reply has the stateid, and where it belongs in CLOSE."""

    def renew(self) -> None:
        """Another session of the same client, whose slots are new; what is open and locked stays."""
        asyncio.run(_renew(self._client, self._server))

    def with_session(self, call: bytes) -> bytes:
        """A call that was made for an earlier session, for the present one."""
        at = self.sequence_at
        return call[: at - len(self._client.session)] + self._client.session + call[at:]

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

    def open(self, name: bytes = b"data") -> bytes:
        """OPEN of the file, which is there."""
        opening = (p.OP_OPEN, self._client.open_args(name))
        looks = (p.OP_ACCESS, p.ACCESS4args(0x2D)), (p.OP_GETATTR, _ATTRIBUTES)
        return self._on(self._root, opening, p.OP_GETFH, *looks)

    def opens_and_closes(self, number: int) -> list[bytes]:
        """OPEN and CLOSE of each of so many files, which nobody else has open. The CLOSE lacks its stateid: see
        :attr:`pairs`."""
        names = [b"open %04d" % place for place in range(number)]
        handles = asyncio.run(_make_files(self._client, self._server, names))
        calls: list[bytes] = []
        for name, handle in zip(names, handles, strict=True):
            closing = (p.OP_CLOSE, p.CLOSE4args(0, _LACKING))
            calls += (self.open(name), self._on(handle, (p.OP_GETATTR, _CACHE_CONSISTENCY), closing))
        self.pairs = _OPENED_AT, calls[1].index(_LACKING.other) - 4
        return calls

    def read(self, offset: int, size: int) -> bytes:
        """READ."""
        return self._on(self._data, (p.OP_READ, p.READ4args(self._stateid, offset, size)))

    def write(self, offset: int, octets: bytes) -> bytes:
        """WRITE, unstable."""
        written = p.WRITE4args(self._stateid, offset, p.stable_how4.UNSTABLE4, memoryview(octets))
        return self._on(self._data, (p.OP_WRITE, written), (p.OP_GETATTR, _CACHE_CONSISTENCY))

    def begin_locking(self) -> None:
        """Have a lock owner, by a lock of the last octet."""
        self._locking = asyncio.run(_lock_owner(self._client, self._server, self._stateid, self._data))

    def lock(self, *offsets: bytes) -> bytes:
        """LOCKs of the octets at these offsets (8 octets each), for writing."""
        locker = p.locker4(False, lock_owner=p.exist_lock_owner4(self._locking, 0))
        return self._on(
            self._data, *((p.OP_LOCK, _lock_args(int.from_bytes(offset, "big"), locker)) for offset in offsets)
        )

    def unlock(self, offset: bytes) -> bytes:
        """LOCKU of it."""
        args = p.LOCKU4args(p.nfs_lock_type4.WRITE_LT, 0, self._locking, int.from_bytes(offset, "big"), 1)
        return self._on(self._data, (p.OP_LOCKU, args))


def _lock_args(offset: int, locker: p.locker4) -> p.LOCK4args:
    return p.LOCK4args(p.nfs_lock_type4.WRITE_LT, False, offset, 1, locker)


async def _renew(client: Client4, server: Server) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.tcp)
    client.server = cast(Any, _Connection(reader, writer))
    client.session = b""
    await client.connect(reclaim_complete=False)
    writer.close()


async def _make_files(client: Client4, server: Server, names: Sequence[bytes]) -> list[bytes]:
    """Files that are there and closed; their handles."""
    await _renew(client, server)
    reader, writer = await asyncio.open_connection(server.host, server.tcp)
    client.server = cast(Any, _Connection(reader, writer))
    handles = []
    for name in names:
        stateid, handle = await client.open(server.root4, name, create=mode(0o666))
        await client.run((p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_CLOSE, p.CLOSE4args(0, stateid)))
        handles.append(handle)
    writer.close()
    return handles


async def _lock_owner(client: Client4, server: Server, opened: p.stateid4, data: bytes) -> p.stateid4:
    """A lock stateid whose sequence id is zero: it means the present one (RFC 8881 section 8.2.2)."""
    await _renew(client, server)
    reader, writer = await asyncio.open_connection(server.host, server.tcp)
    client.server = cast(Any, _Connection(reader, writer))
    first = p.open_to_lock_owner4(0, opened, 0, p.lock_owner4(client.clientid, b"locker"))
    _, locked = await client.run(
        (p.OP_PUTFH, p.PUTFH4args(data)), (p.OP_LOCK, _lock_args((1 << 63) - 2, p.locker4(True, open_owner=first)))
    )
    writer.close()
    return p.stateid4(0, locked.resok4.lock_stateid.other)


async def _set_up(server: Server, slots: int, uid: int) -> tuple[Client4, p.stateid4, bytes, bytes]:
    reader, writer = await asyncio.open_connection(server.host, server.tcp)
    transport: Any = _Connection(reader, writer)
    client = Client4(transport, 1, uid=uid, gid=uid, name=b"load %d" % next(_names), transport=LoopbackTransport())
    client.slots = slots
    client.cached_reply = 1024  # or Linux has not that many slots for us
    await client.connect()
    # Servers may have other handles for NFSv4 than for NFSv3.
    stateid, data = await client.open(server.root4, b"data")
    *_, root = await client.run(*client.path(server.root4), p.OP_GETFH)
    writer.close()
    return client, stateid, data, root.resok4.object
