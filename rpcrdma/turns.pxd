"""C declarations of whose turn it is."""

from libc.stdint cimport uint64_t

cdef enum:
    SLICE = 131072          # octets that a connection moves in one turn, while there are others
    BULK = 524288           # octets that a worker should copy then: fewer cost the loop less than it takes to ask one


cdef bint shared(void *who, uint64_t now) noexcept
cdef bint crowded() noexcept
cdef void one_is_gone() noexcept
