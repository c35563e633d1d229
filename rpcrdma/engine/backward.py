"""Calls in the backward direction: from the RPC server to its client (RFC 8167), in either version of the protocol.

Owns the window of outstanding backward calls and the matching of their replies; imports :mod:`rpcrdma.wire` and this
package. A requester's XIDs and ours are separate spaces (section 2.4), and so are credits (section 4.1).

Chunks
    There is no DDP-eligible item in any callback (RFC 8267 section 6.5), so that the only chunks are those of Long
    Calls and Long Replies: one Position Zero Read chunk, one Reply chunk. Their memory is the owner's, who registers
    it with the peer and hands it over as an :class:`Exposure`. Whatever the end of the call, ``withdraw`` comes before
    anybody looks at what the peer has written, or gives the memory to somebody else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from rpcrdma.engine.counters import Counters
from rpcrdma.engine.credits import Credits
from rpcrdma.wire.chunks import WriteChunk, used
from rpcrdma.wire.codec import Codec
from rpcrdma.wire.errors import TransportError, decode_error
from rpcrdma.wire.header import RDMA_MSG, RDMA_NOMSG, Header

Answer = Callable[[bytes | None], None]
"""Called once with the whole RPC reply, or with None when there will be none."""

_REPLY = b"\0\0\0\1"


class Exposure(Protocol):
    """Memory of ours that the peer may use for one backward call."""

    call: WriteChunk | None
    """Segments that hold the whole RPC call; None for a Short Call."""
    reply: WriteChunk | None
    """Segments that take the whole RPC reply if it does not fit inline."""

    @property
    def invalidate(self) -> int:
        """The one handle of them that the peer may invalidate; 0 when it must not."""

    def withdraw(self, length: int) -> bytes:
        """End the peer's access, then return ``length`` octets of the reply's memory, and let go of it all."""


class BackwardCall:
    """One backward call: waiting for a credit, or for its reply."""

    __slots__ = ("_answer", "error", "exposure", "message", "xid")

    def __init__(self, xid: int, message: bytes | memoryview, answer: Answer, exposure: Exposure | None = None) -> None:
        self.xid = xid
        self.message = message
        self.error: TransportError | None = None
        """What the peer answered instead of a reply."""
        self.exposure = exposure
        self._answer: Answer | None = answer

    def encode(self, codec: Codec, credit_value: int) -> bytes:
        """The message to be sent."""
        exposure = self.exposure
        if exposure is None:
            return codec.encode_call(self.xid, credit_value) + self.message
        reads = [] if exposure.call is None else [(0, *segment) for segment in exposure.call]
        procedure, inline = (RDMA_NOMSG, b"") if reads else (RDMA_MSG, self.message)
        header = codec.encode_call(
            self.xid, credit_value, procedure, reads, reply=exposure.reply, invalidate=exposure.invalidate
        )  # fmt: skip
        return header + inline

    def abandon(self) -> None:
        """Nobody waits any more. Credit and chunks stay in use until the peer answers: its Receive must stay posted,
        and access to memory that was withdrawn too early would cost it the connection."""
        self._answer = None

    @property
    def abandoned(self) -> bool:
        """Whether the answer has been given or is not wanted."""
        return self._answer is None

    def collect(self, length: int = 0) -> bytes:
        """Withdraw the memory; returns what the peer has put there, if a reply of ``length`` octets."""
        exposure, self.exposure = self.exposure, None
        return b"" if exposure is None else exposure.withdraw(length)

    def finish(self, reply: bytes | None) -> None:
        """Hand the reply over; a second call does nothing."""
        self.collect()
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(reply)


def long_reply_length(call: BackwardCall, header: Header) -> int | None:
    """Octets of a reply that the peer says to have put into our Reply chunk; None when that cannot be."""
    offered = None if call.exposure is None else call.exposure.reply
    return None if offered is None or header.reply is None else used(offered, header.reply)


class BackwardChannel:
    """The backward calls of one connection. ``ledger`` and ``counters`` are the connection's and the server's."""

    def __init__(self, limit: int, ledger: Credits, counters: Counters) -> None:
        self._limit = limit
        self._ledger = ledger
        self._counters = counters
        # Until the first reply grants more, one call may be outstanding (RFC 8166 section 3.3.3).
        self.window = min(1, limit)
        self._pending: dict[int, BackwardCall] = {}
        self.waiting: deque[BackwardCall] = deque()
        """Calls that are to be sent."""

    def __len__(self) -> int:
        """Calls sent and not answered."""
        return len(self._pending)

    def submit(self, call: BackwardCall) -> None:
        """Queue ``call``. Raises ConnectionError when the channel is off, ValueError for an XID in use."""
        if not self._limit:
            raise ConnectionError("backward calls are switched off")
        if call.xid in self._pending or any(call.xid == waiting.xid for waiting in self.waiting):
            raise ValueError(f"backward XID {call.xid:#x} is in use")
        self.waiting.append(call)

    def next(self) -> BackwardCall | None:
        """The next call to be sent now, counted as outstanding; None while the peer's credits or our Receives are used
        up."""
        while self.waiting and len(self._pending) < self.window and self._ledger.can_call_back():
            call = self.waiting.popleft()
            if call.abandoned:
                call.collect()
                continue
            self._pending[call.xid] = call
            self._ledger.backward += 1
            return call
        return None

    def awaits(self, xid: int) -> bool:
        """Whether a reply with this XID is to come."""
        return xid in self._pending

    def take_reply(self, header: Header, view: memoryview) -> bool:
        """Match the reply in the message ``view`` with its call. False: it matches none, or something is wrong with
        it, and it is to be discarded (RFC 8166 section 4.5)."""
        call = self._pending.get(header.xid)
        if call is None or header.reads or header.writes:
            return False
        length = 0
        if header.procedure == RDMA_NOMSG or header.reply is not None:
            # A Reply chunk comes back even when it was not needed (section 4.3.3).
            length_or_none = long_reply_length(call, header)
            if length_or_none is None or (length_or_none and header.procedure == RDMA_MSG):
                return False
            length = length_or_none
        if header.procedure == RDMA_NOMSG:
            reply = call.collect(length)
        else:
            reply = bytes(view[header.payload :])
            if not _is_reply(reply, header.xid):
                return False
        self._over(call)
        # Zero would be a deadlock, and stands for one as it does in the forward direction.
        self.window = min(max(header.credits, 1), self._limit)
        if not _is_reply(reply, header.xid):
            call.finish(None)  # its memory has been withdrawn, so that no better reply can follow
            return False
        self._counters.backward_replies += 1
        call.finish(reply)
        return True

    def take_error(self, view: memoryview) -> bool:
        """Take an RDMA_ERROR. False when it belongs to no backward call or cannot be decoded. Its credit value has no
        certain direction and is ignored (section 4.1)."""
        error = decode_error(view)
        call = None if error is None else self._pending.get(error.xid)
        if call is None:
            return False
        self._over(call)
        call.error = error
        call.finish(None)
        return True

    def _over(self, call: BackwardCall) -> None:
        del self._pending[call.xid]
        self._ledger.backward -= 1

    def close(self) -> None:
        """Fail every call."""
        calls = [*self._pending.values(), *self.waiting]
        self._pending.clear()
        self.waiting.clear()
        for call in calls:
            call.finish(None)


def _is_reply(reply: bytes, xid: int) -> bool:
    """Section 5.2: the RPC message starts with the header's XID, and is a reply."""
    return reply[4:8] == _REPLY and int.from_bytes(reply[:4], "big") == xid
