"""How a requester conveys a call and asks for its reply (RFC 8166 sections 3.4, 3.5 and 4.3).

Owns :class:`ChunkChoice`, what a caller may ask for, and :func:`choose`, what follows from it, from the sizes and from
the thresholds. Imports :mod:`rpcrdma.wire`.

What is chosen by itself is what Linux's client chooses: nothing but the Send while call and longest reply fit inline;
DDP-eligible items in Read and Write chunks as soon as that makes the rest fit; a Position Zero Read chunk or a Reply
chunk for all of a message otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from rpcrdma.engine.config import LARGEST_LEASE
from rpcrdma.wire.chunks import READ_ENTRY_SIZE, SEGMENT_SIZE, WORD
from rpcrdma.wire.header import RDMA_MSG, RDMA_NOMSG
from rpcrdma.xdr.payload import Payload

MOST_SEGMENTS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkChoice:
    """How one call is conveyed over RDMA. The default is what Linux does; everything here is legal.

    ``auto`` uses no chunk where a message fits inline, moves payloads by Read and Write chunks, and what remains too
    large by a Position Zero Read chunk (RDMA_NOMSG) or a Reply chunk.
    """

    call: Literal["auto", "inline", "read", "long", "read+long"] = "auto"
    """``read``: payloads in Read chunks though they might fit. ``long``: the whole call in a Position Zero Read chunk.
    ``read+long``: both, the payloads apart from the rest. ``inline``: no chunk."""
    reply: Literal["auto", "inline", "write", "reply", "write+reply"] = "auto"
    """``write``: a Write chunk per ``into``. ``reply``: a Reply chunk, and none of those. ``write+reply``: both, which
    Linux never offers. ``inline``: none."""
    segments: int = 1
    """Cut every chunk into so many segments of nearly equal length."""
    padding: bool = False
    """Add XDR padding to chunks, as a last segment of its own memory: in Read chunks (section 3.4.5.2 allows it), and
    in Write chunks, as older Linux does."""
    invalidate: Literal["auto", "never"] = "auto"
    """Version Two: whether to name a handle that the reply may invalidate."""

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot work."""
        if not 1 <= self.segments <= MOST_SEGMENTS:
            raise ValueError(f"segments must be from 1 to {MOST_SEGMENTS}")


LINUX = ChunkChoice()


class Message(Protocol):
    """An RPC message: ``head`` with ``payloads`` to be inserted at their offsets in it, without their padding."""

    xid: int
    head: bytes | bytearray | memoryview
    payloads: list[tuple[int, Payload]]

    def __len__(self) -> int:
        """Octets of the whole message, padding included."""


class Reads(NamedTuple):
    """A Read chunk to be: where its octets belong in the unreduced message, the octets, and those of padding."""

    position: int
    view: memoryview
    padding: int


class Plan(NamedTuple):
    """What one transmission of a call consists of."""

    procedure: int
    """RDMA_MSG, or RDMA_NOMSG for a Long Call."""
    stream: bytes
    """The payload stream; in the Send or, of a Long Call, in the Position Zero Read chunk."""
    reads: list[Reads]
    """The other Read chunks."""
    writes: list[tuple[memoryview, int]]
    """Memory for Write chunks, and octets of padding for each."""
    reply: int
    """Octets of the Reply chunk; 0 for none."""
    segments: int


def padding_of(length: int) -> int:
    """Octets of XDR padding behind an item (RFC 4506 section 4.10)."""
    return -length & 3


def _join(message: Message, *, reduced: bool) -> bytes:
    """The payload stream with its payloads, or without."""
    head = memoryview(message.head)
    if reduced or not message.payloads:
        return bytes(head)
    pieces: list[bytes | memoryview] = []
    at = 0
    for offset, payload in message.payloads:
        pieces += (head[at:offset], payload.view, bytes(padding_of(len(payload))))
        at = offset
    pieces.append(head[at:])
    return b"".join(pieces)


def _reads(message: Message, choice: ChunkChoice) -> list[Reads]:
    """A Read chunk for each payload that has octets."""
    reads = []
    shift = 0
    for offset, payload in message.payloads:
        padding = padding_of(len(payload))
        if len(payload):
            reads.append(Reads(offset + shift, payload.view, padding if choice.padding else 0))
        shift += len(payload) + padding
    return reads


def _chunk_segments(length: int, padding: int, segments: int) -> int:
    return min(segments, max(length, 1)) + (1 if padding else 0)


class _Header:
    """The size of the headers of a call and of its reply."""

    def __init__(self, smallest: int, segments: int) -> None:
        self.call = self.reply = smallest
        self._segments = segments

    def add_write(self, length: int, padding: int) -> None:
        size = 2 * WORD + SEGMENT_SIZE * _chunk_segments(length, padding, self._segments)
        self.call += size
        self.reply += size

    def add_reply(self, length: int) -> None:
        size = WORD + SEGMENT_SIZE * _chunk_segments(length, 0, self._segments)
        self.call += size
        self.reply += size

    def read_size(self, length: int, padding: int) -> int:
        return READ_ENTRY_SIZE * _chunk_segments(length, padding, self._segments)


def choose(
    message: Message,
    into: Sequence[memoryview],
    reply_max: int,
    choice: ChunkChoice,
    smallest_header: int,
    send: int,
    receive: int,
) -> Plan:
    """The plan for a call. ``smallest_header`` is that of the version, ``send`` and ``receive`` the thresholds.

    Raises ValueError when ``choice`` does not allow what the sizes demand.
    """
    header = _Header(smallest_header, choice.segments)
    bulk = sum(len(memory) + padding_of(len(memory)) for memory in into)
    writes, reply = _choose_reply(into, reply_max, bulk, choice, header, receive)
    if reply > LARGEST_LEASE:
        raise ValueError(f"a Reply chunk of {reply} octets, the most is {LARGEST_LEASE}")
    procedure, stream, reads = _choose_call(message, choice, header, send)
    return Plan(procedure, stream, reads, writes, reply, choice.segments)


def _choose_reply(
    into: Sequence[memoryview], reply_max: int, bulk: int, choice: ChunkChoice, header: _Header, receive: int
) -> tuple[list[tuple[memoryview, int]], int]:
    kind = choice.reply
    writes = [(memory, padding_of(len(memory)) if choice.padding else 0) for memory in into if len(memory)]
    with_writes = _Header(header.reply, choice.segments)
    for memory, padding in writes:
        with_writes.add_write(len(memory), padding)
    if kind == "auto":
        if header.reply + reply_max + bulk <= receive:
            kind = "inline"
        elif writes and with_writes.reply + reply_max <= receive:
            kind = "write"
        else:
            kind = "reply"
    if "write" not in kind:
        writes = []
    for memory, padding in writes:
        header.add_write(len(memory), padding)
    if "reply" not in kind:
        return writes, 0
    reply = max(reply_max if writes else reply_max + bulk, WORD)
    header.add_reply(reply)
    return writes, reply


def _choose_call(message: Message, choice: ChunkChoice, header: _Header, send: int) -> tuple[int, bytes, list[Reads]]:
    kind = choice.call
    reads = _reads(message, choice)
    room = send - header.call
    for_reads = sum(header.read_size(len(chunk.view), chunk.padding) for chunk in reads)
    head = len(message.head)
    if kind == "auto":
        if len(message) <= room:
            kind = "inline"
        elif reads and head + for_reads <= room:
            kind = "read"
        else:
            kind = "long"
    if "read" not in kind:
        reads, for_reads = [], 0
    stream = _join(message, reduced="read" in kind)
    if "long" in kind:
        if len(stream) > LARGEST_LEASE:
            raise ValueError(f"a Long Call of {len(stream)} octets, the most is {LARGEST_LEASE}")
        procedure, needed = RDMA_NOMSG, for_reads + header.read_size(len(stream), 0)
    else:
        procedure, needed = RDMA_MSG, for_reads + len(stream)
    if needed > room:
        raise ValueError(f"a call of {header.call + needed} octets, the threshold is {send} (chunks: {kind})")
    return procedure, stream, reads
