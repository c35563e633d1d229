"""C declarations of replies that native code writes and posts."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rpcrdma.engine.counters cimport Counters
from rpcrdma.engine.credits cimport Credits
from rpcrdma.engine.state cimport ResponderState
from rpcrdma.memory cimport Account, Lease
from rpcrdma.pipes cimport Pipe
from rpcrdma.place cimport Answerer, Place
from rpcrdma.verbs.native cimport NativeEndpoint, Target
from rpcrdma.wire.transport_header cimport header_t

cdef enum:
    SEGMENTS = 16           # of the chunks that a reply may be written to, and of the chunk that a call is read from
    PIECES = 3              # what a reply in the Reply chunk consists of at most
    REMEMBERED = 64


cdef struct Written:
    uint32_t xid
    uint32_t count
    uint32_t handles[SEGMENTS]


cdef struct Filling:
    # The RDMA Writes of one reply, as far as they are known.
    Target targets[SEGMENTS + PIECES]
    size_t count
    uint32_t handles[SEGMENTS]
    size_t handle_count
    # Where in the chunk that is being filled the next octet goes.
    const uint8_t *segment
    const uint8_t *segments_end
    uint64_t offset
    size_t room


cdef class NativeReply(Place):
    cdef Account account
    cdef NativeEndpoint endpoint
    cdef Lease head
    cdef uint8_t *start         # of the RPC message in it, behind the transport header
    cdef uint8_t *limit         # behind the last octet that may be sent inline,
    cdef size_t behind          # but for so many that are kept for what protects the reply
    cdef bint reduced           # the payload goes to the Write chunk
    cdef size_t capacity        # of that chunk
    cdef size_t long_capacity   # of the Reply chunk; 0: there is none
    cdef Lease payload
    cdef Pipe pipe              # or is in one
    cdef size_t payload_length
    cdef uint8_t *split         # where a payload belongs that is neither inline nor reduced; NULL: there is none

    cdef int begin(self, size_t header, size_t threshold) except -1
    cdef bint fits_inline(self, size_t length) noexcept
    cdef bint fits_beside(self, size_t length) noexcept
    cdef int set_beside(self, Lease payload, size_t room) except -1
    cdef int fold(self) except -1
    cdef int forget_pipe(self) except -1
    cdef int drop(self) except -1


cdef class Replies:
    """Where a connection's calls are answered natively, one at a time, and what has been posted there."""

    cdef ResponderState responder
    cdef Credits credits
    cdef Counters counters
    cdef NativeEndpoint endpoint
    cdef Answerer native
    cdef NativeReply reply
    # What holds once the version is settled.
    cdef uint32_t version       # 0: it is not
    cdef size_t threshold
    cdef bint invalidate
    # Added to the counters at its end.
    cdef long received_calls
    cdef long answered_calls
    cdef long long_replies
    cdef long long_calls
    cdef long invalidations
    cdef long writes
    cdef long write_octets
    cdef long reads
    cdef long read_octets
    # The calls that were written to last.
    cdef Written written[REMEMBERED]
    cdef size_t latest

    cdef bint learn(self) except -1
    cdef bint leave(self, const uint8_t *octets, size_t size, const header_t *header, int reason) noexcept
    cdef int prepare(self, const uint8_t *octets, const header_t *header) except -2
    cdef int write(self, const uint8_t *call, size_t size, const header_t *header) except -1
    cdef bint send(self, const uint8_t *octets, const header_t *header, long grant, Lease receive) except -1
    cdef int remember(self, uint32_t xid, const Filling *filling) except -1
    cdef int count(self) except -1
    cdef object refused_call(self, handle)
