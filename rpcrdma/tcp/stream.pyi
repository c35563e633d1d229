"""RPC records over one connected, non-blocking stream socket, in both directions. Implemented in ``stream.pyx``."""

from typing import Protocol, Self, type_check_only

from rpcrdma.capture.recorder import Tap
from rpcrdma.holds import Hold
from rpcrdma.memory import Account, Lease
from rpcrdma.pace import Pace
from rpcrdma.place import Answerer
from rpcrdma.rpc.program import RpcReply

class RecordError(Exception):
    """The peer broke the record format or its bounds; the connection is of no use any more."""

@type_check_only
class Owner(Protocol):
    """Whose stream it is, as calls need it that are answered natively but later."""

    def begin_held(self) -> bool:
        """Count a call in progress. False: there are too many."""
    def end_held(self) -> None:
        """It is over: there may be something to send."""
    def crashed(self) -> None:
        """A mistake of ours, of which the present exception tells, has cost a call its reply."""
    def take_back(self, record: memoryview, hold: Hold) -> None:
        """It is to be dispatched after all; takes the count of ``hold``."""

class RecordStream:
    """Receives and sends records on a descriptor that it does not own."""

    def __new__(
        cls,
        fd: int,
        account: Account,
        max_record: int = ...,
        max_fragments: int = ...,
        most_records: int = ...,
    ) -> Self: ...
    fd: int
    """Where records come from and go to. Another one may take its place between two calls."""
    eof: bool
    """The peer has finished sending."""
    severed: bool
    """The connection is broken, but has brought records first: nothing comes any more, and nothing can be sent."""
    starved: int
    """Octets of a buffer that could not be had, else 0. Call :meth:`receive` again once it can."""
    partial: bool
    """Whether part of a record, or of its header, has arrived."""
    missing: int
    """Octets of the present record that have not been received, as far as is known."""
    answered: int
    """Calls that the last :meth:`receive` answered directly."""
    unfinished: bool
    """Whether the last :meth:`receive` left off because it had done much, or because much waits to be sent. Call it
    again, ``readable`` or not, when others have had their turn and what waits has been sent or can be."""
    slowed: bool
    """Whether the last :meth:`receive` left something alone because the host is over its rates."""
    queued: int
    """Octets that wait to be sent."""
    received_octets: int
    sent_octets: int
    def give(self, lease: Lease) -> None:
        """Memory of the size that ``starved`` said; the next :meth:`receive` takes it, or releases it."""
    def answer_directly(self, direct: Answerer, most_unsent: int, owner: Owner | None = None) -> None:
        """Offer calls to ``direct`` before they are returned, as long as no more than ``most_unsent`` octets wait. Calls
        that have to wait are kept if the ``owner`` lets them."""
    def set_pace(self, pace: Pace) -> None:
        """Begin no record while the host is over its rates. To be called behind ``answer_directly``."""
    def set_tap(self, tap: Tap | None) -> None:
        """Show every record, in both directions, to ``tap``; None: to nobody."""
    def receive(self, readable: bool = True) -> list[tuple[memoryview, Lease]]:
        """Take what has arrived: (record, hold), the hold with one count for the caller. Without ``readable`` only
        what was read before is looked at. Raises RecordError, OSError; that not if there are records (``severed``)."""
    def queue(self, reply: RpcReply) -> None:
        """Add a reply to what is to be sent; it is released when it has left or the stream is closed."""
    def flush(self, everything: bool = False) -> bool:
        """Send as much as the socket takes and the turn allows that began with :meth:`receive`, or begins here; or
        ``everything`` that the socket takes. Returns whether all has left. Raises OSError when the connection is broken.
        """
    def sever(self) -> None:
        """The connection is broken: what is to be sent is released, now and at each :meth:`flush`."""
    def close(self) -> None:
        """Release every buffer and every reply. Nothing may be called after it but this."""
