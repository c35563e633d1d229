from typing import Any

from nfsd.state.clients import Client
from nfsd.state.locks import LockPlan
from nfsd.state.opens import OpenReservation
from nfsd.state.ranges import FileLocks
from nfsd.state.records import Delegation, OpenState
from nfsd.state.waiters import Waiter

class FileState:
    """Everything the engine knows of one file; exists while somebody holds state on it."""

    gate: Any
    """For the layer above: one lock per file around lock plans and local locks (an asyncio.Lock; its ``locked()`` is
    asked here)."""
    node: Any
    """For the layer above: what reaches the file when local locks must be cleared later."""
    locks: FileLocks | None
    departed: tuple[str, ...]
    """Hosts whose last one has gone since the layer above asked. (With the last of all there are dirty ranges.)"""
    pending_lock: LockPlan | None
    dirty: list[tuple[int, int]]
    """Ranges that may be held locally without need."""
    waiters: list[Waiter]
    def __init__(self, key: bytes) -> None: ...
    @property
    def key(self) -> bytes: ...
    @property
    def opens(self) -> set[OpenState]: ...
    @property
    def reservations(self) -> set[OpenReservation]: ...
    @property
    def delegations(self) -> dict[Client, Delegation]:
        """By their holders. One for writing is the only one (RFC 8881 section 10.4)."""

    @property
    def access_read(self) -> int: ...
    @property
    def access_write(self) -> int: ...
    @property
    def deny_read(self) -> int: ...
    @property
    def deny_write(self) -> int: ...
    @property
    def lock_hosts(self) -> dict[str, int]:
        """Lock owners that hold ranges, by host."""

    def add_reservation(self, reservation: OpenReservation) -> None:
        """Somebody is opening the file."""

    def drop_reservation(self, reservation: OpenReservation) -> None:
        """It is over."""

    def lock_owner_came(self, host: str) -> None:
        """One of this host's holds ranges now."""

    def lock_owner_left(self, host: str) -> None:
        """One holds none any more."""

    def add_share(self, access: int, deny: int) -> None:
        """Count one holder's access and deny."""

    def drop_share(self, access: int, deny: int) -> None:
        """Take one holder's access and deny back."""

    @property
    def idle(self) -> bool:
        """Whether nothing is known of it any more that would have to be kept."""
