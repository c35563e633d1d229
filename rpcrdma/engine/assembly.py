"""How the Read chunks of a call are laid out and fetched (RFC 8166 sections 3.4.5 and 3.5.3).

Owns the checks of positions and lengths, made before any memory is leased, and the one of what is a call; imports
:mod:`rpcrdma.wire` and the vocabulary of :mod:`rpcrdma.verbs.interface`.
"""

from __future__ import annotations

import struct

from rpcrdma.engine.config import LARGEST_LEASE
from rpcrdma.verbs.interface import RdmaRead
from rpcrdma.wire.chunks import ReadSegment, Segment
from rpcrdma.wire.header import CALL, RDMA_NOMSG, Header

SMALLEST_RPC = 8
"""xid and msg_type: what the transport itself looks at."""

_XID_AND_TYPE = struct.Struct(">II")
"""The first words of an RPC message (RFC 5531 section 9)."""

ALIGNMENT = 64
"""Where each chunk starts in the sink: on a cache line of its own."""


def is_call(header: Header, data: memoryview) -> bool:
    """Whether the payload stream ``data`` starts as a call with the header's XID (RFC 8166 section 4.2.1)."""
    return len(data) >= SMALLEST_RPC and _XID_AND_TYPE.unpack_from(data) == (header.xid, CALL)


class BadReadList(Exception):
    """The Read list cannot be the one of a call."""


class ReadChunk:
    """One Read chunk: consecutive octets of the sink at ``start``, filled by ``segments`` in order."""

    __slots__ = ("length", "position", "segments", "start")

    def __init__(self, position: int) -> None:
        self.position = position
        self.segments: list[Segment] = []
        self.length = 0
        self.start = 0


class ReadPlan:
    """All Read chunks of one call in one sink of ``size`` octets."""

    __slots__ = ("body", "chunks", "size")

    def __init__(self, body: ReadChunk | None, chunks: list[ReadChunk], size: int) -> None:
        self.body = body
        """The Position Zero Read chunk, which holds the payload stream of a Long Call."""
        self.chunks = chunks
        """The others, by ascending position."""
        self.size = size

    def reads(self, sink: memoryview) -> list[RdmaRead]:
        """The RDMA Reads that fill ``sink``. Empty segments need none."""
        work = []
        for chunk in self.chunks if self.body is None else [self.body, *self.chunks]:
            start = chunk.start
            for handle, length, offset in chunk.segments:
                if length:
                    work.append(RdmaRead(handle, offset, sink[start : start + length]))
                    start += length
        return work

    def placed(self, sink: memoryview) -> list[tuple[int, memoryview]]:
        """The (position in the unreduced stream, data) of each chunk but the body."""
        return [(chunk.position, sink[chunk.start : chunk.start + chunk.length]) for chunk in self.chunks]


def _round_up(length: int) -> int:
    return (length + 3) & ~3


def plan(header: Header, inline: int, max_size: int) -> ReadPlan | None:
    """The plan for a call with ``inline`` octets behind its header, or None when it has no Read list.

    Raises BadReadList when more than ``max_size`` octets would be read, and when positions and lengths contradict
    each other: what cannot be inserted into the stream where it says must not be guessed at (section 4.5.2).
    """
    if not header.reads:
        if header.procedure == RDMA_NOMSG:
            raise BadReadList("RDMA_NOMSG without a Position Zero Read chunk")
        return None
    body, chunks = _group(header.reads)
    if header.procedure == RDMA_NOMSG:
        if body is None:
            raise BadReadList("RDMA_NOMSG without a Position Zero Read chunk")
        if body.length < SMALLEST_RPC:
            raise BadReadList(f"a Long Call of {body.length} octets")
        stream = body.length
    else:
        if body is not None:
            # A Long Call conveys no payload stream with the Send (section 3.5.3).
            raise BadReadList("a Position Zero Read chunk beside an inline payload stream")
        stream = inline
    _check_positions(chunks, stream)
    size = total = 0
    for chunk in chunks if body is None else [body, *chunks]:
        chunk.start = size
        total += chunk.length
        size += (chunk.length + ALIGNMENT - 1) & ~(ALIGNMENT - 1)
    if total > max_size or size > LARGEST_LEASE:
        raise BadReadList(f"{total} octets in Read chunks")
    return ReadPlan(body, chunks, size)


def _group(reads: list[ReadSegment]) -> tuple[ReadChunk | None, list[ReadChunk]]:
    """Gather segments with the same Position into one chunk, in list order (section 3.4.5)."""
    by_position: dict[int, ReadChunk] = {}
    for position, handle, length, offset in reads:
        if position & 3:
            raise BadReadList(f"position {position} is not a multiple of four")
        chunk = by_position.get(position)
        if chunk is None:
            chunk = by_position[position] = ReadChunk(position)
        chunk.segments.append((handle, length, offset))
        chunk.length += length
    body = by_position.pop(0, None)
    # Requesters list chunks by ascending position, but no text of version One obliges them to.
    return body, sorted(by_position.values(), key=lambda chunk: chunk.position)


def _check_positions(chunks: list[ReadChunk], stream: int) -> None:
    """Each chunk must lie behind the one before and within the unreduced stream; ``stream`` is the reduced length."""
    behind = 0
    removed = 0
    for chunk in chunks:
        if chunk.position < behind:
            raise BadReadList(f"the chunk at {chunk.position} overlaps the one before")
        if chunk.position > stream + removed:
            raise BadReadList(f"the chunk at {chunk.position} starts behind the end of the stream")
        length = _round_up(chunk.length)
        behind = chunk.position + length
        removed += length
