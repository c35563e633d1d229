"""Calls in progress: how many there are, and whether another may begin. Implemented in ``in_progress.pyx``."""

import collections

from rpcrdma.holds import Hold
from rpcrdma.pace import Pace

class AllCalls:
    """Of all hosts, and how many there may be: in all, and of one host."""

    def __init__(self, most: int, most_of_host: int) -> None: ...
    @property
    def calls(self) -> int: ...
    @property
    def most(self) -> int: ...
    @property
    def most_of_host(self) -> int: ...
    @property
    def waiting(self) -> collections.deque[CountingSeat]:
        """Connections whose calls wait for there being fewer."""

class HostCalls:
    """Of one host."""

    pace: Pace | None
    def __init__(self, together: AllCalls) -> None: ...
    @property
    def together(self) -> AllCalls: ...
    @property
    def calls(self) -> int: ...
    def may_begin(self, more: int = 0) -> bool:
        """Whether the bounds allow the host a call beside its own and ``more``. One is allowed in any case: those that
        fill the bound in all may take long, and would keep all others from being served."""

class CountingSeat:
    """A connection, as far as it begins and ends calls."""

    queued: bool
    """Whether a call waits for its host's others."""
    called: bool
    """Whether a call has been made."""
    def __init__(self, counts: HostCalls) -> None: ...
    def delayed(self) -> None:
        """A call of the connection has to wait."""
    def let_others(self) -> None:
        """A call is over, and others wait."""
    def begin_call(self) -> bool:
        """Count a call in progress. False: there are too many, and the seat is among those that wait."""
    def end_call(self) -> None:
        """A call that was counted is over."""

class CountingConnection:
    """A connection whose calls may be answered natively, but later; ``most_calls`` at a time."""

    calls: int
    """In progress."""
    closed: bool
    draining: bool
    """No further calls are taken."""
    flush_due: bool
    """Whether it will look at what there is to do, and to send, in the loop's next turn."""
    def __init__(self, seat: CountingSeat, most_calls: int) -> None: ...
    @property
    def most_calls(self) -> int: ...
    def flush_soon(self) -> None:
        """Let it look then; called when that is not due yet."""
    def begin_held(self) -> bool:
        """Count a call in progress. False: there are too many."""
    def crashed(self) -> None:
        """A mistake of ours, of which the present exception tells, has cost a call its reply."""
    def take_back(self, record: memoryview, hold: Hold) -> None:
        """It is to be dispatched after all; takes the count of ``hold``."""
