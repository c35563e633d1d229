"""C declarations of replies that native code writes and posts."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rpcrdma.engine.credits cimport Credits
from rpcrdma.memory cimport Account, Lease
from rpcrdma.pipes cimport Pipe
from rpcrdma.place cimport Answerer, Place
from rpcrdma.verbs.native cimport NativeEndpoint

cdef enum:
    SEGMENTS = 16
    REMEMBERED = 64


cdef struct Written:
    uint32_t xid
    uint32_t count
    uint32_t handles[SEGMENTS]


cdef class DirectReply(Place):
    cdef Account account
    cdef NativeEndpoint endpoint
    cdef Lease head
    cdef bint reduced           # the payload goes to the Write chunk
    cdef size_t capacity        # of that chunk
    cdef Lease payload
    cdef Pipe pipe              # or is in one
    cdef size_t payload_length

    cdef int forget_pipe(self) except -1
    cdef int drop(self) except -1


cdef class Replies:
    """Where a connection's calls are answered natively, one at a time, and what has been posted there."""

    cdef object responder
    cdef Credits credits
    cdef object counters
    cdef NativeEndpoint endpoint
    cdef Answerer direct
    cdef DirectReply reply
    # What holds for this batch.
    cdef size_t threshold
    cdef bint invalidate
    # Added to the counters at its end.
    cdef long received_calls
    cdef long answered_calls
    cdef long invalidations
    cdef long writes
    cdef long write_octets
    cdef long reads
    cdef long read_octets
    # The calls that were written to last.
    cdef Written written[REMEMBERED]
    cdef size_t latest

    cdef int begin(self) except -1
    cdef bint leave(self, const uint8_t *octets, size_t size, int reason) noexcept
    cdef int write(self, const uint8_t *call, size_t size, size_t header) except -1
    cdef bint send(
        self, uint32_t xid, long grant, const uint8_t *chunk, size_t segments, bint invalidates, uint32_t handle
    ) except -1
    cdef int count(self) except -1
    cdef object refused_call(self, handle)
