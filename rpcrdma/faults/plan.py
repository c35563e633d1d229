"""What is to be done to one call: :class:`Plan`, and who says so, :class:`Planner`. Imports the vocabulary of RPC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rpcrdma.engine.spoiling import Spoiling
from rpcrdma.rpc.program import RpcReply, Transport

Message = tuple[memoryview, Sequence[tuple[int, memoryview]]]
"""A call, and what its Read chunks took out of it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done to a call; by default, nothing."""

    delay: float = 0.0
    """Seconds before it is executed."""
    delay_reply: float = 0.0
    """Seconds between its execution and its reply."""
    overtaken_by: int = 0
    """Its reply leaves behind so many others of the connection, or after :data:`LONGEST_OVERTAKING`."""
    drop: Literal["", "call", "reply"] = ""
    """Nothing is answered, on a connection that lives on; ``call``: nothing is executed either."""
    disconnect: Literal["", "before", "after"] = ""
    """The connection ends, before or after the call is executed."""
    answer: RpcReply | None = None
    """Sent instead of executing it."""
    message: Message | None = None
    """Executed instead of it."""
    amend: Callable[[RpcReply], RpcReply] | None = None
    """What is sent instead of its reply, which is this one's to release."""
    spoiling: Spoiling | None = None
    """What is wrong with the transport header of the reply; of RDMA connections only."""


LONGEST_OVERTAKING = 1.0
"""Seconds that a reply waits for others to overtake it."""


class Planner(Protocol):
    """Decides what is done to calls."""

    def concerns(self, transport: Transport) -> bool:
        """Whether anything may be done to calls of a connection."""

    def plan(self, transport: Transport, message: Message) -> Plan | None:
        """What is done to a call that has just come; None: nothing."""
