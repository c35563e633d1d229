"""Chunk lists of RPC-over-RDMA (RFC 8166 section 4.3): Read list, Write list and Reply chunk.

Owns their form, their encoding in calls, and what a reply says of them; imports nothing of the project. Reading them
in messages and returning them in replies is native (:mod:`rpcrdma.wire.transport_header`).
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
# The word before optional data (RFC 4506 section 4.19).
_ABSENT, _PRESENT = _WORD.pack(0), _WORD.pack(1)


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


def encode_call(reads: Sequence[ReadSegment], writes: Sequence[WriteChunk], reply: WriteChunk | None) -> bytes:
    """A call's lists."""
    pieces = [_READ_ENTRY.pack(1, *segment) for segment in reads]
    pieces.append(_ABSENT)
    for chunk in writes:
        pieces += (_PRESENT, _encode_chunk(chunk))
    pieces.append(_ABSENT)
    pieces += (_ABSENT,) if reply is None else (_PRESENT, _encode_chunk(reply))
    return b"".join(pieces)


def _encode_chunk(chunk: WriteChunk) -> bytes:
    return b"".join([_WORD.pack(len(chunk)), *(_SEGMENT.pack(*segment) for segment in chunk)])
