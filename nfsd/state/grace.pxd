"""C declarations of what a grace period stands in the way of."""

from nfsd.state.records cimport ClientRecord


cdef class GraceRules:
    cdef public bint active
    cdef public bint elsewhere
    cdef readonly set unheard
    cdef public object on_new_lock

    cpdef int check(self, ClientRecord client, bint reclaim, bint held=*) except -1
