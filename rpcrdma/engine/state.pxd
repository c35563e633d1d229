"""C declarations of what a responder and native code before it both look at."""

from rpcrdma.engine.counters cimport Counters
from rpcrdma.engine.credits cimport Credits


cdef class ResponderState:
    """The state of one connection's responder."""

    cdef readonly Credits credits
    cdef readonly Counters counters
    cdef readonly object versions           # of the protocol, those that the connection may speak
    # What the owner is to do, taken by it after each input.
    cdef public list receives
    cdef public list reads
    cdef public list chains
    cdef public list calls
    cdef public object failure
    cdef readonly object to_read            # calls whose Read chunks are to be fetched
    cdef public object poisoned
    cdef public Py_ssize_t received_messages
    cdef public bint closed
    cdef public bint draining
    cdef public bint may_read
    cdef bint traced

    cdef bint answers_natively(self) noexcept
    cdef bint is_wary(self) except -1
    cdef bint at_rest(self) noexcept
    cdef bint holds_too_many(self) noexcept
