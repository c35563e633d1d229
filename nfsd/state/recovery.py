"""What outlives the server: client records, the boot epoch, and the grace period that reclaims rest on.

RFC 8881 section 8.4.2 and 8.4.3, RFC 7530 section 9.6.2 and 9.6.3.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientRecord:
    """A client that may hold state, as stable storage keeps it."""

    minor: int
    owner: bytes
    principal: str
    epoch: int
    """The instance in which it was last written."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What an instance starts from."""

    epoch: int
    """This instance's number: larger than every earlier one's, already on stable storage."""
    records: tuple[ClientRecord, ...] = ()
    """Clients that may reclaim: they held state, and no grace period has ended since without them."""


@dataclass(frozen=True, slots=True)
class StoreWrite:
    """One change of stable storage. ``record`` and ``remove`` name a client; ``grace_done`` drops all records of
    instances before ``epoch``."""

    action: str
    """``record``, ``remove`` or ``grace_done``."""
    minor: int = 0
    owner: bytes = b""
    principal: str = ""
    epoch: int = 0


class Grace:
    """The grace period."""

    @property
    def active(self) -> bool:
        """Whether only reclaims are granted now."""
        raise NotImplementedError
