"""RPC records over one connected, non-blocking stream socket, in both directions. Implemented in ``stream.pyx``."""

from collections.abc import Callable
from typing import Self

from rpcrdma.capture.recorder import Tap
from rpcrdma.crew import Crew
from rpcrdma.in_progress import CountingConnection
from rpcrdma.memory import Account, Lease
from rpcrdma.pace import Pace
from rpcrdma.place import Answerer
from rpcrdma.rpc.program import RpcReply
from rpcrdma.tls.kernel import Transmitter
from rpcrdma.tls.records import Opening, Sealing

class RecordError(Exception):
    """The peer broke the record format or its bounds; the connection is of no use any more."""

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
    """Calls that the last :meth:`receive` answered natively."""
    unfinished: bool
    """Whether the last :meth:`receive` left off because it had done much, or because much waits to be sent. Call it
    again, ``readable`` or not, when others have had their turn and what waits has been sent or can be."""
    slowed: bool
    """Whether the last :meth:`receive` left something alone because the host is over its rates."""
    busy: bool
    """Whether another thread is sending: flush again when it has woken this one, and not before."""
    queued: int
    """Octets that wait to be sent."""
    received_octets: int
    sent_octets: int
    def give(self, lease: Lease) -> None:
        """Memory of the size that ``starved`` said; the next :meth:`receive` takes it, or releases it."""
    def answer_natively(
        self, native: Answerer | None, most_unsent: int = 0, owner: CountingConnection | None = None
    ) -> None:
        """Offer calls to ``native`` before they are returned, as long as no more than ``most_unsent`` octets wait. Calls
        that have to wait are kept if the ``owner`` lets them. With None, which may come after :meth:`close` too, but not
        while anything here is at work, neither is held any more; calls that wait have both themselves."""
    def secure(
        self,
        directions: tuple[Opening, Sealing],
        crew: Crew | None = None,
        wake: Callable[[], None] | None = None,
        kernel: Transmitter | None = None,
    ) -> None:
        """Have everything enciphered from now on, in both directions. What is long is enciphered and sent by the
        ``crew``; when they have done (``busy``), ``wake`` is called. With ``kernel`` it is the kernel that enciphers."""
    def set_pace(self, pace: Pace) -> None:
        """Begin no record while the host is over its rates. To be called behind ``answer_natively``."""
    def set_tap(self, tap: Tap | None) -> None:
        """Show every record, in both directions, to ``tap``; None: to nobody."""
    def receive(self, readable: bool = True) -> list[tuple[memoryview, Lease]]:
        """Take what has arrived: (record, hold), the hold with one count for the caller. Without ``readable`` only
        what was read before is looked at. Raises RecordError, OSError; that not if there are records (``severed``)."""
    def queue(self, reply: RpcReply) -> None:
        """Add a reply to what is to be sent; it is released when it has left or the stream is closed."""
    def settle(self) -> bool:
        """Send, if there is nothing else to see to; no record that has been received may wait. Returns whether
        everything has left, and all that is to be done is to receive again: soon if ``unfinished``, else when there is
        something to read. If not: :meth:`flush`. Raises OSError when the connection is broken."""
    def flush(self, everything: bool = False) -> bool:
        """Send as much as the socket takes and the turn allows that began with :meth:`receive`, or begins here; or
        ``everything`` that the socket takes. Returns whether all has left. Raises OSError when the connection is broken.
        """
    def sever(self) -> None:
        """The connection is broken: what is to be sent is released, now and at each :meth:`flush`."""
    def close(self) -> None:
        """Release every buffer and every reply. Nothing may be called after it but this."""
