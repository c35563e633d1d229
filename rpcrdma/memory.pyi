"""Buffers: a bounded, registered arena cut into size classes, leased out and counted.

Layer 0: imports nothing of the project. Implemented in Cython (``memory.pyx``) since every message takes a lease.
"""

from collections.abc import Callable

class OutOfMemory(Exception):
    """The bound of the pool or of the account is reached."""

class Lease:
    """A counted hold of one buffer. A new lease has one count; at zero the buffer returns to its pool."""

    view: memoryview
    """The whole buffer, writable, ``capacity`` octets long (at least the size asked for)."""
    capacity: int
    address: int
    """Its address in this process."""
    def retain(self) -> Lease:
        """Add a count; returns itself."""
    def release(self) -> None:
        """Drop a count. Releasing below zero raises RuntimeError (a double free is a bug worth a crash report)."""

class Pool:
    """The process-wide bound on buffer memory, in octets. Arenas are mmap()ed on demand and kept for reuse."""

    def __init__(self, limit: int) -> None: ...
    limit: int
    in_use: int
    """Octets leased now."""
    mapped: int
    """Octets mmap()ed."""
    leaked: int
    """Leases that were garbage-collected without their release (their buffers did return)."""
    def arena_list(self) -> list[tuple[int, int]]:
        """The (address, length) of every arena, oldest first: what a device registers. Arenas are only ever added."""
    def account(self, limit: int) -> Account:
        """A share with its own bound (one per connection)."""

class Account:
    """One connection's share of the pool."""

    pool: Pool
    limit: int
    in_use: int
    def lease(self, size: int) -> Lease:
        """A buffer of at least ``size`` octets. Raises OutOfMemory at either bound, ValueError for size < 0 or > 4 MiB."""
    def when_available(self, size: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, as soon as a buffer of ``size`` may be had (first come, first served).

        It is called from inside the release that makes room (or from inside this call when there already is room),
        and should take its lease there and then. Raises OutOfMemory when a bound is smaller than ``size``.
        """
    def close(self) -> None:
        """Forget the waiters. Leases still out are returned to the pool as they are released."""
