"""What receiving records needs: recvmsg(2), marks, and whether memory is plenty."""

from libc.errno cimport EINTR, errno
from libc.string cimport memset

from rpcrdma.memory cimport Account


cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len


cdef extern from "<sys/socket.h>" nogil:
    cdef struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen

    ssize_t recvmsg(int fd, msghdr *message, int flags)
    int MSG_DONTWAIT


cdef inline ssize_t receive_into(int fd, iovec *vectors, size_t count) noexcept nogil:
    """Receive what there is; see recvmsg(2). A signal does not matter."""
    cdef msghdr message
    cdef ssize_t got = -1
    memset(&message, 0, sizeof(message))
    message.msg_iov = vectors
    message.msg_iovlen = count
    while True:
        got = recvmsg(fd, &message, MSG_DONTWAIT)
        if got >= 0 or errno != EINTR:
            return got


cdef inline size_t load_mark(const char *at) noexcept:
    cdef const unsigned char *u = <const unsigned char *>at
    return (<size_t>u[0] << 24) | (<size_t>u[1] << 16) | (<size_t>u[2] << 8) | u[3]


cdef inline bint plenty(Account account) noexcept:
    """Whether the account's host, and all together, use no more than half of what they may."""
    return 2 * account.host.in_use <= account.host.limit and 2 * account.pool.in_use <= account.pool.limit
