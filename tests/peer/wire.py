"""Version One headers built and read by hand, independently of the code under test (RFC 8166 section 4)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MSG, NOMSG, MSGP, DONE, ERROR = range(5)
ERR_VERS, ERR_CHUNK = 1, 2


class Segment(NamedTuple):
    handle: int
    length: int
    offset: int


def words(*values: int) -> bytes:
    return struct.pack(f">{len(values)}I", *values)


def segment(item: Segment) -> bytes:
    return struct.pack(">IIQ", *item)


def chunk(segments: Sequence[Segment]) -> bytes:
    return words(len(segments)) + b"".join(segment(item) for item in segments)


def read_list(reads: Sequence[tuple[int, Segment]]) -> bytes:
    return b"".join(words(1, position) + segment(item) for position, item in reads) + words(0)


def write_list(writes: Sequence[Sequence[Segment]]) -> bytes:
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
    tail = words(0) if reply is None else words(1) + chunk(reply)
    return words(xid, version, credit, procedure) + read_list(reads) + write_list(writes) + tail


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

    @classmethod
    def parse(cls, message: bytes) -> ReplyHeader:
        reader = _Reader(message)
        self = cls(*(reader.word() for _ in range(4)))
        if self.procedure == ERROR:
            self.error = reader.word()
            if self.error == ERR_VERS:
                self.versions = (reader.word(), reader.word())
            assert reader.rest() == b"", "octets behind an error"
            return self
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
        assert len(taken) == length, "the message is too short"
        self._at += length
        return taken

    def word(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def optional(self) -> bool:
        word = self.word()
        assert word in (0, 1)
        return word == 1

    def chunk(self) -> tuple[Segment, ...]:
        return tuple(Segment(*struct.unpack(">IIQ", self.take(16))) for _ in range(self.word()))

    def rest(self) -> bytes:
        rest = self._message[self._at :]
        self._at = len(self._message)
        return rest
