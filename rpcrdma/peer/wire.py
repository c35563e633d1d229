"""Headers built and read by hand, independently of the code under test: version One (RFC 8166 section 4), and version
Two (draft-cel-nfsv4-rpcrdma-version-two-02, "RPC-Over-RDMA Version Two XDR")."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MSG, NOMSG, MSGP, DONE, ERROR = range(5)
ERR_VERS, ERR_CHUNK = 1, 2
OPTIONAL = 5
BAD_XDR, CANT_REPLY, INVAL_PROC, INVAL_OPTION = 2, 3, 4, 5
CALL, REPLY = 0, 1


class Malformed(Exception):
    """A message that no server may send; the text says why."""


def _demand(holds: bool, why: str) -> None:
    if not holds:
        raise Malformed(why)


class Segment(NamedTuple):
    """Handle, length in octets, and offset of a part of memory."""

    handle: int
    length: int
    offset: int


def words(*values: int) -> bytes:
    """XDR unsigned integers."""
    return struct.pack(f">{len(values)}I", *values)


def segment(item: Segment) -> bytes:
    """A segment's 16 octets."""
    return struct.pack(">IIQ", *item)


def chunk(segments: Sequence[Segment]) -> bytes:
    """A Write or Reply chunk."""
    return words(len(segments)) + b"".join(segment(item) for item in segments)


def read_list(reads: Sequence[tuple[int, Segment]]) -> bytes:
    """A Read list of (position, segment)."""
    return b"".join(words(1, position) + segment(item) for position, item in reads) + words(0)


def write_list(writes: Sequence[Sequence[Segment]]) -> bytes:
    """A Write list of chunks."""
    return b"".join(words(1) + chunk(item) for item in writes) + words(0)


def header(
    xid: int,
    *,
    procedure: int = MSG,
    version: int = 1,
    credit: int = 32,
    reads: Sequence[tuple[int, Segment]] = (),
    writes: Sequence[Sequence[Segment]] = (),
    reply: Sequence[Segment] | None = None,
) -> bytes:
    """A transport header; ``reads`` are (position, segment) in list order."""
    return words(xid, version, credit, procedure) + lists(reads, writes, reply)


def lists(
    reads: Sequence[tuple[int, Segment]], writes: Sequence[Sequence[Segment]], reply: Sequence[Segment] | None
) -> bytes:
    """Read list, Write list and Reply chunk, as both versions have them."""
    tail = words(0) if reply is None else words(1) + chunk(reply)
    return read_list(reads) + write_list(writes) + tail


def header_two(
    xid: int,
    *,
    procedure: int = MSG,
    credit: int = 32,
    direction: int = CALL,
    inv_handle: int = 0,
    reads: Sequence[tuple[int, Segment]] = (),
    writes: Sequence[Sequence[Segment]] = (),
    reply: Sequence[Segment] | None = None,
) -> bytes:
    """A version Two transport header of RDMA2_MSG or RDMA2_NOMSG."""
    return words(xid, 2, credit, procedure, direction, inv_handle) + lists(reads, writes, reply)


def option(xid: int, opttype: int, info: bytes = b"", *, direction: int = CALL, credit: int = 32) -> bytes:
    """RDMA2_OPTIONAL."""
    return words(xid, 2, credit, OPTIONAL, direction, opttype, len(info)) + info + bytes(-len(info) & 3)


@dataclass
class ReplyHeader:
    """A received header, with what follows it."""

    xid: int
    version: int
    credit: int
    procedure: int
    reads: int = 0
    writes: tuple[tuple[Segment, ...], ...] = ()
    reply: tuple[Segment, ...] | None = None
    payload: bytes = b""
    error: int = 0
    versions: tuple[int, int] = (0, 0)
    direction: int = REPLY
    inv_handle: int = 0
    shortage: tuple[int, int, int] | None = None
    """CANT_REPLY: processed, segment index, length needed."""
    opttype: int = 0

    @classmethod
    def parse(cls, message: bytes) -> ReplyHeader:
        """Read a message. Raises Malformed."""
        reader = _Reader(message)
        self = cls(reader.word(), reader.word(), reader.word(), reader.word())
        if self.procedure == ERROR:
            self.error = reader.word()
            if self.error == ERR_VERS:
                self.versions = (reader.word(), reader.word())
            elif self.version == 2 and self.error == CANT_REPLY:
                self.shortage = (reader.word(), reader.word(), reader.word())
                _demand(self.shortage[0] <= 1, "rdma_processed is no boolean")
            _demand(reader.rest() == b"", "octets behind an error")
            return self
        if self.version == 2:
            self.direction = reader.word()
            if self.procedure == OPTIONAL:
                self.opttype = reader.word()
                length = reader.word()
                self.payload = reader.take(length)
                _demand(reader.take(-length & 3).strip(b"\0") == b"", "round-up that is not zero")
                _demand(reader.rest() == b"", "octets behind an answer without a payload stream")
                return self
            self.inv_handle = reader.word()
        while reader.optional():
            reader.take(20)
            self.reads += 1
        writes = []
        while reader.optional():
            writes.append(reader.chunk())
        self.writes = tuple(writes)
        if reader.optional():
            self.reply = reader.chunk()
        self.payload = reader.rest()
        return self


class _Reader:
    def __init__(self, message: bytes) -> None:
        self._message = message
        self._at = 0

    def take(self, length: int) -> bytes:
        taken = self._message[self._at : self._at + length]
        _demand(len(taken) == length, "the message is too short")
        self._at += length
        return taken

    def word(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def optional(self) -> bool:
        word = self.word()
        _demand(word in (0, 1), "a list goes on with neither 0 nor 1")
        return word == 1

    def chunk(self) -> tuple[Segment, ...]:
        return tuple(Segment(*struct.unpack(">IIQ", self.take(16))) for _ in range(self.word()))

    def rest(self) -> bytes:
        rest = self._message[self._at :]
        self._at = len(self._message)
        return rest
