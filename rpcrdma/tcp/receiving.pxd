"""recvmsg(2), as far as it is needed here."""

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
