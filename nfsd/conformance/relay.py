"""The octets between whoever asks and the server, for a capture of one question.

A connection goes through a port of this host, and both directions are kept as they pass: the RDMA Writes and Reads of a
server are seen only so, since no requester is told of them. Each FPDU or fragment of a record is one packet.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rpcrdma.capture import pcapng
from rpcrdma.capture.events import Connection
from rpcrdma.capture.frames import LARGEST_PAYLOAD, Frame, Shown

_MPA_KEYS: Final = (b"MPA ID Req Frame", b"MPA ID Rep Frame")
_MPA_HEAD: Final = 20
_MOST: Final = 64 << 20
"""Octets that are kept of one question."""
_READ: Final = 1 << 18


class Cutter:
    """One direction of a connection, cut where its messages end."""

    def __init__(self) -> None:
        self._octets = b""

    def feed(self, octets: bytes) -> Iterator[bytes]:
        """Take octets; give the pieces that are whole."""
        self._octets += octets
        while (size := self._size()) and len(self._octets) >= size:
            piece, self._octets = self._octets[:size], self._octets[size:]
            yield piece

    def rest(self) -> bytes:
        """What was never whole."""
        return self._octets

    def _size(self) -> int:
        """Of the next piece; 0: not known yet."""
        octets = self._octets
        if octets[:16] in _MPA_KEYS:
            return _MPA_HEAD + int.from_bytes(octets[18:20], "big") if len(octets) >= _MPA_HEAD else 0
        if len(octets) < 4 or _MPA_KEYS[0].startswith(octets) or _MPA_KEYS[1].startswith(octets):
            return 0
        return self._piece(octets)

    def _piece(self, octets: bytes) -> int:
        raise NotImplementedError


class Fpdus(Cutter):
    """iWARP without markers (RFC 5044 section 4)."""

    def _piece(self, octets: bytes) -> int:
        size = 2 + int.from_bytes(octets[:2], "big")
        return size + (-size & 3) + 4


class Fragments(Cutter):
    """Fragments of records (RFC 5531 section 11)."""

    def _piece(self, octets: bytes) -> int:
        return 4 + int.from_bytes(octets[:4], "big") % 0x80000000


class Relay:
    """A listening port, whose connections go on to the server."""

    def __init__(self, host: str, port: int, transport: str) -> None:
        self.port = 0
        self._host, self._port, self._transport = host, port, transport
        self._frames: list[Frame] = []
        self._kept = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen on loopback."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End all."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def forget(self) -> None:
        """Begin anew, for the next question."""
        self._frames.clear()
        self._kept = 0

    def save(self, path: Path, title: str) -> None:
        """What passed since ``forget``, as a pcapng file for its owner alone: names and data are in it."""
        path.touch(mode=0o600)
        with path.open("wb") as file:
            file.write(pcapng.section("rdma-nfsd conformance", title))
            file.write(pcapng.interface(self._transport, f"{self._host} port {self._port}", 0))
            for frame in self._frames:
                way = pcapng.OUTBOUND if frame.inbound else pcapng.INBOUND
                file.write(pcapng.packet(0, frame.time, frame.data, frame.length, way, frame.lost, frame.comment))

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._connected(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, onward = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        server, client = onward.get_extra_info("peername"), onward.get_extra_info("sockname")
        shown = Shown(Connection("tcp", client[0], client[1], server[0], server[1]))
        ways = self._pass(reader, onward, shown, inward=True), self._pass(there, writer, shown, inward=False)
        try:
            await asyncio.gather(*ways)
        finally:
            for each in (onward, writer):
                each.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, shown: Shown, *, inward: bool
    ) -> None:
        cutter = Fpdus() if self._transport == "rdma" else Fragments()
        try:
            while octets := await reader.read(_READ):
                writer.write(octets)
                for piece in cutter.feed(octets):
                    self._keep(shown, inward, piece)
                await writer.drain()
            writer.write_eof()
        except OSError:
            writer.transport.abort()  # a reset goes on as one
        finally:
            self._keep(shown, inward, cutter.rest())

    def _keep(self, shown: Shown, inward: bool, piece: bytes) -> None:
        self._kept += len(piece)
        if self._kept > _MOST:
            return
        for start in range(0, len(piece), LARGEST_PAYLOAD):
            part = piece[start : start + LARGEST_PAYLOAD]
            with contextlib.suppress(ValueError):  # addresses of two families
                self._frames.append(shown.segment(time.time_ns(), inward, part, len(part)))
