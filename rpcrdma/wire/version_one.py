"""The transport header of RPC-over-RDMA version One (RFC 8166 section 4).

Owns its codec; imports :mod:`rpcrdma.wire.chunks` and :mod:`rpcrdma.wire.header`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from rpcrdma.wire import chunks
from rpcrdma.wire.errors import ERR_CHUNK
from rpcrdma.wire.header import (
    CALL,
    FIXED_WORDS,
    LISTS_ONE,
    RDMA_DONE,
    RDMA_ERROR,
    RDMA_MSG,
    RDMA_NOMSG,
    REPLY,
    SMALLEST_HEADER,
    UNDECIDED,
    VERSION_ONE,
    Discard,
    Fault,
    Header,
    HeaderFault,
    Shortage,
)

_REPLY = b"\0\0\0\1"
_SEVEN_WORDS = struct.Struct(">7I")
_ERR_CHUNK = struct.Struct(">5I")


class VersionOne:
    """The codec of version One."""

    version = VERSION_ONE
    call_size = SMALLEST_HEADER

    def decode(self, view: memoryview, max_segments: int) -> Header:
        """The header of the message ``view``, at least SMALLEST_HEADER octets long. Raises Discard or HeaderFault."""
        xid, version, credit_value, procedure, reads, writes, reply = _SEVEN_WORDS.unpack_from(view)
        if procedure > RDMA_NOMSG:
            if procedure in (RDMA_DONE, RDMA_ERROR):
                # Sections 4.6.2 and 4.2.4. (An error that answers a backward call is looked for before decoding.)
                raise Discard
            # RDMA_MSGP is answered like a procedure that never was (sections 4.5.2, 4.6.1).
            raise HeaderFault(xid, version, Fault.PROCEDURE, f"procedure {procedure}")
        if not (reads or writes or reply):
            if procedure == RDMA_NOMSG:
                raise HeaderFault(xid, version, Fault.HEADER, "RDMA_NOMSG without any chunk")
            # RFC 8167 section 4.1: only the RPC message says which direction this belongs to.
            direction = REPLY if view[32:36] == _REPLY else CALL
            return Header(xid, version, credit_value, procedure, [], [], None, SMALLEST_HEADER, direction)
        try:
            read_list, write_list, reply_chunk, payload = chunks.decode(view, LISTS_ONE, max_segments)
        except chunks.MalformedChunks as malformed:
            raise HeaderFault(xid, version, Fault.HEADER, str(malformed)) from malformed
        direction = CALL
        if procedure == RDMA_NOMSG:
            if not read_list:
                direction = UNDECIDED
        elif view[payload + 4 : payload + 8] == _REPLY:
            direction = REPLY
        return Header(xid, version, credit_value, procedure, read_list, write_list, reply_chunk, payload, direction)

    def reply_size(self, call: Header) -> int:
        """Octets of the header of any reply to ``call``."""
        if not call.writes and call.reply is None:
            return SMALLEST_HEADER
        return LISTS_ONE + chunks.encoded_size(call.writes, call.reply)

    def invalidates(self, call: Header) -> int | None:
        """The first handle of the call's first chunk that holds anything.

        Send With Invalidate must name an STag of that very transaction (RFC 8797 section 4.1). Linux registers one pad
        buffer per connection and appends it to Write chunks of unaligned length, so a chunk's last segment is never
        chosen when others stand before it.
        """
        if call.reads:
            first = call.reads[0][0]
            handle = _first_handle([segment[1:] for segment in call.reads if segment[0] == first])
            if handle is not None:
                return handle
        for chunk in call.writes:
            handle = _first_handle(chunk)
            if handle is not None:
                return handle
        return _first_handle(call.reply) if call.reply else None

    def encode_reply(
        self,
        buffer: memoryview,
        call: Header,
        credit_value: int,
        procedure: int,
        writes: list[chunks.WriteChunk],
        reply: chunks.WriteChunk | None,
    ) -> int:
        """Put a reply's header at the start of ``buffer``; returns its size."""
        if not writes and reply is None:
            _SEVEN_WORDS.pack_into(buffer, 0, call.xid, VERSION_ONE, credit_value, procedure, 0, 0, 0)
            return SMALLEST_HEADER
        FIXED_WORDS.pack_into(buffer, 0, call.xid, VERSION_ONE, credit_value, procedure)
        return chunks.encode(buffer, LISTS_ONE, writes, reply)

    def encode_error(self, xid: int, credit_value: int, fault: Fault, shortage: Shortage = Shortage()) -> bytes:  # noqa: B008 (immutable)
        """RDMA_ERROR with ERR_CHUNK, version One's only code of its own (section 4.5.2)."""
        return _ERR_CHUNK.pack(xid, VERSION_ONE, credit_value, RDMA_ERROR, ERR_CHUNK)

    def encode_call(
        self,
        xid: int,
        credit_value: int,
        procedure: int = RDMA_MSG,
        reads: Sequence[chunks.ReadSegment] = (),
        writes: Sequence[chunks.WriteChunk] = (),
        reply: chunks.WriteChunk | None = None,
        invalidate: int = 0,
    ) -> bytes:
        """The header of a call."""
        if not reads and not writes and reply is None:
            return _SEVEN_WORDS.pack(xid, VERSION_ONE, credit_value, procedure, 0, 0, 0)
        return FIXED_WORDS.pack(xid, VERSION_ONE, credit_value, procedure) + chunks.encode_call(reads, writes, reply)


def _first_handle(chunk: chunks.WriteChunk) -> int | None:
    last = len(chunk) - 1
    for index, (handle, length, _) in enumerate(chunk):
        if length and (index < last or not index):
            return handle
    return None
