from libc.stdint cimport uint64_t


cdef bint in_memory(int fd, uint64_t offset, size_t size) noexcept nogil
