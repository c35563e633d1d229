"""Constants and loads and stores of the FPDU, DDP and RDMAP headers (RFC 5044, 5041, 5040).

Inline only: there is no module behind it. Offsets are from the FPDU's first octet, the ULPDU length field.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef extern from "<endian.h>" nogil:
    uint16_t htobe16(uint16_t value)
    uint32_t htobe32(uint32_t value)
    uint64_t htobe64(uint64_t value)
    uint32_t htole32(uint32_t value)


cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len


cdef extern from "<sys/socket.h>" nogil:
    cdef struct msghdr:
        void *msg_name
        unsigned int msg_namelen
        iovec *msg_iov
        size_t msg_iovlen
        void *msg_control
        size_t msg_controllen
        int msg_flags
    cdef struct mmsghdr:
        msghdr msg_hdr
        unsigned int msg_len
    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    int sendmmsg(int fd, mmsghdr *messages, unsigned int count, int flags)
    ssize_t recvmsg(int fd, msghdr *message, int flags)
    ssize_t recv(int fd, void *buffer, size_t length, int flags)
    int getsockopt(int fd, int level, int name, void *value, unsigned int *length)
    int MSG_DONTWAIT, MSG_NOSIGNAL, MSG_EOR, MSG_MORE


cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int fd, unsigned long request, int *value)


cdef extern from "<linux/sockios.h>" nogil:
    int SIOCOUTQ


cdef enum:
    # RDMAP opcodes (RFC 5040 section 4.1)
    OP_WRITE = 0
    OP_READ_REQUEST = 1
    OP_READ_RESPONSE = 2
    OP_SEND = 3
    OP_SEND_INVALIDATE = 4
    OP_SEND_SOLICITED = 5
    OP_SEND_SOLICITED_INVALIDATE = 6
    OP_TERMINATE = 7
    # Header lengths with the ULPDU length field; what a segment's ULPDU holds besides payload is 2 less.
    TAGGED_HEADER = 16
    UNTAGGED_HEADER = 20
    READ_REQUEST_HEADER = 48
    CRC_LENGTH = 4
    # Layers and error types of a Terminate (RFC 5040 section 4.8)
    LAYER_RDMAP = 0
    LAYER_DDP = 1
    LAYER_LLP = 2
    RDMAP_PROTECTION = 1
    RDMAP_OPERATION = 2
    DDP_TAGGED = 1
    DDP_UNTAGGED = 2
    LLP_MPA = 0


cdef inline void put16(void *where, uint16_t value) noexcept nogil:
    value = htobe16(value)
    memcpy(where, &value, 2)


cdef inline void put32(void *where, uint32_t value) noexcept nogil:
    value = htobe32(value)
    memcpy(where, &value, 4)


cdef inline void put64(void *where, uint64_t value) noexcept nogil:
    value = htobe64(value)
    memcpy(where, &value, 8)


cdef inline uint16_t get16(const void *where) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, where, 2)
    return htobe16(value)


cdef inline uint32_t get32(const void *where) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, where, 4)
    return htobe32(value)


cdef inline uint64_t get64(const void *where) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, where, 8)
    return htobe64(value)
