"""A second reading of RFC 8166 section 4 and of draft-cel version Two: what a transport header says, and what the
header of a reply to it is.

Written plainly, for tests to compare the product's codec with. It shares no code with that.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from rpcrdma.peer.wire import CALL, DONE, ERROR, MSG, NOMSG, OPTIONAL, REPLY

UNDECIDED, OPTION = 2, 3
"""Directions that only the product's headers have: a message without payload stream in version One, and an option."""
SMALLEST = 28

DISCARD, VERSION, PROCEDURE, HEADER = "discard", "version", "procedure", "header"
"""What a message is that has no header: to be discarded, or wrong in this."""

Segment = tuple[int, int, int]


class Reference(NamedTuple):
    """A header."""

    xid: int
    version: int
    credits: int
    procedure: int
    direction: int
    inv_handle: int
    reads: list[tuple[int, int, int, int]]
    writes: list[list[Segment]]
    reply: list[Segment] | None
    payload: int
    option: tuple[int, int, bytes] | None = None
    """Direction, type and information."""


class _Wrong(Exception):
    pass


class _Reader:
    def __init__(self, octets: bytes, at: int, most: int) -> None:
        self.octets, self.at, self.room = octets, at, most

    def unpack(self, form: str) -> tuple[int, ...]:
        size = struct.calcsize(form)
        if self.at + size > len(self.octets):
            raise _Wrong
        self.at += size
        return struct.unpack_from(form, self.octets, self.at - size)

    def present(self) -> bool:
        """The word before optional data (RFC 4506 section 4.19)."""
        (word,) = self.unpack(">I")
        if word > 1:
            raise _Wrong
        return word == 1

    def spend(self, segments: int) -> None:
        self.room -= segments
        if self.room < 0:
            raise _Wrong

    def chunk(self) -> list[Segment]:
        (count,) = self.unpack(">I")
        if count > self.room:
            raise _Wrong
        return [self.unpack(">IIQ") for _ in range(count)]  # type: ignore[misc]

    def lists(self) -> tuple[list[tuple[int, int, int, int]], list[list[Segment]], list[Segment] | None]:
        reads, writes = [], []
        while self.present():
            reads.append(self.unpack(">IIIQ"))
            self.spend(1)
        while self.present():
            writes.append(self.chunk())
            self.spend(len(writes[-1]) or 1)  # an empty one counts as well
        reply = self.chunk() if self.present() else None
        return reads, writes, reply  # type: ignore[return-value]


def decode(octets: bytes, most: int) -> str | Reference:
    """What a message is, with no more than ``most`` segments."""
    if len(octets) < SMALLEST:
        return DISCARD
    version = int.from_bytes(octets[4:8], "big")
    return {1: _decode_one, 2: _decode_two}.get(version, lambda *_: VERSION)(octets, most)


def _decode_one(octets: bytes, most: int) -> str | Reference:
    xid, version, credit, procedure = struct.unpack_from(">4I", octets)
    if procedure in (DONE, ERROR):
        return DISCARD
    if procedure not in (MSG, NOMSG):
        return PROCEDURE
    reader = _Reader(octets, 16, most)
    try:
        reads, writes, reply = reader.lists()
    except _Wrong:
        return HEADER
    if procedure == NOMSG and not reads and not writes and reply is None:
        return HEADER
    if procedure == NOMSG:
        direction = CALL if reads else UNDECIDED
    else:
        # RFC 8167 section 4.1: what the RPC message says.
        direction = REPLY if octets[reader.at + 4 : reader.at + 8] == b"\0\0\0\1" else CALL
    return Reference(xid, version, credit, procedure, direction, 0, reads, writes, reply, reader.at)


def _decode_two(octets: bytes, most: int) -> str | Reference:
    xid, version, credit, procedure, direction, inv_handle = struct.unpack_from(">6I", octets)
    if procedure == ERROR:
        return DISCARD
    if procedure not in (MSG, NOMSG, OPTIONAL):
        return PROCEDURE
    if direction not in (CALL, REPLY):
        return HEADER
    wrong = DISCARD if direction == REPLY else HEADER  # RFC 8166 section 4.5
    if procedure == OPTIONAL:
        (length,) = struct.unpack_from(">I", octets, 24)
        payload = 28 + (length + 3) // 4 * 4
        if payload > len(octets):
            return wrong
        option = (direction, inv_handle, octets[28 : 28 + length])
        return Reference(xid, version, credit, procedure, OPTION, 0, [], [], None, payload, option)
    reader = _Reader(octets, 24, most)
    try:
        reads, writes, reply = reader.lists()
    except _Wrong:
        return wrong
    return Reference(xid, version, credit, procedure, direction, inv_handle, reads, writes, reply, reader.at)


def offered(call: Reference) -> list[int]:
    """The handles of all chunks, in their order."""
    chunks = call.writes if call.reply is None else [*call.writes, call.reply]
    return [segment[1] for segment in call.reads] + [segment[0] for chunk in chunks for segment in chunk]


def invalidates(call: Reference) -> int | None:
    """The handle that the reply invalidates. Version Two: the named one, if it is one of the call's. Version One: the
    first of the first chunk that holds anything, but never that of a last segment behind others, which may be a pad
    buffer of the whole connection (Linux)."""
    if call.version == 2:
        return call.inv_handle if call.inv_handle and call.inv_handle in offered(call) else None
    chunks = [[segment[1:] for segment in call.reads if segment[0] == call.reads[0][0]]]
    chunks += call.writes
    chunks.append(call.reply or [])
    for chunk in chunks:
        for handle, length, _ in chunk[:-1] if len(chunk) > 1 else chunk:
            if length:
                return handle
    return None


def returned(chunk: Sequence[Segment], octets: int) -> list[Segment]:
    """A chunk as it comes back with so many octets in it, each segment full before the next (sections 3.4.6 and
    4.3.2.2)."""
    back = []
    for handle, length, offset in chunk:
        used = min(length, octets)
        back.append((handle, used, offset))
        octets -= used
    return back


def reply_header(call: Reference, credit: int, procedure: int, in_writes: Sequence[int], in_reply: int) -> bytes:
    """The header of a reply that has so many octets in its first Write chunks, and in its Reply chunk."""
    octets = struct.pack(">4I", call.xid, call.version, credit, procedure)
    if call.version == 2:
        octets += struct.pack(">2I", REPLY, call.inv_handle)
    octets += bytes(4)  # an empty Read list (section 4.3.1)
    for index, chunk in enumerate(call.writes):
        octets += struct.pack(">I", 1) + _chunk(returned(chunk, in_writes[index] if index < len(in_writes) else 0))
    octets += bytes(4)
    return octets + (bytes(4) if call.reply is None else struct.pack(">I", 1) + _chunk(returned(call.reply, in_reply)))


def _chunk(chunk: Sequence[Segment]) -> bytes:
    return struct.pack(">I", len(chunk)) + b"".join(struct.pack(">IIQ", *segment) for segment in chunk)
