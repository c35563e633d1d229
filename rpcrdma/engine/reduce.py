"""Where the parts of a reply go: Write chunks, inline, or the Reply chunk (RFC 8166 sections 3.4.6, 3.5.3, 4.3).

Owns the reduction of replies; imports :mod:`rpcrdma.wire` and the vocabulary of :mod:`rpcrdma.verbs.interface`.

Operation
    The i-th DDP-eligible result belongs to the i-th Write chunk (section 4.3.2.1). It must go there unless that chunk
    is empty, even if it would fit inline (RFC 8267 section 6.4.1). What remains goes inline when it fits, though a
    Reply chunk be offered (section 4.3.3), else into the Reply chunk, else nowhere: the requester gets an error, and
    nothing has been written to its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from rpcrdma.verbs.interface import RdmaWrite
from rpcrdma.wire.chunks import WriteChunk
from rpcrdma.wire.header import RDMA_MSG, RDMA_NOMSG, Header
from rpcrdma.xdr.payload import Payload

_PADDING = memoryview(bytes(3))


class Reply(Protocol):
    """A finished RPC reply: ``head`` with ``payloads`` to be inserted at their offsets in it."""

    head: bytes | bytearray | memoryview
    payloads: list[tuple[int, Payload]]

    def release(self) -> None:
        """Release every payload."""


class NoRoom(Exception):
    """The requester offers no place for the reply.

    ``segment`` counts from 1 at the first segment of the first Write chunk, over the Write list and the Reply chunk;
    0 names none. ``needed`` is the length that segment should have had, or the whole Reply chunk where there is no
    segment to name; 0 when no resources would help.
    """

    def __init__(self, segment: int, needed: int) -> None:
        super().__init__(f"segment {segment} needs {needed} octets")
        self.segment = segment
        self.needed = needed


class Reduction:
    """A reduced reply. ``stream`` is the payload stream that remains, in pieces; payloads in it keep their padding."""

    __slots__ = ("bulk", "in_reply", "procedure", "size", "stream", "writes", "written")

    def __init__(
        self,
        stream: list[memoryview],
        bulk: list[int],
        size: int,
        writes: list[RdmaWrite],
        written: list[int],
    ) -> None:
        self.procedure = RDMA_MSG
        self.stream = stream
        self.bulk = bulk
        """Which pieces of ``stream`` are payloads, by index, ascending."""
        self.size = size
        """Octets of ``stream``."""
        self.writes = writes
        self.written = written
        """Octets written to the first Write chunks; those behind are returned unused (section 4.3.2.2)."""
        self.in_reply = 0
        """Octets written to the Reply chunk."""


def fill(chunk: WriteChunk, sources: Iterable[memoryview]) -> list[RdmaWrite]:
    """The RDMA Writes that put ``sources`` one behind the other into ``chunk``, segment after segment, each full before
    the next. The chunk must be large enough."""
    writes = []
    segments = iter(chunk)
    handle = offset = room = 0
    for source in sources:
        at = 0
        while at < len(source):
            while not room:
                handle, room, offset = next(segments)
            part = source[at : at + room]
            writes.append(RdmaWrite(handle, offset, part))
            offset += len(part)
            room -= len(part)
            at += len(part)
    return writes


def _capacity(chunk: WriteChunk) -> int:
    return sum(length for _, length, _ in chunk)


def _no_room(chunks: Sequence[WriteChunk], needed: int) -> NoRoom:
    """The error for the last of ``chunks``, whose last segment would have to be larger."""
    segments = sum(len(chunk) for chunk in chunks)
    last = chunks[-1]
    if not last:
        return NoRoom(0, needed)
    return NoRoom(segments, needed - _capacity(last) + last[-1][1])


def reduce(call: Header, reply: Reply, header_size: int, threshold: int) -> Reduction:
    """Decide where everything goes. ``header_size`` is that of any reply to ``call``.

    Raises NoRoom; nothing has been written then (section 4.5.3).
    """
    head = memoryview(reply.head)
    chunks = call.writes
    reduction = _place(head, reply.payloads, chunks) if reply.payloads else Reduction([head], [], len(head), [], [])
    if header_size + reduction.size <= threshold:
        return reduction
    if header_size > threshold:
        raise NoRoom(0, 0)
    if call.reply is None:
        raise NoRoom(0, reduction.size)
    if _capacity(call.reply) < reduction.size:
        raise _no_room([*chunks, call.reply], reduction.size)
    reduction.procedure = RDMA_NOMSG
    reduction.writes += fill(call.reply, reduction.stream)
    reduction.in_reply = reduction.size
    return reduction


def _place(head: memoryview, payloads: list[tuple[int, Payload]], chunks: list[WriteChunk]) -> Reduction:
    """Put each DDP-eligible payload into its Write chunk where it has a non-empty one, otherwise into the stream."""
    stream: list[memoryview] = []
    bulk: list[int] = []
    size = len(head)
    writes: list[RdmaWrite] = []
    written: list[int] = []
    at = 0
    index = -1
    for offset, payload in payloads:
        data = payload.view
        if payload.eligible:  # what is not counts for no Write chunk, and goes into none
            index += 1
            if index < len(chunks) and chunks[index]:
                chunk = chunks[index]
                if _capacity(chunk) < len(data):
                    raise _no_room(chunks[: index + 1], len(data))
                writes += fill(chunk, (data,))
                written.append(len(data))
                continue
            if index < len(chunks):
                # An empty Write chunk asks for its result inline, and is returned empty (section 4.3.2.3).
                written.append(0)
        if offset > at:
            stream.append(head[at:offset])
            at = offset
        if len(data):
            bulk.append(len(stream))
            stream.append(data)
            size += len(data)
        if len(data) & 3:
            padding = _PADDING[: -len(data) & 3]
            stream.append(padding)
            size += len(padding)
    if at < len(head):
        stream.append(head[at:])
    return Reduction(stream, bulk, size, writes, written)
