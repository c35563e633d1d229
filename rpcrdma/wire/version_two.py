"""The transport header of RPC-over-RDMA version Two as draft-cel-nfsv4-rpcrdma-version-two-02 defines it.

Owns what only version Two encodes so: calls, errors and options; and its thresholds. Imports
:mod:`rpcrdma.wire.codec`, which has the rest, :mod:`rpcrdma.wire.chunks`, :mod:`rpcrdma.wire.errors` and
:mod:`rpcrdma.wire.header`. The drafts of the working group that came later use the same version number for another
format, which this is not.

What it adds to version One: every message says its direction; a call names the one handle that its reply may
invalidate; errors say more; RDMA2_OPTIONAL carries extensions. The draft's sections have no numbers; they are cited by
title. Where its prose gives rpcrdma2_error a direction, its XDR does not: the XDR counts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from rpcrdma.wire import chunks, errors
from rpcrdma.wire.codec import Codec
from rpcrdma.wire.header import CALL, RDMA2_OPTIONAL, RDMA_ERROR, RDMA_MSG, VERSION_TWO, Fault, Shortage

INITIAL_THRESHOLD = 1024
"""Octets of any message before the version is agreed on ("Protocol Version Negotiation")."""
THRESHOLD = 4096
"""Octets that every receiver takes afterwards ("Default Values")."""

_WITHOUT_CHUNKS = 36
_SIX_WORDS = struct.Struct(">6I")
_ERROR = struct.Struct(">5I")
_CANT_REPLY = struct.Struct(">8I")
_OPTION_HEAD = struct.Struct(">7I")
_LARGEST_WORD = 0xFFFFFFFF

_CODES = {
    Fault.PROCEDURE: errors.RDMA2_ERR_INVAL_PROC,
    Fault.HEADER: errors.RDMA2_ERR_BAD_XDR,
    Fault.OPTION: errors.RDMA2_ERR_INVAL_OPTION,
}


class VersionTwo(Codec):
    """The codec of version Two."""

    version = VERSION_TWO
    call_size = _WITHOUT_CHUNKS

    def encode_error(self, xid: int, credit_value: int, fault: Fault, shortage: Shortage = Shortage()) -> bytes:  # noqa: B008 (immutable)
        """RDMA2_ERROR with the code of ``fault`` ("Transport Errors")."""
        if fault is Fault.NO_ROOM:
            processed, segment, needed = shortage
            return _CANT_REPLY.pack(
                xid, VERSION_TWO, credit_value, RDMA_ERROR, errors.RDMA2_ERR_CANT_REPLY,
                processed, segment, min(needed, _LARGEST_WORD),
            )  # fmt: skip
        return _ERROR.pack(xid, VERSION_TWO, credit_value, RDMA_ERROR, _CODES[fault])

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
        """The header of a call; ``invalidate`` is one of its handles, or 0."""
        head = _SIX_WORDS.pack(xid, VERSION_TWO, credit_value, procedure, CALL, invalidate)
        return head + chunks.encode_call(reads, writes, reply)

    def encode_option(self, xid: int, credit_value: int, direction: int, opttype: int, info: bytes) -> bytes:
        """RDMA2_OPTIONAL without a payload stream."""
        head = _OPTION_HEAD.pack(xid, VERSION_TWO, credit_value, RDMA2_OPTIONAL, direction, opttype, len(info))
        return head + info + bytes(-len(info) & 3)
