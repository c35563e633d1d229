"""C declarations of a connection that messages come on."""

from rpcrdma.engine.native cimport NativeResponder
from rpcrdma.engine.state cimport ResponderState
from rpcrdma.in_progress cimport CountingSeat
from rpcrdma.pace cimport Pace


cdef class ReceivingConnection:
    """An RDMA connection of the server, as far as every batch of messages concerns it."""

    cdef public ResponderState responder
    cdef public NativeResponder native      # None: calls are not answered natively
    cdef public object tap
    cdef readonly object slowing
    cdef readonly object late               # messages with calls that have come faster than the host may have them
    cdef public object held_back            # calls that wait for there being fewer of the same host
    cdef readonly long held                 # calls that wait on the native path
    cdef public bint closed
    cdef CountingSeat counted
    cdef Pace pace

    cdef bint stops(self) except -1
    cpdef int take(self, messages) except -1
