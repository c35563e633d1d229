"""What a TCP connection of the server does when something has arrived. Implemented in ``wakeups.pyx``."""

from collections import deque
from collections.abc import Callable

from rpcrdma.holds import Hold
from rpcrdma.in_progress import CountingConnection, CountingSeat
from rpcrdma.tcp.stream import RecordStream

class WokenConnection(CountingConnection):
    """A TCP connection of the server, as far as every wake-up concerns it; ``time`` is the loop's."""

    reading: bool
    """Whether it is woken when there is something to read,"""
    writing: bool
    """or to write."""
    resuming: bool
    """Whether it goes on in the loop's next turn, whatever there is to read."""
    last_call: float
    """When the latest call arrived or ended."""
    def __init__(
        self, seat: CountingSeat, most_calls: int, stream: RecordStream, time: Callable[[], float]
    ) -> None: ...
    @property
    def stream(self) -> RecordStream: ...
    @property
    def waiting(self) -> deque[tuple[memoryview, Hold]]:
        """Records that have yet to be dispatched."""
    @property
    def served(self) -> int:
        """Calls taken so far."""
    def readable(self) -> None:
        """There is something to read: :meth:`receive`."""
    def receive(self, readable: bool) -> None:
        """Take what has arrived, and answer what can be at once. Without ``readable`` only what was read before is looked
        at. What is left then is to be done by :meth:`work`."""
    def is_settled(self) -> bool:
        """Send, if there is nothing else to do, as in nearly all turns of a busy client. :meth:`work` finds the same at
        several times the cost. Raises OSError."""
    # What the connection does besides.
    def called(self) -> None:
        """Its first call has come."""
    def work(self) -> None:
        """Dispatch what waits, send the replies there are, and see what to wait for."""
    def resume_soon(self) -> None:
        """Go on in the loop's next turn: there is more to do than a turn may take."""
    def broken(self, error: OSError) -> None:
        """The socket has failed."""
    def fail(self, reason: str) -> None:
        """The peer has broken the record format, or a bound."""
