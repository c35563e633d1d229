"""Whose turn on the event loop it is. Implemented in ``turns.pyx``."""

SLICE: int
"""Octets that a connection moves in one turn, while there are others."""
BULK: int
"""Octets that a worker should copy then, rather than the loop."""

def begin(who: object, now: int) -> bool:
    """Note that it is the turn of ``who``, at so many nanoseconds. Returns whether there are others lately."""

def is_crowded() -> bool:
    """Whether more than one connection had a turn lately."""

def forget() -> None:
    """Nobody has had a turn yet, or a connection has ended: if it was not the only other one, the next turns tell."""

def ignore_others(wanted: bool) -> None:
    """Whether every connection behaves as if there were no others, for tests."""
