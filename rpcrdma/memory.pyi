"""Buffers: a bounded, registered arena cut into size classes, leased out and counted.

Layer 0: imports nothing of the project. Implemented in Cython (``memory.pyx``) since every message takes a lease.
"""

from collections.abc import Callable
from typing import Self

class OutOfMemory(Exception):
    """The bound of the pool or of the account is reached."""

class Lease:
    """A counted hold of one buffer. A new lease has one count; at zero the buffer returns to its pool."""

    view: memoryview
    """The whole buffer, writable, ``capacity`` octets long (at least the size asked for)."""
    capacity: int
    address: int
    """Its address in this process."""
    def __init__(self, *args: object, **kwargs: object) -> None:
        """TypeError: leases are made by :meth:`Account.lease`."""
    def retain(self) -> Lease:
        """Add a count; returns itself."""
    def release(self) -> None:
        """Drop a count. Releasing below zero raises RuntimeError (a double free is a bug worth a crash report)."""

class Pool:
    """The process-wide bound on buffer memory, in octets. Arenas are mmap()ed on demand; pages that are not wanted go
    back, unless a device has them registered."""

    def __new__(cls, limit: int, reserve: int = 0) -> Self:
        """``reserve``: octets of the limit that only small leases of hosts that use little get at. ValueError when that
        is more than half."""
    limit: int
    reserve: int
    in_use: int
    """Octets leased now."""
    mapped: int
    """Octets mmap()ed: up to twice the limit, for blocks of different sizes get into each other's way."""
    resident: int
    """Octets of them that have pages, at most. Unless a device has them registered, that is up to the limit and its
    sixteenth (8 MiB at least)."""
    pressed: bool
    """More than three quarters are in use."""
    leaked: int
    """Leases that were garbage-collected without their release (their buffers did return)."""
    waiting: int
    """Callbacks of :meth:`Account.when_available` that wait."""
    short_of_account: int
    short_of_host: int
    short_of_pool: int
    """Leases refused at the bound of the account, the host, the pool."""
    def arena_list(self) -> list[tuple[int, int]]:
        """The (address, length) of every arena, oldest first: what a device registers. Arenas are only ever added."""
    def host(self, limit: int) -> Host:
        """A client's share, with its own bound; if there is a reserve, two thirds of the rest at most."""
    def account(self, limit: int) -> Account:
        """An account of a host of its own, which has no further bound."""
    def tidy(self) -> None:
        """Give back the pages of memory that was not wanted for a while. To be called about every second."""

class Host:
    """One client's share of the pool, of all its connections."""

    pool: Pool
    limit: int
    in_use: int
    pressed: bool
    """More than three quarters are in use."""
    weight: int
    """How many of its waiters are called in one turn of its, 1 at first. ValueError for less."""
    def account(self, limit: int) -> Account:
        """A share with its own bound (one per connection)."""

class Account:
    """One connection's share of its host's."""

    pool: Pool
    host: Host
    limit: int
    in_use: int
    returned: int
    """Octets given back since the beginning: what does not grow is stuck."""
    pressed: bool
    """The host or the pool is."""
    def lease(self, size: int) -> Lease:
        """A buffer of at least ``size`` octets. Raises OutOfMemory at a bound, ValueError for size < 0 or > 4 MiB."""
    def when_available(self, size: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, as soon as a buffer of ``size`` may be had (first come, first served).

        It is called from inside the release that makes room (or from inside this call when there already is room),
        and should take its lease there and then. Raises OutOfMemory when a bound is smaller than ``size``.
        """
    def wait_no_more(self, callback: Callable[[], None]) -> None:
        """Forget a callback given to :meth:`when_available`, if it has not been called. Takes as long as many wait."""
    def close(self) -> None:
        """Forget the waiters. Leases still out are returned to the pool as they are released."""
