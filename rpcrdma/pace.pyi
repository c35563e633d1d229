"""How fast hosts may go. All of it is the event loop's; numbers may be read by other threads."""

from collections.abc import Callable
from typing import Any, Protocol

class _Member(Protocol):
    """A connection, as it is seen from here."""

    def go_on(self) -> None:
        """Take what it can: its host may have calls again."""

def pretend(now: int) -> None:
    """For tests: have it be ``now`` nanoseconds, for everybody; 0: by the clock again."""

class Rate:
    """What may be done in a second; 0: any number."""

    octets: float
    calls: float
    def __init__(self, octets: float = 0, calls: float = 0) -> None: ...

class Pace:
    """How fast one host goes: all its connections together."""

    limited: bool
    """Whether it has any rate."""
    gone: bool
    most_calls: int
    """That it may have in progress, for those are not charged yet; 0: any number."""
    times_held: int
    """How often a connection had to wait."""
    rates: dict[Any, Rate]
    def __init__(self, schedule: Callable[[float, Callable[[], None]], Any]) -> None:
        """``schedule``: calls a function after so many seconds, and returns what has a ``cancel``."""

    def is_over(self) -> bool:
        """Whether nothing of the host is to be read now."""

    def expect(self, octets: int) -> None:
        """So much has come of a call that is not charged yet."""

    @property
    def now(self) -> int:
        """Nanoseconds, by the clock that it goes by."""

    @property
    def held(self) -> bool:
        """Whether a connection waits now."""

    @property
    def held_lately(self) -> bool:
        """The same of the last two seconds."""

    @property
    def owed(self) -> float:
        """Seconds until what was done is paid for."""

    @property
    def held_seconds(self) -> float:
        """In which a connection waited, so far."""

    def limit(self, rate: Rate) -> None:
        """Go by this one, too."""

    def wait(self, member: _Member) -> None:
        """Have ``member.go_on`` called when it is its turn."""

    def leave(self, member: _Member) -> None:
        """It waits no more, if it did."""

    def turn(self) -> None:
        """The first one that waits goes on, if the time has come. For the timer."""

    def hurry(self) -> bool:
        """Have it read from for some seconds, whatever it owes; whether that is so. Not if it has not paid yet for what
        came the last time."""

    def release(self) -> None:
        """Forget the rates and what is owed; who waits goes on."""

    def drop(self) -> None:
        """Nobody asks for it any more: it is ``gone``."""

class Dues:
    """What the calls of one client on one export are charged to."""

    pace: Pace
    own: Rate | None
    shared: Rate | None
    def __init__(self, pace: Pace, own: Rate | None, shared: Rate | None, charged: int) -> None:
        """``charged``: octets that have been read and written already."""
