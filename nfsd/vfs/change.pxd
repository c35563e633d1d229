"""C declarations of the change attribute's record."""

from libc.stdint cimport uint64_t

cdef enum:
    SETTLE = 40000000
    OFFSET = 1 << 19

cdef class ChangeRecord:
    cdef bint known
    cdef uint64_t ctime
    cdef uint64_t value
    cdef uint64_t look(self, uint64_t ctime, uint64_t now, bint fine, bint changed) noexcept
