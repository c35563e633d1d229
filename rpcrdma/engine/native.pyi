"""Native calls over RPC-over-RDMA version One. Implemented in ``native.pyx``."""

from collections.abc import Callable, Sequence
from typing import Protocol, type_check_only

from rpcrdma.engine.config import ResponderOptions
from rpcrdma.engine.responder import Responder
from rpcrdma.memory import Account
from rpcrdma.pace import Pace
from rpcrdma.place import Answerer
from rpcrdma.verbs.interface import Received
from rpcrdma.verbs.native import NativeEndpoint, NativeOwner

@type_check_only
class Owner(Protocol):
    """Whose connection it is, as calls need it that are answered natively but later."""

    def begin_held(self) -> bool:
        """Count a call in progress. False: there are too many."""
    def end_held(self) -> None:
        """It is over."""

class NativeResponder(NativeOwner):
    """What stands before one connection's responder and answers what can be answered natively."""

    def __init__(
        self,
        responder: Responder,
        endpoint: NativeEndpoint,
        native: Answerer,
        account: Account,
        receive_account: Account,
        options: ResponderOptions,
        run: Callable[[], None],
        owner: Owner | None = None,
    ) -> None:
        """``run`` is called when the responder has been given something to do outside of any event of its owner's.
        Calls that have to wait are kept if the ``owner`` lets them."""
    late: list[Received] | None
    """Calls of the last batch that were left alone because the host is over its rates; None: there are none.
    The caller has them, and offers them again when the host may have calls again."""
    def set_pace(self, pace: Pace) -> None:
        """Begin no call while the host is over its rates."""
    def calls_and_others(self, messages: Sequence[Received]) -> tuple[list[Received], list[Received]]:
        """The messages that are, or begin, calls, and all others."""
    def set_endpoint(self, endpoint: NativeEndpoint) -> None:
        """Post replies there from now on: a capture's tap, or the real endpoint again."""
    def refused_call(self, handle: int | None) -> int | None:
        """The XID of the answered call whose memory this handle named, if it was one of the latest."""
    def let_go(self) -> None:
        """Hold the endpoint no more. To be called when the responder is closed and nothing here is at work: then nothing
        is posted any more, and calls that still wait are carried through."""
