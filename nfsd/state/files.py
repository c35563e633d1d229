"""What the engine knows of one file: who has it open how, and its locks.

Imports the records' types and the range maps. Share counters follow RFC 8881 section 9.7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nfsd.protocol.nfs4 import OPEN4_SHARE_ACCESS_READ as READ
from nfsd.protocol.nfs4 import OPEN4_SHARE_ACCESS_WRITE as WRITE

if TYPE_CHECKING:
    from nfsd.state.locks import LockPlan
    from nfsd.state.opens import OpenReservation
    from nfsd.state.ranges import FileLocks
    from nfsd.state.records import Delegation, OpenState
    from nfsd.state.waiters import Waiter


_NOBODY: Final[set[Any]] = set()
_NO_HOSTS: Final[dict[str, int]] = {}
"""These stay empty."""


class FileState:
    """Everything the engine knows of one file; exists while somebody holds state on it."""

    __slots__ = (
        "access_read",
        "access_write",
        "delegations",
        "deny_read",
        "deny_write",
        "departed",
        "dirty",
        "gate",
        "key",
        "lock_hosts",
        "locks",
        "node",
        "opens",
        "pending_lock",
        "reservations",
        "waiters",
    )

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.gate: Any = None
        """For the layer above: one lock per file around lock plans and local locks (an asyncio.Lock; its ``locked()``
        is asked here)."""
        self.node: Any = None
        """For the layer above: what reaches the file when local locks must be cleared later."""
        self.opens: set[OpenState] = set()
        self.reservations: set[OpenReservation] = _NOBODY
        """A set of its own only while there are some: files that are open are many."""
        self.access_read = 0
        self.access_write = 0
        self.deny_read = 0
        self.deny_write = 0
        self.locks: FileLocks | None = None
        self.lock_hosts: dict[str, int] = _NO_HOSTS
        """Lock owners that hold ranges, by host. A dict of its own only while there are some, like ``departed``."""
        self.departed: tuple[str, ...] = ()
        """Hosts whose last one has gone since the layer above asked. (With the last of all there are dirty ranges.)"""
        self.pending_lock: LockPlan | None = None
        self.dirty: list[tuple[int, int]] = []
        """Ranges that may be held locally without need."""
        self.waiters: list[Waiter] = []
        self.delegations: list[Delegation] = []

    def add_reservation(self, reservation: OpenReservation) -> None:
        """Somebody is opening the file."""
        if self.reservations is _NOBODY:
            self.reservations = set()
        self.reservations.add(reservation)

    def drop_reservation(self, reservation: OpenReservation) -> None:
        """It is over."""
        self.reservations.discard(reservation)
        if not self.reservations:
            self.reservations = _NOBODY

    def lock_owner_came(self, host: str) -> None:
        """One of this host's holds ranges now."""
        if self.lock_hosts is _NO_HOSTS:
            self.lock_hosts = {}
        self.lock_hosts[host] = self.lock_hosts.get(host, 0) + 1

    def lock_owner_left(self, host: str) -> None:
        """One holds none any more."""
        self.lock_hosts[host] -= 1
        if not self.lock_hosts[host]:
            del self.lock_hosts[host]
            self.departed = (*(one for one in self.departed if one != host), host)
        if not self.lock_hosts:
            self.lock_hosts = _NO_HOSTS

    def add_share(self, access: int, deny: int) -> None:
        """Count one holder's access and deny."""
        if access & READ:
            self.access_read += 1
        if access & WRITE:
            self.access_write += 1
        if deny & READ:
            self.deny_read += 1
        if deny & WRITE:
            self.deny_write += 1

    def drop_share(self, access: int, deny: int) -> None:
        """Take one holder's access and deny back."""
        if access & READ:
            self.access_read -= 1
        if access & WRITE:
            self.access_write -= 1
        if deny & READ:
            self.deny_read -= 1
        if deny & WRITE:
            self.deny_write -= 1

    @property
    def idle(self) -> bool:
        """Whether nothing is known of it any more that would have to be kept."""
        return not (
            self.opens or self.reservations or self.dirty or self.pending_lock or self.delegations or self.waiters
        )
