"""C declarations of which COMPOUNDs nothing but the RPC replay cache protects."""

from libc.stdint cimport uint8_t


cdef int changes_unguarded(const uint8_t *at, const uint8_t *end) noexcept nogil
