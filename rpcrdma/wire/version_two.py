"""The transport header of RPC-over-RDMA version Two as draft-cel-nfsv4-rpcrdma-version-two-02 defines it.

Owns its codec; imports :mod:`rpcrdma.wire.chunks`, :mod:`rpcrdma.wire.errors` and :mod:`rpcrdma.wire.header`. The
drafts of the working group that came later use the same version number for another format, which this is not.

What it adds to version One: every message says its direction; a call names the one handle that its reply may
invalidate; errors say more; RDMA2_OPTIONAL carries extensions. The draft's sections have no numbers; they are cited by
title. Where its prose gives rpcrdma2_error a direction, its XDR does not: the XDR counts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from rpcrdma.wire import chunks, errors
from rpcrdma.wire.header import (
    CALL,
    FIXED_WORDS,
    LISTS_TWO,
    OPTION,
    RDMA2_OPTIONAL,
    RDMA_ERROR,
    RDMA_MSG,
    RDMA_NOMSG,
    REPLY,
    VERSION_TWO,
    Discard,
    Fault,
    Header,
    HeaderFault,
    Shortage,
)

INITIAL_THRESHOLD = 1024
"""Octets of any message before the version is agreed on ("Protocol Version Negotiation")."""
THRESHOLD = 4096
"""Octets that every receiver takes afterwards ("Default Values")."""

_WITHOUT_CHUNKS = 36
_NO_CHUNKS = bytes(12)
_TWO_WORDS = struct.Struct(">2I")
_THREE_WORDS = struct.Struct(">3I")
_SIX_WORDS = struct.Struct(">6I")
_NINE_WORDS = struct.Struct(">9I")
_ERROR = struct.Struct(">5I")
_CANT_REPLY = struct.Struct(">8I")
_OPTION_HEAD = struct.Struct(">7I")
_LARGEST_WORD = 0xFFFFFFFF

_CODES = {
    Fault.PROCEDURE: errors.RDMA2_ERR_INVAL_PROC,
    Fault.HEADER: errors.RDMA2_ERR_BAD_XDR,
    Fault.OPTION: errors.RDMA2_ERR_INVAL_OPTION,
}


class MessageHeader(Header):
    """RDMA2_MSG or RDMA2_NOMSG."""

    __slots__ = ("inv_handle",)

    def __init__(
        self,
        xid: int,
        credit_value: int,
        procedure: int,
        direction: int,
        inv_handle: int,
        reads: list[chunks.ReadSegment],
        writes: list[chunks.WriteChunk],
        reply: chunks.WriteChunk | None,
        payload: int,
    ) -> None:
        super().__init__(xid, VERSION_TWO, credit_value, procedure, reads, writes, reply, payload, direction)
        self.inv_handle = inv_handle
        """The handle that the reply may invalidate; 0 is none."""


class OptionHeader(Header):
    """RDMA2_OPTIONAL: no chunk lists, but a type and its own octets. ``payload`` is where the payload stream begins,
    if there is one."""

    __slots__ = ("info", "optdir", "opttype")

    def __init__(self, xid: int, credit_value: int, optdir: int, opttype: int, info: memoryview, payload: int) -> None:
        super().__init__(xid, VERSION_TWO, credit_value, RDMA2_OPTIONAL, [], [], None, payload, OPTION)
        self.optdir = optdir
        """CALL or REPLY."""
        self.opttype = opttype
        self.info = info


class VersionTwo:
    """The codec of version Two."""

    version = VERSION_TWO
    call_size = _WITHOUT_CHUNKS

    def decode(self, view: memoryview, max_segments: int) -> Header:
        """The header of the message ``view``, at least SMALLEST_HEADER octets long. Raises Discard or HeaderFault."""
        xid, _, credit_value, procedure = FIXED_WORDS.unpack_from(view)
        if procedure > RDMA_NOMSG:
            if procedure == RDMA2_OPTIONAL:
                return self._decode_option(view, xid, credit_value)
            if procedure == RDMA_ERROR:
                raise Discard
            # "Transport Errors". Two and three, which version One knows, are as unknown here as any other.
            raise HeaderFault(xid, VERSION_TWO, Fault.PROCEDURE, f"procedure {procedure}")
        direction, inv_handle = _TWO_WORDS.unpack_from(view, FIXED_WORDS.size)
        if direction > REPLY:
            raise HeaderFault(xid, VERSION_TWO, Fault.HEADER, f"direction {direction}")
        if view[LISTS_TWO:_WITHOUT_CHUNKS] == _NO_CHUNKS:
            return MessageHeader(xid, credit_value, procedure, direction, inv_handle, [], [], None, _WITHOUT_CHUNKS)
        try:
            reads, writes, reply, payload = chunks.decode(view, LISTS_TWO, max_segments)
        except chunks.MalformedChunks as malformed:
            if direction == REPLY:
                raise Discard from malformed  # RFC 8166 section 4.5: errors in the header of a reply
            raise HeaderFault(xid, VERSION_TWO, Fault.HEADER, str(malformed)) from malformed
        return MessageHeader(xid, credit_value, procedure, direction, inv_handle, reads, writes, reply, payload)

    @staticmethod
    def _decode_option(view: memoryview, xid: int, credit_value: int) -> Header:
        direction, opttype, length = _THREE_WORDS.unpack_from(view, FIXED_WORDS.size)
        if direction > REPLY:
            raise HeaderFault(xid, VERSION_TWO, Fault.HEADER, f"direction {direction}")
        end = _OPTION_HEAD.size + length
        payload = (end + 3) & ~3
        if payload > len(view):
            if direction == REPLY:
                raise Discard
            raise HeaderFault(xid, VERSION_TWO, Fault.HEADER, f"{length} octets of rdma_optinfo do not fit the message")
        return OptionHeader(xid, credit_value, direction, opttype, view[_OPTION_HEAD.size : end], payload)

    def reply_size(self, call: Header) -> int:
        """Octets of the header of any reply to ``call``."""
        if not call.writes and call.reply is None:
            return _WITHOUT_CHUNKS
        return LISTS_TWO + chunks.encoded_size(call.writes, call.reply)

    def invalidates(self, call: Header) -> int | None:
        """The handle the requester chose ("Remote Invalidation"): that one or none, whatever else the call offers.

        A handle that is none of the call's is one that the requester must not name. It is echoed but not invalidated,
        which might end the connection, or pull memory from under another of its calls.
        """
        assert isinstance(call, MessageHeader)
        inv_handle = call.inv_handle
        return inv_handle if inv_handle and call.offers(inv_handle) else None

    def encode_reply(
        self,
        buffer: memoryview,
        call: Header,
        credit_value: int,
        procedure: int,
        writes: list[chunks.WriteChunk],
        reply: chunks.WriteChunk | None,
    ) -> int:
        """Put a reply's header at the start of ``buffer``; returns its size. rdma_inv_handle is the call's."""
        assert isinstance(call, MessageHeader)
        inv_handle = call.inv_handle
        if not writes and reply is None:
            _NINE_WORDS.pack_into(buffer, 0, call.xid, VERSION_TWO, credit_value, procedure, REPLY, inv_handle, 0, 0, 0)
            return _WITHOUT_CHUNKS
        _SIX_WORDS.pack_into(buffer, 0, call.xid, VERSION_TWO, credit_value, procedure, REPLY, inv_handle)
        return chunks.encode(buffer, LISTS_TWO, writes, reply)

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
