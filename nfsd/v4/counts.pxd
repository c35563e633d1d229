"""C declarations of how often each operation of NFSv4 was carried out."""

from libc.stdint cimport uint8_t, uint64_t


cdef class OperationCounts:
    cdef uint64_t calls[128]
    cdef uint8_t weights[128]
