"""A call between its arrival and its procedure, in the dispatcher's hands.

Owns :class:`Arrived` and the outcomes that stand for no reply; imports the vocabulary of programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rpcrdma.holds import Hold
from rpcrdma.rpc.program import RpcReply, Transport

Done = Callable[[RpcReply | None], None]
"""Takes the reply; None: close the connection; :data:`NO_REPLY`: send nothing."""

NO_REPLY: Final = RpcReply(0, b"", [])
TAKEN: Final = RpcReply(0, b"", [])
"""There is nothing to say as yet: ``done`` will be called by whoever has taken the call, with its holds."""


class TurnedAway(Exception):
    """The server is not for this caller."""


class Arrived:
    """One call as it was received."""

    __slots__ = ("chunks", "data", "done", "holds", "number", "reply_room", "transport", "xid")

    def __init__(
        self,
        transport: Transport,
        data: memoryview,
        chunks: Sequence[tuple[int, memoryview]],
        holds: list[Hold],
        done: Done,
        reply_room: int,
    ) -> None:
        self.transport, self.data, self.chunks, self.holds = transport, data, chunks, holds
        self.done, self.reply_room = done, reply_room
        self.xid = 0
        self.number = (0, 0, 0)
        """Program, version, procedure."""
