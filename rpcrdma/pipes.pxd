"""C declarations of pipes that carry pages of files to sockets."""

from libc.stdint cimport uint64_t


cdef enum:
    PAGE = 4096


cdef class Pipe:
    cdef int drain              # the end that is read
    cdef int feed               # the end that is written
    cdef size_t level           # octets in it
    cdef size_t page_at         # where in its page the first octet stands that was put in

    cdef ssize_t fill(self, int fd, uint64_t offset, size_t count) noexcept
    cdef int filled(self, uint64_t offset, size_t level) except -1
    cdef ssize_t send(self, int fd, size_t count, bint more) noexcept
    cpdef int release(self) except -1


cdef bint worth(uint64_t offset, size_t count) noexcept
cdef Pipe take_pipe()
cdef ssize_t pour(int fd, uint64_t offset, int feed, size_t count, size_t *level) noexcept nogil
