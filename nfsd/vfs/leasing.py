"""Leases for clients: taken, if need be once the server itself keeps nothing open that stands in the way. Of
directories the kernel gives none: they are watched.

Owns the leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nfsd.vfs.chains import Chains
from nfsd.vfs.known_files import KnownFiles
from nfsd.vfs.leases import DirectoryWatch, LeaseHold, Leases
from nfsd.vfs.open_files import OpenFiles
from nfsd.vfs.records import Node, OpenFile
from nfsd.vfs.store_mounts import store_of
from nfsd.vfs.unstable import UnstableWrites

_LEASE_TRIES = 2
"""How often something is closed for a lease."""


def _can_be_leased(opened: OpenFile, write: bool) -> bool:
    """Whether a lease may be taken through a descriptor. Of a store's files nobody tells what local processes do, and
    the kernel takes a read lease of a descriptor for reading only."""
    return store_of(opened.node) is None and opened.writable == write and opened.readable


class Leasing:
    """Taking leases."""

    def __init__(self, chains: Chains, known: KnownFiles, open_files: OpenFiles, unstable: UnstableWrites) -> None:
        self._chains = chains
        self._known = known
        self._open_files = open_files
        self._unstable = unstable
        self._leases = Leases()

    def start(self) -> None:
        """Begin to hear of breaks. Raises OSError."""
        self._leases.start(asyncio.get_running_loop(), self._chains.executor, self._identify)

    def close(self) -> None:
        """Give up every lease."""
        self._leases.close()

    def take_lease(
        self, opened: OpenFile, *, write: bool, on_break: Callable[[], None], host: str = ""
    ) -> LeaseHold | None:
        """For a client of this ``host``: have the kernel tell, by ``on_break``, before a local process opens the file
        for writing (``write``: at all), for as long as the hold is kept. None: one has it open like that, or the
        server itself has (:meth:`wait_for_lease`), or the kernel gives no lease. ``on_break`` must not wait; it is
        called at most once."""
        lease = opened.node.inode.lease
        if lease is not None:
            return None if write or lease.write or lease.broken else LeaseHold(lease, host, on_break)
        if not _can_be_leased(opened, write):
            return None
        lease = self._leases.lock(opened, write=write)
        return None if lease is None else LeaseHold(lease, host, on_break)

    async def wait_for_lease(
        self, opened: OpenFile, *, write: bool, on_break: Callable[[], None], host: str = ""
    ) -> LeaseHold | None:
        """As :meth:`take_lease`, once the server itself keeps nothing open that stands in the way."""
        for _ in range(_LEASE_TRIES):
            lease = self.take_lease(opened, write=write, on_break=on_break, host=host)
            if lease is not None or not await self._make_way(opened, write):
                return lease
        return self.take_lease(opened, write=write, on_break=on_break, host=host)

    async def _make_way(self, opened: OpenFile, write: bool) -> bool:
        """Close what the server itself has open in the way of a lease: whether there was anything."""
        inode, lane = opened.node.inode, opened.node.mount.lane
        if inode.lease is not None or not _can_be_leased(opened, write):
            return False
        # Descriptors kept in case they are needed again stand in the way like any other.
        idle = [one for one in inode.opens.values() if one.count == 0 and (write or one.writable)]
        for one in idle:
            self._open_files.forget(one)
        settled = await self._unstable.settled(inode, lane)
        return await self._chains.closed(lane) or settled or bool(idle)

    def watch_directory(self, node: Node, on_change: Callable[[], None]) -> DirectoryWatch | None:
        """Have the kernel tell, by ``on_change``, when another process has changed a directory or names in it: after
        the fact, and once. The node must be kept as long. None: the kernel does not tell of it."""
        if store_of(node) is not None or node.mount.by_place:
            return None
        return self._leases.watch(node, on_change)

    def _identify(self, node: Node) -> tuple[int, bytes, tuple[int, bytes]]:
        return self._chains.proc_fd, b"%d" % node.fd, self._known.codec.decode(node.handle)[2:]
