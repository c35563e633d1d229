"""Calls in the backward direction: from the RPC server to its client (RFC 8167), short messages only.

Owns the window of outstanding backward calls and the matching of their replies; imports nothing of the project. A
requester's XIDs and ours are separate spaces (section 2.4), and so are credits (section 4.1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Answer = Callable[[bytes | None], None]
"""Called once with the whole RPC reply, or with None when there will be none."""


class BackwardCall:
    """One backward call: waiting for a credit, or for its reply."""

    __slots__ = ("_answer", "message", "xid")

    def __init__(self, xid: int, message: bytes | memoryview, answer: Answer) -> None:
        self.xid = xid
        self.message = message
        self._answer: Answer | None = answer

    def abandon(self) -> None:
        """Nobody waits any more. The credit stays in use until the peer answers: its Receive must stay posted."""
        self._answer = None

    @property
    def abandoned(self) -> bool:
        """Whether the answer has been given or is not wanted."""
        return self._answer is None

    def finish(self, reply: bytes | None) -> None:
        """Hand the reply over; a second call does nothing."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(reply)


class BackwardChannel:
    """The backward calls of one connection."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
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
        """The next call to be sent now, counted as outstanding; None while the window is full."""
        while self.waiting and len(self._pending) < self.window:
            call = self.waiting.popleft()
            if not call.abandoned:
                self._pending[call.xid] = call
                return call
        return None

    def replied(self, xid: int, credit_value: int, reply: memoryview) -> bool:
        """Take a reply; False when no call awaits it, and it is to be discarded."""
        call = self._pending.pop(xid, None)
        if call is None:
            return False
        # Zero would be a deadlock, and stands for one as it does in the forward direction.
        self.window = min(max(credit_value, 1), self._limit)
        call.finish(bytes(reply))
        return True

    def failed(self, xid: int) -> bool:
        """Take an RDMA_ERROR for a backward call; False when it belongs to none. Its credit value has no certain
        direction and is ignored (section 4.1)."""
        call = self._pending.pop(xid, None)
        if call is None:
            return False
        call.finish(None)
        return True

    def close(self) -> None:
        """Fail every call."""
        calls = [*self._pending.values(), *self.waiting]
        self._pending.clear()
        self.waiting.clear()
        for call in calls:
            call.finish(None)
