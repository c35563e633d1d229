"""Leases (fcntl(2), F_SETLEASE): the kernel tells before a local process opens a file that an NFS client relies on.
Implemented in ``leases.pyx``."""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Final

from nfsd.vfs.executor import Executor
from nfsd.vfs.records import Node, OpenFile
from nfsd.vfs.watches import FileId, Watches

BREAK_TIME: Final = "/proc/sys/fs/lease-break-time"

class Lease:
    """The lease of one file, through one of its open files, which is retained."""

    opened: OpenFile
    write: bool
    broken: bool
    """Somebody waits for it, or it is gone."""

    def give_up(self) -> None:
        """Let others open the file, at once."""

    def weaken(self) -> bool:
        """Of a read lease: let the server itself open the file for writing. Other processes may, too; the holders are
        told when one has written. Whether that can be had."""

    def tell(self) -> None:
        """Tell every holder, once, that the lease is wanted or gone."""

class LeaseHold:
    """One holder's part in a lease."""

    def __init__(self, lease: Lease, host: str, on_break: Callable[[], None]) -> None:
        """``host``: whose client it is."""

    def release(self) -> None:
        """Give it up: with its last holder goes the lease."""

class DirectoryWatch:
    """Somebody relies on a directory: the kernel tells when another process has changed it or names in it."""

    def tell(self) -> None:
        """Tell once."""

    def release(self) -> None:
        """Hear no more. Harmless when that is so."""

class Leases:
    """All leases of the server."""

    _watches: Watches
    refused: bool
    """Whether the kernel has refused a lease for want of privilege."""

    def start(
        self, loop: AbstractEventLoop, executor: Executor, identify: Callable[[Node], tuple[int, bytes, FileId]]
    ) -> None:
        """Begin to hear of breaks, on this thread. ``identify`` gives a node's place (a directory's descriptor, a name in
        it that leads to the file) and its kernel handle. Raises OSError."""

    def close(self) -> None:
        """Give up every lease."""

    def lock(self, opened: OpenFile, write: bool) -> Lease | None:
        """Take a lease through a descriptor, or None: a local process has the file open, or the kernel gives none."""

    def watch(self, node: Node, on_change: Callable[[], None]) -> DirectoryWatch | None:
        """Watch a directory for as long as the node is kept; None: the kernel does not tell of it."""

    def unwatch(self, node: Node, watch: DirectoryWatch) -> None:
        """Let go of a watch; harmless when it is gone."""

    def weaken(self, lease: Lease) -> bool:
        """See Lease.weaken."""

    def unlock(self, lease: Lease) -> None:
        """Give a lease up; harmless when it is gone."""

def break_time() -> float:
    """Seconds a lease that is wanted may still be kept, with some to spare: after that the kernel takes it."""
