"""C declarations of the turns on one file."""

from nfsd.vfs.executor cimport Job


cdef class Serial:
    cdef readonly bint busy
    cdef public bint writing
    cdef object waiters         # futures; None as long as there has been none
    cdef Job head               # of the train that is under way, its last one
    cdef Job tail
    cdef Job next_head          # of the train that is to depart next
    cdef Job next_tail

    cdef int join(self, Job job) except -1
    cdef int depart(self) except -1
    cdef bint moving(self) noexcept
