"""C declarations of TLS's records."""

from libc.stdint cimport uint8_t, uint64_t

from rpcrdma.memory cimport Lease


cdef enum:
    HEADER = 5              # octets before what is enciphered
    TRAILER = 17            # octets behind the data: the kind, and the tag
    MOST = 16384            # octets of data in a record
    DATA = 23               # application_data
    HANDSHAKE = 22
    ALERT = 21


cdef struct direction_t:
    void *context           # EVP_CIPHER_CTX; it holds the key
    uint8_t iv[12]
    uint64_t sequence       # of the next record


cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len


cdef bint begin_record(direction_t *direction, uint8_t *at, size_t length) noexcept nogil
cdef bint add_to_record(direction_t *direction, uint8_t *at, const uint8_t *octets, size_t length) noexcept nogil
cdef bint end_record(direction_t *direction, uint8_t *behind, uint8_t kind) noexcept nogil


cdef class Direction:
    cdef direction_t keys
    cdef object secret

    cdef int set_keys(self, secret) except -1
    cdef int update(self) except -1


cdef class Sealing(Direction):
    cdef bint update_due    # the peer wants new keys, too
    cdef bint fixed         # there can be none: the kernel has them
    cdef int parting        # the alert that says why this is the end

    cdef bytes record(self, uint8_t kind, bytes content)


cdef class Opening(Direction):
    cdef Sealing sealing
    cdef bint is_server
    cdef bytes early
    cdef Lease buffer           # of what has come
    cdef size_t start           # of what has not been deciphered
    cdef size_t end
    cdef size_t clear           # of what has been, there, and not been taken
    cdef size_t clear_end
    cdef size_t empty           # octets that have come since there was data in them
    cdef bytes messages         # a part of a handshake message
    cdef readonly bint ended    # the peer has said so
    cdef object failed          # what is to be raised, once all before it has been taken

    cdef int begin(self, Lease buffer) except -1
    cdef int drop(self) except -1
    cdef size_t holds(self) noexcept
    cdef bint more(self) noexcept
    cdef ssize_t receive(self, int fd, iovec *vectors, size_t count) except -2

    cdef ssize_t whole(self) noexcept
    cdef ssize_t fetch(self, int fd, bint *dry) noexcept
    cdef ssize_t open(self, uint8_t *into, size_t room) except -1
    cdef ssize_t decipher(self, uint8_t *into, const uint8_t *record, size_t length) noexcept nogil
    cdef int take(self, uint8_t kind, bytes content) except -1
    cdef int take_message(self, uint8_t kind, bytes content) except -1
    cdef int exhausted(self) except -1
    cdef int fail(self, int alert, str why) except -1
