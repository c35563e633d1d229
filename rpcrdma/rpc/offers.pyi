"""General calls, offered to the native function of their procedure. Implemented in ``offers.pyx``."""

from rpcrdma.rpc.direct import DirectProgram
from rpcrdma.rpc.dispatch import Execution

class Offer:
    """One call. It is offered again each time that what it waits for is there."""

    def __init__(self, program: DirectProgram, execution: Execution, offset: int) -> None:
        """``offset``: where in its message the arguments begin. At most one item of them came in a chunk."""
    def begin(self) -> bool:
        """Offer the call. False: it is declined, and nothing has happened; it is for others to execute.

        Otherwise it is over when this returns, or it has called ``waits`` of its execution, and ends later: by
        ``over``, once, or by ``declined``."""

def offers(program: DirectProgram, procedure: int) -> bool:
    """Whether calls of this procedure may be offered to the program."""
