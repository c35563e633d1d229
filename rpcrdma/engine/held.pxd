"""C declarations of calls that wait on the native path."""

from libc.stdint cimport uint8_t, uint32_t

from rpcrdma.engine.credits cimport Credits
from rpcrdma.engine.replies cimport Replies
from rpcrdma.memory cimport Account, Lease
from rpcrdma.place cimport Answerer, Held


cdef class HeldMessage(Held):
    """A call that waits, in its Receive's buffer."""

    cdef HeldCalls calls
    cdef Lease lease            # of the message
    cdef size_t length          # of all of it
    cdef Lease head             # for its reply
    cdef size_t header          # octets of the reply's transport header
    cdef Lease sink             # what its Read chunk was fetched to
    cdef const uint8_t *bulk_at
    cdef size_t bulk_size
    cdef const uint8_t *chunk   # its Write chunk's segments
    cdef size_t segments
    cdef size_t capacity        # of that chunk
    cdef bint invalidates
    cdef uint32_t handle


cdef class HeldCalls:
    """The calls of one connection that wait."""

    cdef object responder
    cdef Replies replies
    cdef Credits credits
    cdef Answerer direct
    cdef Account receive_account
    cdef size_t receive_buffer
    cdef object run
    cdef object owner               # of the connection; None: no call can be kept

    cdef HeldMessage held_message(self, Lease message, size_t size, size_t offset, size_t header)
    cdef bint hold_message(
        self, Lease message, size_t size, size_t offset, size_t header, const uint8_t *chunk, size_t segments
    ) except -1
    cdef int again(self, HeldMessage held) except -1
    cdef bint offer(self, HeldMessage held) except -1
    cdef int conclude(self, HeldMessage held, int outcome) except -1
