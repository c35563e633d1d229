"""Leases (fcntl(2), F_SETLEASE): the kernel tells before a local process opens a file that an NFS client relies on
(contract: ``leases.pyi``).

Owns one lease per file, shared by all who want it, and the descriptor its breaks are read from. The kernel holds back a
conflicting open(2) until the lease is given up, for at most /proc/sys/fs/lease-break-time; a signal tells of it, which
is blocked and read through a signalfd. Opens of ours would break it too: what opens files (:mod:`nfsd.vfs.opens`) goes
through the leased descriptor, or gives the lease up first.

Not every change breaks a lease: of chmod, unlink, rename and link there is news only afterwards
(:mod:`nfsd.vfs.watches`). A file that a local process has open for writing gets no lease.
"""

from libc.errno cimport EACCES, EPERM, errno

from nfsd.vfs.kernel cimport (
    F_GETLEASE, F_OWNER_TID, F_RDLCK, F_SETLEASE, F_SETOWN_EX, F_SETSIG, F_UNLCK, F_WRLCK, c_fcntl, f_owner_ex,
)
from nfsd.vfs.open_accounts cimport held_by, let_by

import contextlib
import os
import signal
import struct
import threading

from nfsd.vfs.executor import Chain
from nfsd.vfs.syscalls import SYS_SIGNALFD4
from rpcrdma.firewall import contain
from rpcrdma.log_limits import limited_logger

_log = limited_logger(__name__)

BREAK_TIME = "/proc/sys/fs/lease-break-time"
cdef int SIGNAL = signal.SIGRTMIN + 5

cdef enum:
    SIGINFO_SIZE = 128

_SIGINFO = struct.Struct("=IiiIIi")
# struct signalfd_siginfo as far as ssi_fd


cdef class Lease:
    def give_up(self):
        self.leases.unlock(self)

    def weaken(self):
        return not self.write and not self.broken and self.leases.weaken(self)

    def tell(self):
        cdef LeaseHold hold
        if not self.broken:
            self.broken = True
            for hold in list(self.holds):
                hold.on_break()


cdef class LeaseHold:
    def __init__(self, Lease lease not None, str host not None, on_break):
        held_by(lease.opened, host)
        self.lease, self.host, self.on_break = lease, host, on_break
        lease.holds.add(self)

    cpdef int release(self) except -1:
        cdef Lease lease = self.lease
        self.lease = None
        if lease is not None:
            lease.holds.discard(self)
            let_by(lease.opened, self.host)
            if not lease.holds:
                lease.leases.unlock(lease)
        return 0


cdef class DirectoryWatch:
    def tell(self):
        self.release()
        self.on_change()

    def release(self):
        self.leases.unwatch(self.node, self)


cdef class Leases:
    def __cinit__(self):
        self._by_fd, self._all, self._signals, self._blocked = {}, set(), -1, set()
        self._watches = Watches()

    def start(self, loop, executor, identify):
        self._loop = loop
        self._identify = identify
        self._watches.start(loop, executor)
        wanted = {SIGNAL, signal.SIGIO}  # SIGIO comes instead when the queue of signals is full
        chain = Chain()
        mask = sum([1 << number - 1 for number in wanted]).to_bytes(8, "little")
        opening = chain.add(SYS_SIGNALFD4, -1, mask, 8, os.O_CLOEXEC | os.O_NONBLOCK)
        executor.run_inline(chain)
        chain.check()
        self._signals = opening.result
        # Blocked in this thread, to which they will be sent: nothing is interrupted, nobody dies of them.
        self._thread = threading.get_native_id()
        self._blocked = wanted - signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
        self._loop.add_reader(self._signals, contain, None, self._read)

    def close(self):
        for lease in list(self._all):
            self.unlock(lease)
        self._watches.close()
        if self._signals >= 0:
            self._loop.remove_reader(self._signals)
            with contextlib.suppress(BlockingIOError):
                while os.read(self._signals, 64 * SIGINFO_SIZE):
                    pass
            os.close(self._signals)
            self._signals = -1
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._blocked)

    cpdef Lease lock(self, OpenFile opened, bint write):
        cdef f_owner_ex owner
        cdef Lease lease
        cdef int fd = opened.fd
        cdef tuple place = self._identify(opened.node)
        owner.type, owner.pid = F_OWNER_TID, self._thread
        if (
            c_fcntl(fd, F_SETSIG, SIGNAL) != 0 or c_fcntl(fd, F_SETOWN_EX, &owner) != 0
            or c_fcntl(fd, F_SETLEASE, F_WRLCK if write else F_RDLCK) != 0
        ):
            if (errno == EACCES or errno == EPERM) and not self.refused:
                self.refused = True
                _log.warning(
                    "the kernel gives no leases on other users' files (CAP_LEASE): these files are not delegated"
                )
            return None
        lease = Lease.__new__(Lease)
        lease.leases, lease.opened, lease.write, lease.holds, lease.place = self, opened, write, set(), place
        opened.keep()
        self._by_fd[fd] = lease
        self._all.add(lease)
        opened.node.inode.lease = lease
        self._watches.add(place[0], place[1], place[2], lease.tell)
        return lease

    def watch(self, node, on_change):
        cdef DirectoryWatch made = DirectoryWatch.__new__(DirectoryWatch)
        cdef tuple place = self._identify(node)
        made.leases, made.node, made.on_change = self, node, on_change
        return made if self._watches.add_directory(place[0], place[1], place[2], made.tell) else None

    def unwatch(self, node, DirectoryWatch watch not None):
        cdef tuple place = self._identify(node)
        self._watches.remove(place[0], place[1], place[2], watch.tell, True)

    def weaken(self, Lease lease not None):
        cdef int fd = lease.opened.fd
        if self._by_fd.get(fd) is not lease:
            return True  # it is no more than that already
        if not self._watches.add_writes(lease.place[0], lease.place[1], lease.place[2]):
            return False
        del self._by_fd[fd]
        c_fcntl(fd, F_SETLEASE, F_UNLCK)
        return True

    cpdef int unlock(self, Lease lease) except -1:
        cdef OpenFile opened = lease.opened
        cdef int fd = opened.fd
        if opened.node.inode.lease is not lease:
            return 0
        opened.node.inode.lease = None
        self._all.discard(lease)
        if self._by_fd.get(fd) is lease:
            del self._by_fd[fd]
        self._watches.remove(lease.place[0], lease.place[1], lease.place[2], lease.tell)
        c_fcntl(fd, F_SETLEASE, F_UNLCK)
        opened.let_go()
        return 0

    def _read(self):
        cdef Lease lease
        try:
            data = os.read(self._signals, 64 * SIGINFO_SIZE)
        except BlockingIOError:
            return
        for start in range(0, len(data), SIGINFO_SIZE):
            number, _, _, _, _, fd = _SIGINFO.unpack_from(data, start)
            suspects = [self._by_fd.get(fd)] if number == SIGNAL else list(self._by_fd.values())
            for lease in suspects:
                # While a break is under way the kernel tells what the lease is to become.
                if lease is not None and c_fcntl(lease.opened.fd, F_GETLEASE) != (F_WRLCK if lease.write else F_RDLCK):
                    lease.tell()


def break_time():
    cdef double seconds = 45.0
    with contextlib.suppress(OSError, ValueError):
        with open(BREAK_TIME) as file:
            seconds = float(file.read())
    return max(seconds * 0.9, seconds - 2.0)
