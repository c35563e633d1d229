"""The native codec of transport headers. Implemented in ``transport_header.pyx``; these are views of it for tests."""

from rpcrdma.wire.chunks import ReadSegment, WriteChunk

_Seen = tuple[int, int, int, int, int, int, list[ReadSegment], list[WriteChunk], WriteChunk | None, int]
"""XID, version, credit value, procedure, direction, rdma_inv_handle (0 in version One), the chunk lists, and the offset
of the payload stream."""

def decode(view: memoryview, max_segments: int) -> str | _Seen:
    """What native code sees in a message; a word where it sees no header: "discard", "version", "procedure", "header"."""

def encode_reply(
    view: memoryview, max_segments: int, credit_value: int, procedure: int, in_write: int, in_reply: int
) -> bytes:
    """The header of a reply to the call in ``view``, which is good, with so many octets in its first Write chunk and in
    its Reply chunk, of which they are no more than there is room for."""

def invalidated(view: memoryview, max_segments: int) -> int | None:
    """The handle that the reply to the call in ``view``, which is good, is to invalidate."""
