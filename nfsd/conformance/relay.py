"""The octets between the asking client and the server, for a capture of one question.

A connection goes through a port of this host, and both directions are kept as they pass: the RDMA Writes and Reads of a
server are seen only so, since no requester is told of them. Each FPDU or fragment of a record is one packet.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from nfsd.conformance.passage import Passage, Way
from rpcrdma.capture import pcapng
from rpcrdma.capture.events import Connection
from rpcrdma.capture.frames import LARGEST_PAYLOAD, Frame, Shown

_MPA_KEYS: Final = (b"MPA ID Req Frame", b"MPA ID Rep Frame")
_MPA_HEAD: Final = 20
_MOST: Final = 64 << 20
"""Octets that are kept of one question."""


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


class _Seen(Way):
    """One direction, whose messages are kept."""

    def __init__(self, cutter: Cutter, keep: Callable[[bytes], None]) -> None:
        self._cutter, self._keep = cutter, keep

    async def take(self, octets: bytes) -> None:
        """Keep what is whole."""
        for piece in self._cutter.feed(octets):
            self._keep(piece)

    def over(self) -> None:
        """Keep what never became whole."""
        self._keep(self._cutter.rest())


class Relay(Passage):
    """A listening port, whose connections go on to the server."""

    def __init__(self, host: str, port: int, transport: str) -> None:
        super().__init__(host, port)
        self._transport = transport
        self._frames: list[Frame] = []
        self._kept = 0

    def ways(self, onward: asyncio.StreamWriter) -> tuple[Way, Way]:
        """Both directions' pieces are kept."""
        server, client = onward.get_extra_info("peername"), onward.get_extra_info("sockname")
        shown = Shown(Connection("tcp", client[0], client[1], server[0], server[1]))
        cutter = Fpdus if self._transport == "rdma" else Fragments
        inward, outward = (_Seen(cutter(), partial(self._keep, shown, way)) for way in (True, False))
        return inward, outward

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

    def _keep(self, shown: Shown, inward: bool, piece: bytes) -> None:
        self._kept += len(piece)
        if self._kept > _MOST:
            return
        for start in range(0, len(piece), LARGEST_PAYLOAD):
            part = piece[start : start + LARGEST_PAYLOAD]
            with contextlib.suppress(ValueError):  # addresses of two families
                self._frames.append(shown.segment(time.time_ns(), inward, part, len(part)))
