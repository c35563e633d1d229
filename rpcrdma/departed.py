"""What stands where a connection stood that is gone.

Owns :data:`DEPARTED`. A connection, its seat, its stream and its engine know each other. When it is closed, whoever may
outlive it, a call in progress say, knows this instead: then the connection goes with its last user, and leaves no
cycles, which would wait for the collector of garbage. Imports nothing.
"""

from __future__ import annotations

from typing import Final


class _Departed:
    """Closed, idle, and never served: nothing is done by it or to it."""

    closed = True
    idle = True
    served = 0
    security = certified = ""

    def close(self) -> None:
        """It is closed."""

    def drain(self) -> None:
        """It has no calls."""

    def evict(self, reason: str) -> None:
        """It has no place."""

    def proceed(self) -> None:
        """It takes no calls."""


DEPARTED: Final = _Departed()


def nothing(*_: object) -> None:
    """In place of a callback of such a connection."""
