"""What the engine asks of its owner besides the outputs it takes. Imports :mod:`rpcrdma.memory` only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rpcrdma.memory import Lease

Trace = Callable[[str, int, object], None]
"""Called with the name of a trace point (svcrdma's), an XID and details. Only where something happens besides the
ordinary course of a call, or once per chain: a trace point that is off costs a test."""


class Memory(Protocol):
    """What the responder asks of a :class:`rpcrdma.memory.Account`."""

    @property
    def pressed(self) -> bool:
        """Whether memory is short."""

    def lease(self, size: int) -> Lease:
        """A buffer, or OutOfMemory."""

    def when_available(self, size: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` once ``size`` octets may be leased; OutOfMemory when that can never be."""


class Poisoned(Protocol):
    """XIDs of calls that cost an earlier connection of the same peer its life."""

    def __bool__(self) -> bool:
        """Whether there may be any."""

    def __contains__(self, xid: object) -> bool:
        """Whether the call of this XID is one."""

    def discard(self, xid: int) -> None:
        """It has got its error: the XID's next use is another call."""
