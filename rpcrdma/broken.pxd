"""Whether a connection is broken, though there may be data to read.

An event loop on libuv (uvloop) stops watching a socket that has an error. It calls the reader once more, and never again. But
what has come before a reset is read first, and the error is told only behind it. So a reader looks here when it has not
read up to the end and has sent nothing either, which would have failed. Otherwise it would miss the end.
Imports nothing.
"""


cdef extern from "<poll.h>" nogil:
    cdef struct pollfd:
        int fd
        short events
        short revents

    int poll(pollfd *fds, unsigned long count, int timeout)
    short POLLERR


cdef inline bint broken(int fd) noexcept nogil:
    """Whether the socket has an error, which is still to be told."""
    cdef pollfd asked
    asked.fd, asked.events, asked.revents = fd, 0, 0
    return poll(&asked, 1, 0) > 0 and asked.revents & POLLERR
