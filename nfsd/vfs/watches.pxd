"""C declarations of the watches."""

from libc.stdint cimport uint64_t


cdef class Watches:
    cdef object _loop
    cdef int _fd
    cdef readonly dict _heard           # sets of what to call, by file

    cpdef int add(self, int directory, bytes name, tuple file, heard) except -1
    cpdef bint add_directory(self, int directory, bytes name, tuple file, heard) except -1
    cpdef bint add_writes(self, int directory, bytes name, tuple file) except -1
    cpdef int remove(self, int directory, bytes name, tuple file, heard, bint names=*) except -1
    cdef int hear(self, tuple file, heard) except -1
    cdef bint mark(self, unsigned int flags, uint64_t mask, int directory, bytes name) noexcept
