"""COMPOUNDs as Linux sends them in NFSv4.0 and 4.1 (RFC 7530, RFC 8881), for load generators: a client with an open
file, in 4.1 with a session, and templates."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections.abc import Sequence
from typing import Any, cast

from bench.nfs4_client import Client4, Operation, mode, wanted
from bench.servers import Server, connect_tcp
from nfsd.protocol import nfs4 as p

MARK = b"\x2a-mark-\x2a"
"""Stands in a template for a name or an offset, 8 octets that nothing else in it has."""
_SPARE_SLOTS = 2
"""The setting up uses slot 0; using the last one asks for more."""
_ATTRIBUTES = wanted(1, 3, 4, 8, 20, 33, 35, 36, 37, 41, 45, 47, 52, 53, 55)
_CACHE_CONSISTENCY = wanted(3, 4, 45, 52, 53)
_OPENED_AT = 24 + 12 + 8 + 8
"""Of OPEN's stateid in a reply: behind RPC's header, the COMPOUND's, PUTFH's result, and OPEN's status."""
_SEQUENCED = 44
"""Octets of SEQUENCE's result in front of them."""
_DELEGATED_AT = 16 + 20 + 4 + 4 + 4
"""From the open's stateid to the delegation's: with change_info, rflags, no attributes that were set, and a type."""
_SEQID = 0x5EC0DE01
"""Stands in a template of NFSv4.0 for an owner's seqid."""
_CURRENT = p.stateid4(1, bytes(12))
"""The stateid of the operation before (RFC 8881 section 16.2.3.1.2)."""
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
    """A new client with the file of data open for reading and writing: of NFSv4.1 with a session, which any connection
    may use, as the first SEQUENCE binds it; of NFSv4.0 without."""

    def __init__(self, server: Server, outstanding: int, uid: int, minor: int = 1) -> None:
        slots = outstanding + _SPARE_SLOTS
        self._server, self._minor = server, minor
        self._client, self._stateid, self._data, self._root = asyncio.run(_set_up(server, slots, uid, minor))
        self._locking = p.stateid4(0, bytes(12))
        self._backchannel: socket.socket | None = None

    def close(self) -> None:
        """Take no callbacks any more."""
        if self._backchannel is not None:
            self._backchannel.close()

    def renew(self) -> None:
        """Another session of the same client, whose slots are new; what is open and locked stays."""
        asyncio.run(_renew(self._client, self._server))

    def with_session(self, call: bytes) -> bytes:
        """A call that was made for an earlier session, for the present one."""
        at = self.sequence_at
        return call[: at - len(self._client.session)] + self._client.session + call[at:]

    @property
    def sequence_at(self) -> int:
        """Where calls have their sequence id and slot; 0: nowhere."""
        if not self._minor:
            return 0
        return self._compound(p.OP_GETFH).index(self._client.session) + len(self._client.session)

    def _compound(self, *operations: Operation) -> bytes:
        if not self._minor:
            return self._client.message(*operations)
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

    def open(self, name: bytes = b"data", **how: Any) -> bytes:
        """OPEN of the file, which is there, or of another."""
        opening = (p.OP_OPEN, self._client.open_args(name, **how))
        looks = (p.OP_ACCESS, p.ACCESS4args(0x2D)), (p.OP_GETATTR, _ATTRIBUTES)
        return self._on(self._root, opening, p.OP_GETFH, *looks)

    def opens_and_closes(self, number: int) -> tuple[list[bytes], dict[str, Any]]:
        """OPEN and CLOSE of each of so many files, which nobody else has open, and how the generator is to fill them
        in: the CLOSE lacks its stateid, and in NFSv4.0 both lack the seqid of an owner, of which each file has one."""
        owners = [b"owner" if self._minor else b"owner %04d" % place for place in range(number)]
        names = [b"open %04d" % place for place in range(number)]
        handles = asyncio.run(_make_files(self._client, self._server, names, owners))
        seqids = {self._client.seqids.get(owner, 0) for owner in owners}
        calls: list[bytes] = []
        for name, handle, owner in zip(names, handles, owners, strict=True):
            self._client.seqids[owner] = _SEQID - 1
            closing = (p.OP_CLOSE, p.CLOSE4args(0 if self._minor else _SEQID, _LACKING))
            calls += (self.open(name, owner=owner), self._on(handle, (p.OP_GETATTR, _CACHE_CONSISTENCY), closing))
        options = self._filled_in(calls[1])
        if not self._minor:
            (options["counted_from"],) = seqids
            options["counted_at"] = [call.index(_SEQID.to_bytes(4, "big")) for call in calls[:2]]
        return calls, options

    def opens_delegated(self, number: int) -> tuple[list[bytes], dict[str, Any]]:
        """OPEN for reading and CLOSE, and DELEGRETURN, of each of so many files, of a client that takes callbacks; and
        how the generator is to fill them in: DELEGRETURN lacks its stateid. Only in NFSv4.1."""
        # Others each time: when the calls end, some of the files stay delegated.
        names = [b"delegated %06d" % next(_names) for _ in range(number)]
        handles = asyncio.run(_make_files(self._client, self._server, names, [b"owner"] * number))
        self._backchannel = self._bound()
        closing = (p.OP_CLOSE, p.CLOSE4args(0, _CURRENT))
        calls: list[bytes] = []
        for name, handle in zip(names, handles, strict=True):
            opening = (p.OP_OPEN, self._client.open_args(name, access=p.OPEN4_SHARE_ACCESS_READ))
            returning = (p.OP_DELEGRETURN, p.DELEGRETURN4args(_LACKING))
            calls += (
                self._on(self._root, opening, p.OP_GETFH, (p.OP_GETATTR, _ATTRIBUTES), closing),
                self._on(handle, (p.OP_GETATTR, _CACHE_CONSISTENCY), returning),
            )
        given_at = _OPENED_AT + _SEQUENCED + _DELEGATED_AT
        return calls, {"chain": 2, "pairs": (given_at, calls[1].index(_LACKING.other) - 4)}

    def _bound(self) -> socket.socket:
        """A connection for callbacks, of which none come while nobody is in the way."""
        connection = connect_tcp(self._server.host, self._server.tcp)
        both = p.BIND_CONN_TO_SESSION4args(self._client.session, p.channel_dir_from_client4.CDFC4_FORE_OR_BOTH, False)
        message = self._client.message((p.OP_BIND_CONN_TO_SESSION, both))
        connection.sendall(struct.pack(">I", 1 << 31 | len(message)) + message)
        (mark,) = struct.unpack(">I", connection.recv(4, socket.MSG_WAITALL))
        status, _ = self._client.parse(connection.recv(mark & 0x7FFFFFFF, socket.MSG_WAITALL))
        if status:
            raise ConnectionError(f"BIND_CONN_TO_SESSION: {p.nfsstat4(status).name}")
        return connection

    def creations(self, names: Sequence[bytes]) -> tuple[list[bytes], dict[str, Any]]:
        """OPEN that creates and CLOSE of each name, and how the generator is to fill them in. Only in NFSv4.1."""
        calls: list[bytes] = []
        for name in names:
            finding = (p.OP_LOOKUP, p.LOOKUP4args(name))
            closing = (p.OP_CLOSE, p.CLOSE4args(0, _LACKING))
            end = self._on(self._root, finding, (p.OP_GETATTR, _CACHE_CONSISTENCY), closing)
            calls += (self.open(name, create=mode(0o644)), end)
        return calls, self._filled_in(calls[1])

    def _filled_in(self, closing: bytes) -> dict[str, Any]:
        """Where OPEN's reply has the stateid, and where it belongs in CLOSE."""
        opened_at = _OPENED_AT + (_SEQUENCED if self._minor else 0)
        return {"chain": 2, "pairs": (opened_at, closing.index(_LACKING.other) - 4)}

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


async def _make_files(client: Client4, server: Server, names: Sequence[bytes], owners: Sequence[bytes]) -> list[bytes]:
    """Files that are there and closed, by owners that are known; their handles."""
    reader, writer = await asyncio.open_connection(server.host, server.tcp)
    client.server = cast(Any, _Connection(reader, writer))
    if client.minor:
        client.session = b""
        await client.connect(reclaim_complete=False)
    handles = []
    for name, owner in zip(names, owners, strict=True):
        stateid, handle = await client.open(server.root4, name, create=mode(0o666), owner=owner)
        await client.close(stateid, handle, owner)
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


async def _set_up(server: Server, slots: int, uid: int, minor: int) -> tuple[Client4, p.stateid4, bytes, bytes]:
    reader, writer = await asyncio.open_connection(server.host, server.tcp)
    transport: Any = _Connection(reader, writer)
    name = b"load %d %d" % (minor, next(_names))
    client = Client4(transport, minor, uid=uid, gid=uid, name=name)
    client.slots = slots
    client.cached_reply = 1024  # or Linux has not that many slots for us
    await client.connect()
    # Servers may have other handles for NFSv4 than for NFSv3.
    stateid, data = await client.open(server.root4, b"data")
    *_, root = await client.run(*client.path(server.root4), p.OP_GETFH)
    writer.close()
    return client, stateid, data, root.resok4.object
