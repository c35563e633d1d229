"""Replies that leave with a wrong transport header, on purpose: what a requester makes of them is to be seen.

Owns :class:`Spoiling` and the reply that carries one, :class:`Spoilt`; imports :mod:`rpcrdma.wire` and the vocabulary
of :mod:`rpcrdma.verbs.interface`. The responder composes such a reply like any other, then has it spoilt. So it counts
credits and holds memory as ever.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal, NamedTuple

from rpcrdma.engine.calls import ForwardCall
from rpcrdma.engine.reduce import Reply
from rpcrdma.verbs.interface import RdmaWrite, Send
from rpcrdma.wire.header import FIXED_WORDS, Fault, Header, encode_version_error

_CREDITS = struct.Struct(">I")
_CREDITS_AT = 8
_OTHER_VERSION = 3
"""What a peer hears that its version is not spoken: nobody has this one."""


class Spoiling(NamedTuple):
    """What is wrong with the header."""

    error: Fault | None = None
    """An RDMA_ERROR goes out instead of the reply, and no RDMA Write."""
    credit_value: int | None = None
    """So many credits are granted. The ledger knows nothing of it."""
    invalidate: Literal["", "none", "last", "wrong"] = ""
    """The handle that the Send invalidates: none, that of the call's last segment instead of the first, or one that the
    call does not have (RFC 8797 section 4.1 allows only handles of that very call)."""


class Spoilt:
    """A reply that is to be spoilt when it leaves."""

    __slots__ = ("_reply", "_spoiling", "head", "payloads")

    def __init__(self, reply: Reply, spoiling: Spoiling) -> None:
        self._reply, self._spoiling = reply, spoiling
        self.head, self.payloads = reply.head, reply.payloads

    def __len__(self) -> int:
        """Of the reply."""
        return len(self._reply)  # type: ignore[arg-type]  # every reply of the upper layer's has a length

    def release(self) -> None:
        """Release every payload."""
        self._reply.release()

    def spoil(self, call: ForwardCall, writes: Sequence[RdmaWrite], send: Send) -> tuple[Sequence[RdmaWrite], Send]:
        """What is posted in place of the Writes and the Send of the reply to ``call``."""
        error, credit_value, invalidate = self._spoiling
        segments: Sequence[memoryview | bytes] = send.segments
        handle = send.invalidate
        if credit_value is not None:
            first = bytearray(segments[0])
            _CREDITS.pack_into(first, _CREDITS_AT, credit_value)
            segments = (memoryview(first), *segments[1:])
        if invalidate:
            handle = _other_handle(call.header, handle, invalidate)
        if error is not None:
            xid, version, grant, _ = FIXED_WORDS.unpack_from(segments[0])
            if error is Fault.VERSION:
                message = encode_version_error(xid, version, grant, _OTHER_VERSION, _OTHER_VERSION)
            else:
                message = call.codec.encode_error(xid, grant, error)
            return (), Send((message,))
        return writes, Send(segments, handle)


def _other_handle(call: Header, right: int | None, which: str) -> int | None:
    if which == "none":
        return None
    handles = [segment[1] for segment in call.reads]
    handles += [segment[0] for chunk in [*call.writes, call.reply or []] for segment in chunk]
    if which == "last":
        return handles[-1] if handles else right
    known = {right, *handles}
    return next(handle for handle in range(0xFFFFFF00, 0, -1) if handle not in known)
