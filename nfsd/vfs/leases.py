"""Leases (fcntl(2), F_SETLEASE): the kernel tells before a local process opens a file that an NFS client relies on.

Owns one lease per file, shared by all who want it, and the descriptor its breaks are read from. The kernel holds back a
conflicting open(2) until the lease is given up, for at most /proc/sys/fs/lease-break-time; a signal tells of it, which
is blocked and read through a signalfd. Opens of ours would break it too: what opens files (:mod:`nfsd.vfs.opens`) goes
through the leased descriptor, or gives the lease up first.

Not every change breaks a lease: of chmod, unlink, rename and link there is news only afterwards
(:mod:`nfsd.vfs.watches`). A file that a local process has open for writing gets no lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from nfsd.vfs.executor import Chain, Executor
from nfsd.vfs.open_accounts import held_by, let_by
from nfsd.vfs.syscalls import SYS_SIGNALFD4
from nfsd.vfs.watches import FileId, Watches
from rpcrdma.firewall import contain
from rpcrdma.log_limits import limited_logger

if TYPE_CHECKING:
    from nfsd.vfs.records import Node, OpenFile

_log = limited_logger(__name__)

BREAK_TIME: Final = "/proc/sys/fs/lease-break-time"
_SIGNAL: Final = signal.SIGRTMIN + 5
_F_SETSIG, _F_SETOWN_EX, _F_OWNER_TID = 10, 15, 0
_OWNER: Final = struct.Struct("=ii")
_SIGINFO_SIZE: Final = 128
_SIGINFO: Final = struct.Struct("=IiiIIi")
"""struct signalfd_siginfo as far as ssi_fd."""


class Lease:
    """The lease of one file, through one of its open files, which is retained."""

    __slots__ = ("_leases", "broken", "holds", "opened", "write")

    def __init__(self, leases: Leases, opened: OpenFile, write: bool) -> None:
        self._leases = leases
        self.opened = opened.retain()
        self.write = write
        self.broken = False
        """Somebody waits for it, or it is gone."""
        self.holds: set[LeaseHold] = set()

    def give_up(self) -> None:
        """Let others open the file, at once."""
        self._leases.unlock(self)

    def weaken(self) -> bool:
        """Of a read lease: let the server itself open the file for writing. Other processes may, too; the holders are
        told when one has written. Whether that can be had."""
        return not self.write and not self.broken and self._leases.weaken(self)

    def tell(self) -> None:
        """Tell every holder, once, that the lease is wanted or gone."""
        if not self.broken:
            self.broken = True
            for hold in list(self.holds):
                hold.on_break()


class LeaseHold:
    """One holder's part in a lease."""

    __slots__ = ("_host", "_lease", "on_break")

    def __init__(self, lease: Lease, host: str, on_break: Callable[[], None]) -> None:
        """``host``: whose client it is."""
        self._lease: Lease | None = lease
        self._host = host
        held_by(lease.opened, host)
        self.on_break = on_break
        lease.holds.add(self)

    def release(self) -> None:
        """Give it up: with its last holder goes the lease."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.holds.discard(self)
            let_by(lease.opened, self._host)
            if not lease.holds:
                lease.give_up()


class DirectoryWatch:
    """Somebody relies on a directory: the kernel tells when another process has changed it or names in it."""

    __slots__ = ("_leases", "_node", "on_change")

    def __init__(self, leases: Leases, node: Node, on_change: Callable[[], None]) -> None:
        self._leases = leases
        self._node = node
        self.on_change = on_change

    def tell(self) -> None:
        """Tell once."""
        self.release()
        self.on_change()

    def release(self) -> None:
        """Hear no more. Harmless when that is so."""
        self._leases.unwatch(self._node, self)


class Leases:
    """All leases of the server."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._by_fd: dict[int, Lease] = {}
        """Those the kernel knows of."""
        self._all: set[Lease] = set()
        self._signals = -1
        self._blocked: set[int] = set()
        self._watches = Watches()
        self._identify: Callable[[Node], tuple[int, bytes, FileId]]
        self.refused = False
        """Whether the kernel has refused a lease for want of privilege."""

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        identify: Callable[[Node], tuple[int, bytes, FileId]],
    ) -> None:
        """Begin to hear of breaks. ``identify`` gives a node's place (a directory's descriptor, a name in it that leads
        to the file) and its kernel handle. Raises OSError."""
        self._loop = loop
        self._identify = identify
        self._watches.start(loop, executor)
        wanted = {_SIGNAL, signal.SIGIO}  # SIGIO comes instead when the queue of signals is full
        chain = Chain()
        mask = sum(1 << number - 1 for number in wanted).to_bytes(8, "little")
        opening = chain.add(SYS_SIGNALFD4, -1, mask, 8, os.O_CLOEXEC | os.O_NONBLOCK)
        executor.run_inline(chain)
        chain.check()
        self._signals = opening.result
        # Blocked in this thread, to which they will be sent: nothing is interrupted, nobody dies of them.
        self._blocked = wanted - signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
        self._loop.add_reader(self._signals, contain, None, self._read)

    def close(self) -> None:
        """Give up every lease."""
        for lease in list(self._all):
            self.unlock(lease)
        self._watches.close()
        if self._signals >= 0:
            self._loop.remove_reader(self._signals)
            with contextlib.suppress(BlockingIOError):
                while os.read(self._signals, 64 * _SIGINFO_SIZE):
                    pass
            os.close(self._signals)
            self._signals = -1
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._blocked)

    def lock(self, opened: OpenFile, *, write: bool) -> Lease | None:
        """Take a lease through a descriptor, or None: a local process has the file open, or the kernel gives none."""
        fd = opened.fd
        try:
            fcntl.fcntl(fd, _F_SETSIG, _SIGNAL)
            fcntl.fcntl(fd, _F_SETOWN_EX, _OWNER.pack(_F_OWNER_TID, threading.get_native_id()))
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK if write else fcntl.F_RDLCK)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM) and not self.refused:
                self.refused = True
                _log.warning(
                    "the kernel gives no leases on other users' files (CAP_LEASE): these files are not delegated"
                )
            return None
        lease = self._by_fd[fd] = Lease(self, opened, write)
        self._all.add(lease)
        opened.node.inode.lease = lease
        self._watches.add(*self._identify(opened.node), lease.tell)
        return lease

    def watch(self, node: Node, on_change: Callable[[], None]) -> DirectoryWatch | None:
        """Watch a directory for as long as the node is kept; None: the kernel does not tell of it."""
        made = DirectoryWatch(self, node, on_change)
        return made if self._watches.add_directory(*self._identify(node), made.tell) else None

    def unwatch(self, node: Node, watch: DirectoryWatch) -> None:
        """Let go of a watch; harmless when it is gone."""
        self._watches.remove(*self._identify(node), watch.tell, names=True)

    def weaken(self, lease: Lease) -> bool:
        """See Lease.weaken."""
        fd = lease.opened.fd
        if self._by_fd.get(fd) is not lease:
            return True  # it is no more than that already
        if not self._watches.add_writes(*self._identify(lease.opened.node)):
            return False
        del self._by_fd[fd]
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True

    def unlock(self, lease: Lease) -> None:
        """Give a lease up; harmless when it is gone."""
        fd, inode = lease.opened.fd, lease.opened.node.inode
        if inode.lease is not lease:
            return
        inode.lease = None
        self._all.discard(lease)
        if self._by_fd.get(fd) is lease:
            del self._by_fd[fd]
        self._watches.remove(*self._identify(lease.opened.node), lease.tell)
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        lease.opened.release()

    def _read(self) -> None:
        try:
            data = os.read(self._signals, 64 * _SIGINFO_SIZE)
        except BlockingIOError:
            return
        for start in range(0, len(data), _SIGINFO_SIZE):
            number, _, _, _, _, fd = _SIGINFO.unpack_from(data, start)
            suspects = [self._by_fd.get(fd)] if number == _SIGNAL else list(self._by_fd.values())
            for lease in suspects:
                if lease is not None and self._wanted(lease):
                    lease.tell()

    @staticmethod
    def _wanted(lease: Lease) -> bool:
        """Whether a break is under way: then the kernel tells what the lease is to become."""
        kind: int = fcntl.fcntl(lease.opened.fd, fcntl.F_GETLEASE)
        return kind != (fcntl.F_WRLCK if lease.write else fcntl.F_RDLCK)


def break_time() -> float:
    """Seconds a lease that is wanted may still be kept, with some to spare: after that the kernel takes it."""
    try:
        with open(BREAK_TIME) as file:
            seconds = float(file.read())
    except (OSError, ValueError):
        seconds = 45.0
    return max(seconds * 0.9, seconds - 2.0)
