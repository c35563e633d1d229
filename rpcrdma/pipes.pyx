"""Pipes: pages of a file on their way to a socket without a copy (splice(2)).

Owns the process's pipes, a bounded number; imports nothing of the project.

Why a pipe and not sendfile(2): once the pages are in the pipe, it is known how many octets there are, and they stay
there whatever happens to the file. So a reply's length and its end-of-file flag are right though another process
truncates the file between the reply's head and its data; nothing need be filled in, and no connection ended.

The pages are the page cache's own: what somebody writes to the file before they have left is what the peer reads,
newer than the attributes beside it but never older, as with Linux's own server.

A pipe that cannot be had (too many in use, no descriptors, the user's bound on pipe buffers) is no error: the data go
through a buffer instead.
"""

from libc.errno cimport EINTR, errno
from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <fcntl.h>
    #include <unistd.h>
    """
    ssize_t c_splice "splice"(int source, long *at, int sink, long *sink_at, size_t count, unsigned int flags) nogil
    int pipe2(int *ends, int flags)
    int fcntl(int fd, int command, ...)
    int c_close "close"(int fd)
    int O_CLOEXEC, O_NONBLOCK, F_SETPIPE_SZ
    unsigned int SPLICE_F_MOVE, SPLICE_F_NONBLOCK, SPLICE_F_MORE

cdef enum:
    CAPACITY = 1 << 20      # octets of page-aligned data; what an unprivileged process may have (pipe-max-size)
    WORTHWHILE = 262144     # octets below which copying, and sending several replies at once, is cheaper (as measured)
    PIPES = 32
    IDLE = 16

cdef list idle = []
cdef Py_ssize_t pipes = 0
cdef Py_ssize_t most_pipes = PIPES


cdef bint worth(uint64_t offset, size_t count) noexcept:
    """Whether so much from there fits a pipe, and is enough to be worth one."""
    # The pipe holds pages, also parts of them. With larger pages than these it may be too small: Pipe.fill() says so.
    return WORTHWHILE <= count and (offset & (PAGE - 1)) + count <= CAPACITY


cdef Pipe take_pipe():
    """An empty pipe, or None."""
    cdef Pipe pipe
    cdef int ends[2]
    global pipes, most_pipes
    if idle:
        return idle.pop()
    if pipes >= most_pipes or pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0:
        return None
    if fcntl(ends[1], F_SETPIPE_SZ, CAPACITY) < CAPACITY:
        c_close(ends[0])
        c_close(ends[1])
        most_pipes = pipes  # the user's bound: it would be the same with the next
        return None
    pipe = Pipe.__new__(Pipe)
    pipe.drain, pipe.feed = ends[0], ends[1]
    pipes += 1
    return pipe


def in_use():
    """How many pipes are on their way."""
    return pipes - len(idle)


def bound(Py_ssize_t most):
    """Let there be at most so many pipes. Returns what the bound was."""
    global most_pipes
    before, most_pipes = most_pipes, most
    while idle and pipes > most:
        idle.pop()
    return before


cdef ssize_t pour(int fd, uint64_t offset, int feed, size_t count, size_t *level) noexcept nogil:
    """Put a file's pages into the feeding end of an empty pipe, and count them in ``level``. Returns octets, fewer than
    ``count`` at the end of the file; -1 with errno set: the pipe may have some of them then."""
    cdef long at = <long>offset
    cdef ssize_t got
    level[0] = 0
    while level[0] < count:
        got = c_splice(fd, &at, feed, NULL, count - level[0], SPLICE_F_MOVE | SPLICE_F_NONBLOCK)
        if got < 0:
            if errno == EINTR:
                continue
            return -1
        if got == 0:
            break
        level[0] += got
    return level[0]


cdef class Pipe:
    def __cinit__(self):
        self.drain = self.feed = -1

    def __dealloc__(self):
        global pipes
        if self.feed >= 0:
            c_close(self.drain)
            c_close(self.feed)
            pipes -= 1

    cdef ssize_t fill(self, int fd, uint64_t offset, size_t count) noexcept:
        """Put a file's pages into the empty pipe. Returns octets, fewer than ``count`` at the end of the file; -1 when
        that cannot be done: then the pipe is of no use but to be released."""
        self.page_at = offset & (PAGE - 1)
        return pour(fd, offset, self.feed, count, &self.level)

    cdef int filled(self, uint64_t offset, size_t level) except -1:
        """Another thread has poured so many octets of a file into the empty pipe."""
        self.page_at = offset & (PAGE - 1)
        self.level = level
        return 0

    cdef ssize_t send(self, int fd, size_t count, bint more) noexcept:
        """Move octets to a non-blocking socket. Returns how many, or -1 with errno set."""
        cdef unsigned int flags = SPLICE_F_MOVE | SPLICE_F_NONBLOCK | (SPLICE_F_MORE if more else 0)
        # A peer that is gone raises SIGPIPE here, which Python ignores.
        cdef ssize_t sent = c_splice(self.drain, NULL, fd, NULL, count, flags)
        if sent > 0:
            self.level -= sent
        return sent

    cpdef int release(self) except -1:
        """Give the pipe back; one that is not empty is closed, which frees its pages."""
        if self.level == 0 and len(idle) < IDLE and pipes <= most_pipes:
            idle.append(self)
        return 0
