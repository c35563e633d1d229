"""Direct calls over RPC-over-RDMA version One. Implemented in ``direct.pyx``."""

from collections.abc import Sequence

from rpcrdma.engine.calls import ForwardCall
from rpcrdma.engine.responder import Responder
from rpcrdma.memory import Account
from rpcrdma.place import Answerer
from rpcrdma.verbs.interface import Received
from rpcrdma.verbs.native import NativeEndpoint

class DirectResponder:
    """What stands before one connection's responder and answers what can be answered natively."""

    def __init__(self, responder: Responder, endpoint: NativeEndpoint, direct: Answerer, account: Account) -> None: ...
    def received(self, messages: Sequence[Received]) -> list[Received]:
        """Answer what can be answered; the others are returned, for :meth:`Responder.received`."""
    def execute(self, call: ForwardCall) -> bool:
        """Answer a call that the responder has handed up, if it can be answered."""
    def refused_call(self, handle: int | None) -> int | None:
        """The XID of the answered call whose memory this handle named, if it was one of the latest."""
