"""C declarations of the calls in progress."""

from rpcrdma.pace cimport Pace


cdef class AllCalls:
    """Of all hosts."""

    cdef readonly long calls
    cdef readonly long most
    cdef readonly long most_of_host
    cdef readonly object waiting        # seats whose calls wait for there being fewer


cdef class HostCalls:
    """Of one host."""

    cdef readonly AllCalls together
    cdef readonly long calls
    cdef public Pace pace               # None: nobody slows the host down

    cdef bint has_room(self, long more) noexcept


cdef class CountingSeat:
    """A connection, as far as it begins and ends calls."""

    cdef HostCalls counts
    cdef public bint queued             # a call of its waits for its host's others
    cdef public bint called             # one has been made

    cdef bint begin(self) except -1
    cdef int end(self) except -1


cdef class CountingConnection:
    """A connection whose calls may be answered natively, but later."""

    cdef CountingSeat counted
    cdef public long calls
    cdef readonly long most_calls
    cdef public bint closed
    cdef public bint draining
    cdef public bint flush_due

    cpdef bint begin_held(self) except -1
    cdef int end_held(self) except -1
