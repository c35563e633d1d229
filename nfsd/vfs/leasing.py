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
from nfsd.vfs.records import Inode, Node, OpenFile
from nfsd.vfs.store_mounts import store_of
from nfsd.vfs.unstable import UnstableWrites

_LEASE_TRIES = 3


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

    async def take_lease(
        self, opened: OpenFile, *, write: bool, on_break: Callable[[], None], host: str = "", patient: bool = True
    ) -> LeaseHold | None:
        """For a client of this ``host``: have the kernel tell, by ``on_break``, before a local process opens the file
        for writing (``write``: at all), for as long as the hold is kept. None: one has it open like that, or the kernel
        gives no lease; unless ``patient``, also if something of ours that is about to close has it open. ``on_break``
        must not wait; it is called at most once."""
        if store_of(opened.node) is not None:
            return None  # nobody tells of what local processes do there
        inode, lane = opened.node.inode, opened.node.mount.lane
        for _ in range(_LEASE_TRIES):
            lease = inode.lease
            if lease is not None:
                if write or lease.write or lease.broken:
                    return None
                return LeaseHold(lease, host, on_break)
            if opened.writable != write or not opened.readable:
                return None  # the kernel takes a read lease of a descriptor for reading only
            lease = self._leases.lock(opened, write=write)
            if lease is not None:
                return LeaseHold(lease, host, on_break)
            if not patient:
                return None
            # Descriptors kept in case they are needed again stand in the way like any other.
            self._forget_idle(inode, write)
            settled = await self._unstable.settled(inode, lane)
            if not await self._chains.closed(lane) and not settled:
                return None
        return None

    def watch_directory(self, node: Node, on_change: Callable[[], None]) -> DirectoryWatch | None:
        """Have the kernel tell, by ``on_change``, when another process has changed a directory or names in it: after
        the fact, and once. The node must be kept as long. None: the kernel does not tell of it."""
        if store_of(node) is not None or node.mount.by_place:
            return None
        return self._leases.watch(node, on_change)

    def _forget_idle(self, inode: Inode, write: bool) -> None:
        """Close what nobody uses and a lease (``write``: a write lease) cannot stand."""
        for one in list(inode.opens.values()):
            if one.count == 0 and (write or one.writable):
                self._open_files.forget(one)

    def _identify(self, node: Node) -> tuple[int, bytes, tuple[int, bytes]]:
        return self._chains.proc_fd, b"%d" % node.fd, self._known.codec.decode(node.handle)[2:]
