"""One version of RPC-over-RDMA as its users see it: :class:`Codec`.

Owns what the versions have in common, which is native (:mod:`rpcrdma.wire.transport_header`): the headers of messages
and of replies. Imports that and :mod:`rpcrdma.wire.header`. What differs is in :mod:`rpcrdma.wire.version_one` and
:mod:`rpcrdma.wire.version_two`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from rpcrdma.wire import transport_header
from rpcrdma.wire.chunks import ReadSegment, WriteChunk
from rpcrdma.wire.header import RDMA_MSG, Fault, Header, Shortage


class Codec(ABC):
    """One version of the protocol."""

    version: int
    call_size: int
    """Octets of the header of a call without chunks."""

    def decode(self, view: memoryview, max_segments: int) -> Header:
        """The header of the message ``view``, whose version word is ours. Raises Discard or HeaderFault. RDMA_ERROR has
        a decoder of its own, :mod:`rpcrdma.wire.errors`."""
        return transport_header.decode(view, max_segments)

    def reply_size(self, call: Header) -> int:
        """Octets of the header of any reply to ``call``: every Write chunk and the Reply chunk are echoed."""
        return transport_header.reply_size(call)

    def invalidates(self, call: Header) -> int | None:
        """The handle that the reply to ``call`` is to invalidate, where both peers can do that."""
        return transport_header.invalidated(call)

    def encode_reply(
        self, buffer: memoryview, call: Header, credit_value: int, procedure: int, writes: Sequence[int], reply: int
    ) -> int:
        """Put a reply's header at the start of ``buffer``; returns its size. ``writes`` are the octets written to the
        first Write chunks, ``reply`` those written to the Reply chunk. All others come back unused."""
        return transport_header.encode_reply(buffer, call, credit_value, procedure, writes, reply)

    @abstractmethod
    def encode_error(self, xid: int, credit_value: int, fault: Fault, shortage: Shortage = Shortage()) -> bytes:  # noqa: B008 (immutable)
        """A whole error message for any fault but VERSION."""

    @abstractmethod
    def encode_call(
        self,
        xid: int,
        credit_value: int,
        procedure: int = RDMA_MSG,
        reads: Sequence[ReadSegment] = (),
        writes: Sequence[WriteChunk] = (),
        reply: WriteChunk | None = None,
        invalidate: int = 0,
    ) -> bytes:
        """The header of a call. ``invalidate`` is the one handle that its reply may invalidate, 0 for none; version
        One has no word for it."""
