"""A connection whose host goes too fast: it waits until it may have calls again.

Owns :class:`Slowing`, which every connection has; imports :mod:`rpcrdma.pace`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rpcrdma.departed import nothing
from rpcrdma.firewall import contain
from rpcrdma.pace import Pace

_MUCH: Final = 16384
"""Octets of a call that is reckoned with before it is over."""
_LATELY: Final = 2_000_000_000
"""Nanoseconds."""


class Slowing:
    """One connection, as its host's pace sees it."""

    def __init__(self, pace: Pace, go_on: Callable[[], None], give_up: Callable[[], None]) -> None:
        """``go_on`` takes further calls; ``give_up`` is for a connection of which that fails."""
        self._pace, self._go_on, self._give_up = pace, go_on, give_up
        self.waits = False
        """Nothing is to be taken from the peer."""
        self._waited = 0
        """When it did last, by the pace's clock."""

    @property
    def lately(self) -> bool:
        """Whether something of this connection's is left unread, or was a moment ago."""
        return self.waits or (self._waited != 0 and self._pace.now - self._waited < _LATELY)

    def wait(self) -> None:
        """Have ``go_on`` called when it may."""
        if not self.waits:
            self.waits = True
            self._pace.wait(self)

    def stops(self) -> bool:
        """Whether the next call must wait; then it is seen to that it may go on."""
        if self._pace.limited and self._pace.is_over():
            self.wait()
        return self.waits

    def expect(self, size: int) -> None:
        """A call of so many octets begins."""
        if size > _MUCH and self._pace.limited:
            self._pace.expect(size)

    def go_on(self) -> None:
        """The host may have calls again."""
        self.waits, self._waited = False, self._pace.now
        contain(self._give_up, self._go_on)

    def close(self) -> None:
        """The connection is gone, and held no more: it goes with its last user, and waits for no collector."""
        self._pace.leave(self)
        self._go_on = self._give_up = nothing
