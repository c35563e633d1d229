"""The transport header of RPC-over-RDMA version One (RFC 8166 section 4).

Owns its codec; imports :mod:`rpcrdma.wire.chunks` and :mod:`rpcrdma.wire.header`.
"""

from __future__ import annotations

import struct

from rpcrdma.wire import chunks
from rpcrdma.wire.header import (
    FIXED_WORDS,
    RDMA_ERROR,
    RDMA_MSG,
    RDMA_NOMSG,
    SMALLEST_HEADER,
    Discard,
    Fault,
    Header,
    HeaderFault,
)

VERSION = 1

RDMA_MSGP = 2
RDMA_DONE = 3

ERR_CHUNK = 2

_SEVEN_WORDS = struct.Struct(">7I")
_ERR_CHUNK = struct.Struct(">5I")


class VersionOne:
    """The codec of version One."""

    version = VERSION

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
            return Header(xid, version, credit_value, procedure, [], [], None, SMALLEST_HEADER)
        try:
            read_list, write_list, reply_chunk, payload = chunks.decode(view, FIXED_WORDS.size, max_segments)
        except chunks.MalformedChunks as malformed:
            raise HeaderFault(xid, version, Fault.HEADER, str(malformed)) from malformed
        return Header(xid, version, credit_value, procedure, read_list, write_list, reply_chunk, payload)

    def reply_size(self, call: Header) -> int:
        """Octets of the header of any reply to ``call``."""
        if not call.writes and call.reply is None:
            return SMALLEST_HEADER
        return FIXED_WORDS.size + chunks.encoded_size(call.writes, call.reply)

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
            _SEVEN_WORDS.pack_into(buffer, 0, call.xid, VERSION, credit_value, procedure, 0, 0, 0)
            return SMALLEST_HEADER
        FIXED_WORDS.pack_into(buffer, 0, call.xid, VERSION, credit_value, procedure)
        return chunks.encode(buffer, FIXED_WORDS.size, writes, reply)

    def encode_error(self, xid: int, credit_value: int, fault: Fault) -> bytes:
        """RDMA_ERROR with ERR_CHUNK, version One's only code of its own (section 4.5.2)."""
        return _ERR_CHUNK.pack(xid, VERSION, credit_value, RDMA_ERROR, ERR_CHUNK)

    def encode_call(self, xid: int, credit_value: int) -> bytes:
        """The header of a short call without chunks."""
        return _SEVEN_WORDS.pack(xid, VERSION, credit_value, RDMA_MSG, 0, 0, 0)
