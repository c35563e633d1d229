"""What a responder and the native code that stands before it both look at. Implemented in ``state.pyx``."""

from collections import deque
from collections.abc import Sequence

from rpcrdma.engine.calls import Chain, ForwardCall
from rpcrdma.engine.counters import Counters
from rpcrdma.engine.credits import Credits
from rpcrdma.engine.environment import Poisoned
from rpcrdma.engine.versions import Versions
from rpcrdma.holds import Hold
from rpcrdma.memory import Lease
from rpcrdma.verbs.interface import RdmaRead, RdmaWrite, Received, Send

class ResponderState:
    """The state of one connection's responder. One that is ``traced`` has no call answered natively."""

    receives: list[Lease]
    """Receives to post."""
    reads: list[tuple[list[RdmaRead], ForwardCall]]
    """RDMA Reads to post, each chain with its token."""
    chains: list[tuple[Sequence[RdmaWrite], Send, Chain]]
    """Writes and Sends to post, each chain with its token."""
    calls: list[ForwardCall]
    """Calls to execute."""
    failure: str | None
    """Why the connection must be closed."""
    poisoned: Poisoned | None
    """Calls that get an error when they come, if there may be any."""
    received_messages: int
    closed: bool
    draining: bool
    """New calls are no longer taken."""
    may_read: bool
    """Whether the peer allows any RDMA Read. Where it does not, calls with Read chunks get an error."""
    def __init__(
        self, ledger: Credits, counters: Counters, versions: Versions, poisoned: Poisoned | None, traced: bool
    ) -> None: ...
    @property
    def credits(self) -> Credits: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def versions(self) -> Versions:
        """Those that the connection may speak."""
    @property
    def to_read(self) -> deque[ForwardCall]:
        """Calls whose Read chunks are to be fetched as soon as there is memory: who comes now comes after them."""
    @property
    def idle(self) -> bool:
        """Whether nothing received is unanswered, and everything sent has left."""
    # What the responder does for native code.
    def proceed(self) -> None:
        """Do what has become possible by what was done natively."""
    def take_back(self, lease: Lease, length: int, sink: Lease | None, holder: Hold) -> None:
        """Take over a call from who stands before (:mod:`rpcrdma.engine.native`): it was found to be in order, and
        counted there; its Read chunk, if any, is in ``sink``; ``holder`` is released in place of the lease."""
    def unfetched(self, lease: Lease, length: int, sink: Lease) -> None:
        """Likewise, of one whose Read chunk could not be fetched."""
    def lost(self, count: int) -> None:
        """Replies that were given natively have not left."""
    def received(self, messages: Sequence[Received]) -> None:
        """Take a batch of messages, each with one count of its lease."""
