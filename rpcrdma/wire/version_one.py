"""The transport header of RPC-over-RDMA version One (RFC 8166 section 4).

Owns what only version One encodes so: calls and errors. Imports :mod:`rpcrdma.wire.codec`, which has the rest,
:mod:`rpcrdma.wire.chunks`, :mod:`rpcrdma.wire.errors` and :mod:`rpcrdma.wire.header`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from rpcrdma.wire import chunks
from rpcrdma.wire.codec import Codec
from rpcrdma.wire.errors import ERR_CHUNK
from rpcrdma.wire.header import FIXED_WORDS, RDMA_ERROR, RDMA_MSG, SMALLEST_HEADER, VERSION_ONE, Fault, Shortage

_SEVEN_WORDS = struct.Struct(">7I")
_ERR_CHUNK = struct.Struct(">5I")


class VersionOne(Codec):
    """The codec of version One."""

    version = VERSION_ONE
    call_size = SMALLEST_HEADER

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
