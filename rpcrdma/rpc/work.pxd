"""C declarations of what native calls wait for."""

from rpcrdma.place cimport Held


cdef class Work:
    """What a call waits for."""

    cdef Held held
    cdef Work earlier               # what the same call has waited for before
    cdef object kept                # what the program keeps for the call meanwhile
    cdef str host                   # on whose behalf it is done; None: on the caller's as of when it begins

    cdef int start(self) except -1
    cdef int over(self) except -1


cdef class Unbegun(Work):
    """In the place of what could not be begun."""

    cdef object error


cdef class Later(Work):
    """Nothing: the call is to be kept, and goes on from what is ``kept`` for it, or anew."""


cdef class Errand(Work):
    """A coroutine."""

    cdef object coroutine
    cdef bint starting
    cdef bint begun                 # before its call was kept
    cdef readonly bint ended_already
    cdef readonly object result
    cdef readonly object error

    cdef bint begin(self, str peer_address) except -1


cdef Work kept_by(object kept)
