"""What connections need of a dispatcher. Owns :class:`Dispatcher`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rpcrdma.holds import Hold
from rpcrdma.place import Answerer
from rpcrdma.rpc.program import RpcReply, Transport


class Dispatcher(Protocol):
    """Where calls go: :class:`rpcrdma.rpc.dispatch.Dispatcher`."""

    def native_calls(self, transport: Transport) -> Answerer | None:
        """What answers the common calls of a connection natively, if anything does."""

    def admits(self, transport: Transport) -> bool:
        """Whether calls of this host are executed, as far as is known by now."""

    def dispatch(
        self,
        transport: Transport,
        data: memoryview,
        chunks: Sequence[tuple[int, memoryview]],
        holds: list[Hold],
        done: Callable[[RpcReply | None], None],
        reply_room: int = 0,
    ) -> None:
        """Execute a call and call ``done`` exactly once."""

    def drop(
        self, transport: Transport, data: memoryview, chunks: Sequence[tuple[int, memoryview]], holds: list[Hold]
    ) -> None:
        """Let go of a call that has not been dispatched, and whose connection goes."""
