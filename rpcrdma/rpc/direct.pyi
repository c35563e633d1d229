"""Calls answered natively, in the stack in which they arrived. Implemented in ``direct.pyx``."""

from collections.abc import Callable

from rpcrdma.place import Answerer
from rpcrdma.rpc.dispatch import Row
from rpcrdma.rpc.messages import auth_stat
from rpcrdma.rpc.program import RpcCredential, Transport
from rpcrdma.rpc.replay import ReplayCache

class DirectProgram:
    """The procedures of one version of one program that can be answered directly; derived from in native code.

    ``answer`` writes the results of a procedure, or declines: then it has changed nothing. ``pause`` gives up what was
    held between calls (such as the caller's identity)."""

class DirectCalls(Answerer):
    """The direct calls of one connection."""

    def __init__(
        self,
        transport: Transport,
        replay: ReplayCache,
        read_credential: Callable[[int, memoryview], RpcCredential | auth_stat],
        versions: list[tuple[int, int, DirectProgram, list[Row | None]]],
    ) -> None:
        """``versions``: (program, version, direct program, rows by procedure)."""
