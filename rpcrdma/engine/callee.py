"""The responder of backward calls: what the RPC server asks of its client (RFC 8167), in either version.

Owns :class:`Callee`. Imports :mod:`rpcrdma.wire` and this package.

Chunks
    No item of a callback is DDP-eligible (RFC 8267 section 6.5), so that there is at most a Position Zero Read chunk,
    for a Long Call, and a Reply chunk. They are the server's memory, which we read and write.

Bounds
    No more calls are worked on than we grant; a server that exceeds that loses its connection, as it does with Linux.
    A Long Call is at most ``LARGEST_CALL`` octets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rpcrdma.engine import assembly
from rpcrdma.engine.reduce import NoRoom, Reply, reduce
from rpcrdma.memory import Account, Lease, OutOfMemory
from rpcrdma.verbs.interface import Send
from rpcrdma.wire.header import RDMA_MSG, RDMA_NOMSG, Fault, Header, Shortage

if TYPE_CHECKING:
    from rpcrdma.engine.requester import Requester

LARGEST_CALL = 64 << 10

_CALL = bytes(4)


class BackwardCall:
    """A call of the server's, in progress."""

    __slots__ = ("header", "lease", "length")

    def __init__(self, header: Header) -> None:
        self.header = header
        self.lease: Lease | None = None
        self.length = 0

    def release(self) -> None:
        """Give the sink of a Long Call back."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()


class _Answer:
    """The token of a reply that is being sent."""

    __slots__ = ("reply",)

    def __init__(self, reply: Reply) -> None:
        self.reply = reply


class Callee:
    """The backward calls of one connection; ``call`` takes (whole RPC call, token for :meth:`reply`)."""

    def __init__(self, limit: int, memory: Account, call: Callable[[memoryview, BackwardCall], None]) -> None:
        self.limit = limit
        self._memory = memory
        self._call = call
        self._requester: Requester
        self._in_progress: set[BackwardCall] = set()
        self._answers: set[_Answer] = set()
        self._closed = False

    def __len__(self) -> int:
        """Calls in progress."""
        return len(self._in_progress)

    def attach(self, requester: Requester) -> None:
        """Name the connection it works for."""
        self._requester = requester

    def take(self, header: Header, view: memoryview) -> bool:
        """Take the call in the message ``view``. False: it is to be discarded."""
        requester = self._requester
        if len(self._in_progress) >= self.limit:
            requester.fail(f"more than {self.limit} backward calls at a time")
            return False
        if header.procedure == RDMA_MSG and not header.reads:
            message = bytes(view[header.payload :])
            if not _is_call(message, header.xid):
                self._refuse(header, Fault.HEADER)
                return False
            self._begin(BackwardCall(header), memoryview(message))
            return True
        try:
            plan = assembly.plan(header, len(view) - header.payload, LARGEST_CALL)
            if plan is None or plan.body is None or plan.chunks:
                raise assembly.BadReadList("a callback has no DDP-eligible item")
            lease = self._memory.lease(plan.size)
        except (assembly.BadReadList, OutOfMemory):
            self._refuse(header, Fault.HEADER)
            return False
        call = BackwardCall(header)
        call.lease, call.length = lease, plan.body.length
        self._in_progress.add(call)
        requester.reads.append((plan.reads(lease.view), call))
        return True

    def _begin(self, call: BackwardCall, message: memoryview) -> None:
        self._in_progress.add(call)
        self._call(message, call)

    def completed(self, token: object, ok: bool) -> bool:
        """Take a completion; False: it is none of ours."""
        if isinstance(token, _Answer):
            self._answers.discard(token)
            token.reply.release()
            if not ok and not self._closed:
                self._requester.fail("a reply to a backward call could not be sent")
            return True
        if not isinstance(token, BackwardCall):
            return False
        message = b""
        if token.lease is not None and not self._closed:
            message = bytes(token.lease.view[: token.length])
        token.release()
        if self._closed:
            return True
        if not ok:
            self._requester.fail("an RDMA Read of a backward call failed")
        elif not _is_call(message, token.header.xid):
            self._in_progress.discard(token)
            self._refuse(token.header, Fault.HEADER)
        else:
            self._call(memoryview(message), token)
        return True

    def reply(self, call: BackwardCall, reply: Reply | None) -> None:
        """Answer a call; None: leave it unanswered. Takes the reply over."""
        if self._closed or call not in self._in_progress:
            if reply is not None:
                reply.release()
            return
        self._in_progress.discard(call)
        if reply is None:
            return
        requester, header = self._requester, call.header
        codec = requester.codec
        header_size = codec.reply_size(header)
        try:
            reduction = reduce(header, reply, header_size, requester.properties.send_threshold)
        except NoRoom as shortage:
            reply.release()
            self._refuse(header, Fault.NO_ROOM, Shortage(True, shortage.segment, shortage.needed))
            return
        buffer = memoryview(bytearray(header_size))
        end = codec.encode_reply(buffer, header, self.limit, reduction.procedure, reduction.written, reduction.in_reply)
        pieces = [] if reduction.procedure == RDMA_NOMSG else reduction.stream
        message = b"".join([buffer[:end], *pieces])
        # Version One has no rule for invalidating what is the server's (RFC 8797 section 4.1 speaks of requesters).
        invalidate = codec.invalidates(header) if header.version != 1 else None
        answer = _Answer(reply)
        self._answers.add(answer)
        requester.chains.append((reduction.writes, Send((message,), invalidate), answer))

    def _refuse(self, header: Header, fault: Fault, shortage: Shortage | None = None) -> None:
        codec = self._requester.codec
        self._requester.answer(codec.encode_error(header.xid, self.limit, fault, shortage or Shortage()))

    def close(self) -> None:
        """The connection is gone, and what was posted is over."""
        self._closed = True
        for call in self._in_progress:
            call.release()
        self._in_progress.clear()
        answers, self._answers = self._answers, set()
        for answer in answers:
            answer.reply.release()


def _is_call(message: bytes, xid: int) -> bool:
    return len(message) >= 8 and int.from_bytes(message[:4], "big") == xid and message[4:8] == _CALL
