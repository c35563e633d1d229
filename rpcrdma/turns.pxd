"""C declarations of whose turn it is."""

from libc.stdint cimport uint64_t

cdef enum:
    SLICE = 131072          # octets that a connection moves in one turn, while there are others


cdef bint shared(void *who, uint64_t now) noexcept
cdef bint crowded() noexcept
