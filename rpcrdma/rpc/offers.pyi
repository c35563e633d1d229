"""General calls, offered to the native function of their procedure. Implemented in ``offers.pyx``."""

from typing import Protocol

from rpcrdma.rpc.native_program import NativeProgram
from rpcrdma.rpc.program import Call, RpcReply

class _Offered(Protocol):
    """Whose call is offered."""

    call: Call
    """When the call is over its ``begun`` is what the function has passed on with it."""
    def waits(self) -> None:
        """The call goes on later."""
    def over(self, result: RpcReply | None, exception: BaseException | None) -> None:
        """It has been answered, or has failed."""
    def declined(self) -> None:
        """It has waited, and is left to others after all."""

class Offer:
    """One call. It is offered again each time that what it waits for is there."""

    def __init__(self, program: NativeProgram, execution: _Offered, offset: int) -> None:
        """``offset``: where in its message the arguments begin."""
    def begin(self) -> bool:
        """Offer the call. False: it is declined, and nothing has happened; it is for others to execute.

        Otherwise it is over when this returns, or it has called ``waits`` of its execution, and ends later: by
        ``over``, once, or by ``declined``."""

def offers(program: NativeProgram, procedure: int) -> bool:
    """Whether calls of this procedure may be offered to the program."""
