"""What outlives the server: client records, the boot epoch, and the grace period that reclaims rest on.

A client is on record while it may hold state: in v4.1 from its RECLAIM_COMPLETE (nothing but reclaims is granted
before), in v4.0 from its first open (recording it at SETCLIENTID_CONFIRM would let a client that slept through a grace
period reclaim in the next one what others have locked since). Records of earlier instances stay until a grace period
has run to its end (so that a restart in the middle of one changes nothing), and go when it does. A record also goes,
before the other client's grant is answered, when its client's state is given up, or some of it revoked, until the
client has acknowledged that (v4.1: FREE_STATEID).

v4.0 has no RECLAIM_COMPLETE. A v4.0 client that has come back may have been cut off in the middle of its reclaims: when
the grace period is over, the first new lock that anybody is given takes its record, and hearing of it again brings the
record back, for then it knows what it could not reclaim.

RFC 8881 sections 8.4.2 and 8.4.3, RFC 7530 sections 9.6.2 and 9.6.3. Imports codes and limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nfsd.state.grace import GraceRules
from nfsd.state.limits import Limits

if TYPE_CHECKING:
    from nfsd.state.clients import Client

EXTENSION = 1.0
"""Seconds by which a reclaim late in the grace period prolongs it."""


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
    lease: float = 0.0
    """Lease time of the instance before: its clients may take that long to notice."""
    forfeited: tuple[ClientRecord, ...] = ()
    """Clients that held state, and may not reclaim it: others could have it already."""


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


class Grace(GraceRules):
    """The grace period: from the start until its time is over or every client on record has said RECLAIM_COMPLETE."""

    def __init__(self, limits: Limits, recovered: Recovered, now: float) -> None:
        self._principals: dict[tuple[int, bytes], list[str]] = {}
        for record in recovered.records:
            self._principals.setdefault((record.minor, record.owner), []).append(record.principal)
        self._waiting = {(record.minor, record.owner, record.principal) for record in recovered.records}
        length = max(limits.grace, recovered.lease)
        self.ends = now + length
        self._latest = now + 2 * length
        self._reclaimed_at = now - EXTENSION
        super().__init__(bool(self._waiting))

    def may_reclaim(self, minor: int, owner: bytes, stored_principal: str) -> bool:
        """Whether there is a record of just this client: it held state when the server stopped."""
        return self.active and stored_principal in self._principals.get((minor, owner), ())

    def claim(self, minor: int, owner: bytes, principal: str, host: str, verifier: bytes) -> str:
        """The stored principal of the record that says that this client held state when the server stopped; empty:
        there is none. Its name and principal are anybody's to claim: it is the same if its host is, or its verifier,
        which a client keeps that has not been restarted itself."""
        if not self.active:
            return ""
        best, found = 0, ""
        for stored in self._principals.get((minor, owner), ()):
            whose, *instance = stored.rsplit(" ", 2)  # a principal may have spaces in it
            if stored == principal:
                rank = 1  # earlier versions of the server have not stored the instance
            elif whose != principal or len(instance) != 2:
                continue
            else:
                rank = 2 * (instance[0] == host) + 4 * (instance[1] == verifier.hex())
            if rank > best:
                best, found = rank, stored
        return found

    def reclaimed(self, now: float) -> None:
        """A reclaim has been granted: a client in the middle of its reclaims is given a little longer."""
        self._reclaimed_at = now

    def completed(self, client: Client) -> bool:
        """A client is done reclaiming. Returns whether that ends the grace period."""
        self._waiting.discard((client.minor, client.owner, client.claim))
        return self.active and not self._waiting

    def expired(self, now: float) -> bool:
        """Whether the period's time is over; prolonged while reclaims keep coming, to twice its length at most."""
        if now < self.ends:
            return False
        if now - self._reclaimed_at < EXTENSION and now < self._latest:
            self.ends = min(self._reclaimed_at + EXTENSION, self._latest)
            return now >= self.ends
        return True

    def end(self) -> None:
        """From now on new locks are granted, and nothing can be reclaimed."""
        self.active = False
        self._waiting.clear()
        self._principals.clear()
