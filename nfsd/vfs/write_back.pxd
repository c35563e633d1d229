"""C declarations of write verifiers."""


cdef class WriteBack:
    cdef public bytes verifier
    cdef readonly long failures
    cdef readonly set lanes
