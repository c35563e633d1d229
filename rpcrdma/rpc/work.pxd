"""C declarations of what direct calls wait for."""

from rpcrdma.place cimport Held


cdef class Work:
    """What a call waits for."""

    cdef Held held
    cdef Work earlier               # what the same call has waited for before
    cdef object kept                # what the program keeps for the call meanwhile

    cdef int start(self) except -1
    cdef int over(self) except -1


cdef class Unbegun(Work):
    """In the place of what could not be begun."""

    cdef object error


cdef class Errand(Work):
    """A coroutine."""

    cdef object coroutine
    cdef bint starting
    cdef readonly object result
    cdef readonly object error


cdef Work kept_by(object kept)
