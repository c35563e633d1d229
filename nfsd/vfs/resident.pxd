"""C declarations of what is in the page cache."""

from libc.stdint cimport uint64_t

cdef bint in_memory(int fd, uint64_t file, uint64_t offset, size_t size) noexcept nogil
cdef void was_read(uint64_t file, uint64_t offset, size_t size, bint waited) noexcept nogil
