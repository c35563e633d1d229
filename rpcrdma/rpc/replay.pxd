"""C declarations of the duplicate request cache."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef enum:
    DIGESTED = 256      # octets of the arguments: XIDs get reused, arguments as well are rarely the same


cdef struct Beginning:
    uint8_t octets[DIGESTED]
    size_t count


cdef void add(Beginning *beginning, const uint8_t *octets, size_t size) noexcept nogil
cdef bytes key_of(
    uint32_t xid, uint32_t program, uint32_t version, uint32_t procedure, uint64_t length, Beginning *beginning,
    bytes peer
)


cdef class Entry:
    cdef readonly bytes key
    cdef readonly bytes reply
    # Where in it DDP-eligible items are: start and length, without padding. The retransmission of a call whose reply had
    # no room brings larger Write chunks, where these must go again (RFC 8267 section 6.4.1).
    cdef tuple cuts
    cdef object transport
    cdef double expires
    cdef list waiters


cdef class ReplayCache:
    cdef readonly size_t max_bytes
    cdef readonly size_t max_entries
    cdef readonly size_t size
    cdef public size_t hits
    cdef double ttl
    cdef object clock
    cdef dict running
    cdef dict finished
    cdef object order           # of the finished ones, oldest first

    cdef bint is_new(self, bytes key) except -1
    cdef int remember(self, bytes key, bytes reply) except -1
    cdef int keep(self, Entry entry, bytes reply) except -1
    cdef int trim(self, double now) except -1
