"""C declarations of calls that wait on the native path."""

from libc.stdint cimport uint8_t

from rpcrdma.engine.credits cimport Credits
from rpcrdma.engine.replies cimport NativeReply, Replies
from rpcrdma.engine.state cimport ResponderState
from rpcrdma.memory cimport Account, Lease
from rpcrdma.place cimport Answerer, Held
from rpcrdma.wire.transport_header cimport header_t


cdef int place_chunk(
    NativeReply reply, const uint8_t *octets, const header_t *header, Lease sink, size_t size
) except -1


cdef class HeldMessage(Held):
    """A call that waits, in its Receive's buffer."""

    cdef HeldCalls calls
    cdef Lease lease            # of the transport's message
    cdef size_t length          # of all of that
    cdef Lease head             # for its reply
    cdef Lease sink             # what its Read chunk was fetched to
    cdef size_t sink_size


cdef class HeldCalls:
    """The calls of one connection that wait."""

    cdef ResponderState responder
    cdef Replies replies
    cdef Credits credits
    cdef Answerer native
    cdef Account receive_account
    cdef size_t receive_buffer
    cdef size_t most_segments
    cdef object run
    cdef object owner               # of the connection; None: no call can be kept

    cdef HeldMessage keep(self, Lease message, size_t size, Lease sink, size_t sink_size, const header_t *header)
    cdef bint keep_message(self, Lease message, size_t size, const header_t *header) except -1
    cdef int again(self, HeldMessage held) except -1
    cdef bint offer(self, HeldMessage held) except -1
    cdef int conclude(self, HeldMessage held, int outcome, const header_t *header) except -1
