"""What an RDMA connection of the server does when messages have arrived. Implemented in ``receiving.pyx``."""

from collections import deque
from collections.abc import Sequence
from typing import Protocol, type_check_only

from rpcrdma.capture.recorder import Tap
from rpcrdma.engine.calls import ForwardCall
from rpcrdma.engine.native import NativeResponder
from rpcrdma.engine.responder import Responder
from rpcrdma.in_progress import CountingSeat
from rpcrdma.pace import Pace
from rpcrdma.verbs.interface import Received

@type_check_only
class _Slowing(Protocol):
    """The connection, as its host's pace sees it."""

    waits: bool
    @property
    def lately(self) -> bool:
        """Whether something of the connection's is left unread, or was a moment ago."""
    def stops(self) -> bool:
        """Whether the next call must wait; then it is seen to that it may go on."""
    def wait(self) -> None:
        """Have the connection go on when it may."""
    def close(self) -> None:
        """The connection is gone."""

class ReceivingConnection:
    """An RDMA connection of the server, as far as every batch of messages concerns it."""

    responder: Responder
    """To be set before a message can come."""
    native: NativeResponder | None
    """Who answers calls before the responder, if anybody does."""
    tap: Tap | None
    """Who is shown what passes, if anybody is."""
    held_back: deque[ForwardCall]
    """Calls that wait for there being fewer of the same host."""
    closed: bool
    def __init__(self, seat: CountingSeat, pace: Pace, slowing: _Slowing) -> None: ...
    @property
    def slowing(self) -> _Slowing: ...
    @property
    def late(self) -> deque[Received]:
        """Calls that have come faster than the host may have them."""
    @property
    def held(self) -> int:
        """Calls that wait on the native path."""
    def received(self, messages: Sequence[Received]) -> None:
        """Take a batch of messages."""
    def put_off(self, messages: Sequence[Received]) -> Sequence[Received]:
        """Keep calls, in the Receives that they have taken, until the host may have them; the others are returned."""
    def take(self, messages: Sequence[Received]) -> None:
        """Answer what can be answered at once, and give the responder the rest."""
    def begin_held(self) -> bool:
        """Count a call in progress that is answered natively, but later. False: there are too many."""
    def end_held(self) -> None:
        """It is over."""
    # What the connection does besides.
    def called(self) -> None:
        """Messages have come, and no call was counted yet."""
    def grow(self) -> None:
        """The peer has used the credits it has, and asks for more."""
    def run(self) -> None:
        """Post what the responder wants posted, and execute its calls."""
    def crashed(self) -> None:
        """A mistake of ours, which is being handled."""
