"""C declarations of what stateids keep open."""

from nfsd.vfs.records cimport OpenFile


cdef class Descriptors:
    cdef readonly str host
    cdef readonly OpenFile read
    cdef readonly object reader         # who was allowed to read
    cdef readonly OpenFile write
    cdef readonly object writer

    cpdef int add(self, OpenFile opened, int access, caller) except -1
    cpdef int keep(self, int access) except -1
