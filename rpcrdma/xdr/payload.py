"""Bulk data that travels beside a message and never through its encoder (RFC 8166 section 3.4: DDP-eligible items).

Owns :class:`Payload`; imports nothing.

Long results that are no DDP-eligible item (a directory's entries: RFC 8267 does not list them) travel so too, to leave
from where they were made. They are a part of the payload stream, and go into no Write chunk.
"""

from __future__ import annotations

from typing import Protocol


class Releasable(Protocol):
    """Something counted, such as a :class:`rpcrdma.memory.Lease`."""

    def release(self) -> None:
        """Drop one count."""


class Payload:
    """The octets of one opaque item, together with the hold that keeps them valid.

    ``view`` excludes the XDR round-up padding. The owner calls :meth:`release` once the octets have left. One that is
    not ``eligible`` for direct placement is XDR of any kind, a multiple of four octets long.
    """

    __slots__ = ("_hold", "eligible", "view")

    def __init__(self, view: memoryview, hold: Releasable | None = None, *, eligible: bool = True) -> None:
        self.view = view
        self.eligible = eligible
        self._hold = hold

    def __len__(self) -> int:
        return len(self.view)

    def release(self) -> None:
        """Give up the hold; a second call does nothing."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()
