"""Watches (fanotify(7)): what a lease does not tell of, other processes' chmod, chown, link, rename and unlink; and
what they do to the names in a directory, of which the kernel gives no leases at all (contract: ``watches.pyi``).

Owns the fanotify group. The news comes after the fact, but says which process did it: what the server did itself is
passed over. Where the kernel gives no such group (before 5.13 without privilege: :mod:`nfsd.vfs.permissions` says so),
or the file system has no identity for it, there is nothing to hear. An OPEN that gives a delegation adds a watch, and
DELEGRETURN takes it away, so both are native.
"""

from libc.stdint cimport uint64_t

from nfsd.vfs.kernel cimport SYS_fanotify_mark, c_syscall

import os
import struct

from nfsd.vfs.executor import Chain
from nfsd.vfs.syscalls import SYS_FANOTIFY_INIT
from rpcrdma.firewall import contain

cdef enum:
    FAN_CLOEXEC = 0x1
    FAN_NONBLOCK = 0x2
    FAN_REPORT_FID = 0x200
    FAN_MARK_ADD = 0x1
    FAN_MARK_REMOVE = 0x2
    FAN_Q_OVERFLOW = 0x4000
    WATCHED = 0x4 | 0x400 | 0x800                           # FAN_ATTRIB, FAN_DELETE_SELF, FAN_MOVE_SELF
    WRITTEN = 0x2 | 0x8                                     # FAN_MODIFY, FAN_CLOSE_WRITE
    # What is told of a directory: itself, and names in it, those of directories included: FAN_MOVED_FROM, FAN_MOVED_TO,
    # FAN_CREATE, FAN_DELETE, FAN_ONDIR.
    NAMED = WATCHED | 0x40 | 0x80 | 0x100 | 0x200 | 0x40000000
    INFO_TYPE_FID = 1
    BUFFER = 64 << 10

FileId = tuple[int, bytes]
_EVENT = struct.Struct("=IBBHQii")
# struct fanotify_event_metadata
_INFO = struct.Struct("=BBH8xIi")
# struct fanotify_event_info_fid as far as the file handle's octets


cdef class Watches:
    def __cinit__(self):
        self._fd = -1
        self._heard = {}

    def start(self, loop, executor):
        self._loop = loop
        chain = Chain()
        made = chain.add(
            SYS_FANOTIFY_INIT, FAN_CLOEXEC | FAN_NONBLOCK | FAN_REPORT_FID, os.O_RDONLY | os.O_LARGEFILE
        )
        executor.run_inline(chain)
        if made.error:
            return
        self._fd = made.result
        loop.add_reader(self._fd, contain, None, self._read)

    def close(self):
        self._heard.clear()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    cpdef int add(self, int directory, bytes name, tuple file, heard) except -1:
        if self.mark(FAN_MARK_ADD, WATCHED, directory, name):
            self.hear(file, heard)
        return 0

    cpdef bint add_directory(self, int directory, bytes name, tuple file, heard) except -1:
        if not self.mark(FAN_MARK_ADD, NAMED, directory, name):
            return False
        self.hear(file, heard)
        return True

    cpdef bint add_writes(self, int directory, bytes name, tuple file) except -1:
        return file in self._heard and self.mark(FAN_MARK_ADD, WRITTEN, directory, name)

    cpdef int remove(self, int directory, bytes name, tuple file, heard, bint names=False) except -1:
        cdef set known = self._heard.get(file)
        if known is None or heard not in known:
            return 0
        known.discard(heard)
        if not known:
            del self._heard[file]
            self.mark(FAN_MARK_REMOVE, NAMED if names else WATCHED | WRITTEN, directory, name)
        return 0

    cdef int hear(self, tuple file, heard) except -1:
        cdef set known = self._heard.get(file)
        if known is None:
            known = self._heard[file] = set()
        known.add(heard)
        return 0

    cdef bint mark(self, unsigned int flags, uint64_t mask, int directory, bytes name) noexcept:
        """Change what is told of a file; whether that can be had. On the loop's thread, as the server."""
        return self._fd >= 0 and c_syscall(SYS_fanotify_mark, self._fd, flags, mask, directory, <const char *>name) == 0

    def _read(self):
        try:
            data = os.read(self._fd, BUFFER)
        except BlockingIOError:
            return
        own, at = os.getpid(), 0
        while at + _EVENT.size <= len(data):
            length, _, _, head, mask, _, pid = _EVENT.unpack_from(data, at)
            if mask & FAN_Q_OVERFLOW:
                for known in list(self._heard.values()):
                    self._tell(known)
            elif pid != own:
                self._tell(self._heard.get(_file_of(data[at + head : at + length]), ()))
            at += max(length, _EVENT.size)

    @staticmethod
    def _tell(known):
        for heard in list(known):
            contain(None, heard)


def _file_of(info):
    """The file an event's information record names."""
    if len(info) < _INFO.size:
        return 0, b""
    kind, _, _, size, handle_type = _INFO.unpack_from(info)
    if kind != INFO_TYPE_FID:
        return 0, b""
    return handle_type, info[_INFO.size : _INFO.size + size]
