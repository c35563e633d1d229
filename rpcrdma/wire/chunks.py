"""Chunk lists of RPC-over-RDMA (RFC 8166 section 4.3): Read list, Write list and Reply chunk.

Owns their decoding and encoding, which version One and version Two share; imports nothing of the project. Everything
is bounded before it is allocated: a segment count is believed only when that many segments are there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

Segment = tuple[int, int, int]
"""A plain segment as it stands on the wire: handle, length, offset (RFC 8166 section 3.4.3)."""
ReadSegment = tuple[int, int, int, int]
"""An RDMA read segment: position, handle, length, offset (section 3.4.5)."""
WriteChunk = list[Segment]

WORD = 4
SEGMENT_SIZE = 16
READ_ENTRY_SIZE = 24

_WORD = struct.Struct(">I")
_SEGMENT = struct.Struct(">IIQ")
_READ_ENTRY = struct.Struct(">IIIIQ")


class MalformedChunks(Exception):
    """The chunk lists do not parse, or hold more segments than we take."""


def _word(view: memoryview, offset: int) -> int:
    value: int = _WORD.unpack_from(view, offset)[0]
    return value


def _present(view: memoryview, offset: int) -> bool:
    """The word before optional data (RFC 4506 section 4.19), which like every bool has two values."""
    word = _word(view, offset)
    if word > 1:
        raise MalformedChunks(f"optional-data word {word} at offset {offset}")
    return word == 1


def _decode_segments(view: memoryview, offset: int, most: int) -> WriteChunk:
    """The counted array of plain segments at ``offset``."""
    count = _word(view, offset)
    offset += WORD
    end = offset + count * SEGMENT_SIZE
    if count > most:
        raise MalformedChunks(f"{count} segments in one chunk")
    if end > len(view):
        raise MalformedChunks(f"{count} segments do not fit the message")
    return list(_SEGMENT.iter_unpack(view[offset:end]))


def decode(
    view: memoryview, offset: int, max_segments: int
) -> tuple[list[ReadSegment], list[WriteChunk], WriteChunk | None, int]:
    """The lists that start at ``offset`` of the message ``view``, and the offset behind them.

    ``max_segments`` bounds the segments of all lists together, and the number of Write chunks too. Raises
    MalformedChunks.
    """
    reads: list[ReadSegment] = []
    writes: list[WriteChunk] = []
    reply: WriteChunk | None = None
    room = max_segments
    try:
        while _present(view, offset):
            _, position, handle, length, target = _READ_ENTRY.unpack_from(view, offset)
            reads.append((position, handle, length, target))
            offset += READ_ENTRY_SIZE
            room -= 1
            if room < 0:
                raise MalformedChunks("too many read segments")
        offset += WORD
        while _present(view, offset):
            chunk = _decode_segments(view, offset + WORD, room)
            # An empty Write chunk costs us memory as well.
            room -= len(chunk) or 1
            if room < 0:
                raise MalformedChunks("too many Write chunks")
            writes.append(chunk)
            offset += 2 * WORD + len(chunk) * SEGMENT_SIZE
        offset += WORD
        if _present(view, offset):
            reply = _decode_segments(view, offset + WORD, room)
            offset += WORD + len(reply) * SEGMENT_SIZE
        offset += WORD
    except struct.error as error:
        raise MalformedChunks("the message ends within its chunk lists") from error
    return reads, writes, reply, offset


def used(offered: WriteChunk, returned: WriteChunk) -> int | None:
    """Octets that the responder says to have written into a Write chunk or Reply chunk; None when that cannot be.

    The chunk comes back with its segments, of which only the lengths may differ, and each is full before the next
    (RFC 8166 section 3.4.6).
    """
    if len(returned) != len(offered):
        return None
    total = 0
    full = True
    for (handle, most, offset), (returned_handle, length, returned_offset) in zip(offered, returned, strict=True):
        if (handle, offset) != (returned_handle, returned_offset) or length > most or (length and not full):
            return None
        full = length == most
        total += length
    return total


def encoded_size(writes: Sequence[WriteChunk], reply: WriteChunk | None) -> int:
    """Octets of a reply's lists: an empty Read list (section 4.3.1), the Write list and the Reply chunk."""
    size = 3 * WORD
    for chunk in writes:
        size += 2 * WORD + len(chunk) * SEGMENT_SIZE
    if reply is not None:
        size += WORD + len(reply) * SEGMENT_SIZE
    return size


def encode(buffer: memoryview, offset: int, writes: Sequence[WriteChunk], reply: WriteChunk | None) -> int:
    """Put a reply's lists at ``offset``; returns the offset behind them."""
    _WORD.pack_into(buffer, offset, 0)
    offset += WORD
    for chunk in writes:
        _WORD.pack_into(buffer, offset, 1)
        offset = _encode_segments(buffer, offset + WORD, chunk)
    _WORD.pack_into(buffer, offset, 0)
    offset += WORD
    if reply is None:
        _WORD.pack_into(buffer, offset, 0)
        return offset + WORD
    _WORD.pack_into(buffer, offset, 1)
    return _encode_segments(buffer, offset + WORD, reply)


def encode_call(reads: Sequence[ReadSegment], writes: Sequence[WriteChunk], reply: WriteChunk | None) -> bytes:
    """A call's lists."""
    head = b"".join(_READ_ENTRY.pack(1, *segment) for segment in reads)
    buffer = memoryview(bytearray(len(head) + encoded_size(writes, reply)))
    buffer[: len(head)] = head
    # The word that ends the Read list is the empty Read list of a reply.
    encode(buffer, len(head), writes, reply)
    return bytes(buffer)


def _encode_segments(buffer: memoryview, offset: int, chunk: WriteChunk) -> int:
    _WORD.pack_into(buffer, offset, len(chunk))
    offset += WORD
    for handle, length, target in chunk:
        _SEGMENT.pack_into(buffer, offset, handle, length, target)
        offset += SEGMENT_SIZE
    return offset
