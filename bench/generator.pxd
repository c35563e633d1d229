"""C declarations of what load generators share."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef class Load:
    cdef int fd
    cdef list templates
    cdef uint8_t **calls
    cdef size_t *sizes
    cdef size_t count
    cdef uint32_t depth
    cdef uint64_t *started          # by slot: an XID is a slot number and how often the slot was used
    cdef uint32_t *round
    cdef uint32_t *latencies        # nanoseconds, saturated
    cdef size_t samples
    cdef size_t room
    cdef size_t sequence_at         # where SEQUENCE's sequence id and slot stand in a call; 0: nowhere

    cdef int transmit(self, uint8_t *data, size_t size) noexcept nogil
    cdef ssize_t receive(self, uint8_t *data, size_t size) noexcept nogil
    cdef int note(self, uint64_t elapsed) noexcept nogil
    cdef void sort(self) noexcept nogil
    cdef void fill_in(self, uint8_t *call, uint32_t slot) noexcept nogil


cdef inline uint32_t load32(const uint8_t *at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline void store32(uint8_t *at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value


cdef uint64_t now() noexcept nogil
