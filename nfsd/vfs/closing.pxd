"""C declarations of closes by workers."""

from nfsd.vfs.executor cimport Executor, Job

cdef enum:
    AT_ONCE = 16            # descriptors that one worker closes one behind the other

cdef struct closes_t:
    int count
    int descriptors[AT_ONCE]
    int errors[AT_ONCE]


cdef class Closes(Job):
    """Some descriptors, that are about to close, or have."""

    cdef closes_t data
    cdef list freed             # what is to be called then; None: nothing
    cdef Closing closing
    cdef object future          # of who waits for it; None: nobody does


cdef class Closing:
    cdef object loop
    cdef Executor executor
    cdef object failed_in
    cdef bint working
    cdef dict latest            # by lane: what more descriptors may be added to
    cdef set under_way
