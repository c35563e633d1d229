"""Bulk data that travels beside a message and never through its encoder (RFC 8166 section 3.4: DDP-eligible items).

Owns :class:`Payload`; imports nothing.
"""

from __future__ import annotations

from typing import Protocol


class Releasable(Protocol):
    """Something counted, such as a :class:`rpcrdma.memory.Lease`."""

    def release(self) -> None:
        """Drop one count."""


class Payload:
    """The octets of one opaque item, together with the hold that keeps them valid.

    ``view`` excludes the XDR round-up padding. The owner calls :meth:`release` once the octets have left.
    """

    __slots__ = ("_hold", "view")

    def __init__(self, view: memoryview, hold: Releasable | None = None) -> None:
        self.view = view
        self._hold = hold

    def __len__(self) -> int:
        return len(self.view)

    def release(self) -> None:
        """Give up the hold; a second call does nothing."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()
