"""What is posted: messages, their memory, and the token to report."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rpcrdma.memory cimport Lease
from rpcrdma.pipes cimport Pipe
from rpcrdma.verbs.native cimport Fetch, Target
from rpcrdma.verbs.softiwarp.stags cimport Registration


cdef struct Piece:
    char *data
    size_t length


cdef struct Message:
    uint8_t opcode
    uint32_t stag       # sink STag (Write, Read Response), source STag (Read Request), STag to invalidate (Send)
    uint64_t offset     # tagged offset that goes with stag
    uint64_t length     # payload octets; of a Read Request, the octets asked for
    uint32_t sink       # Read Request: the sink STag it went out with
    uint32_t first      # index of its first piece
    uint32_t pieces


cdef class Chain:
    cdef object token
    cdef bint signalled         # report token when done
    cdef Message *messages
    cdef Piece *pieces
    cdef Py_buffer *buffers
    cdef void *block
    cdef uint32_t message_count
    cdef uint32_t piece_count
    cdef uint32_t buffer_count
    cdef Lease head                 # a reply given natively: what it is sent from
    cdef Lease payload
    cdef Pipe pages                 # what its Writes carry, if that stays in the pages of a file
    cdef size_t pages_framed        # octets of it
    cdef Registration registration  # Read Response: what it reads from
    # Progress of the transmitter
    cdef uint32_t current       # message being framed (posts), or next to issue (reads)
    cdef uint32_t answered      # Read Responses complete
    cdef uint32_t end           # iovec index behind its last octet, once wholly framed
    cdef Chain next

    cdef int allocate(self, size_t messages, size_t pieces) except -1
    cdef int hold(self, object view, int flags) except -1
    cdef void release(self)




cdef class ChainQueue:
    cdef Chain first
    cdef Chain last
    cdef readonly size_t length

    cdef void append(self, Chain chain)
    cdef Chain pop(self)


cdef Chain chain_of_post(object writes, object send, object token)
cdef Chain chain_of_reply(
    const Target *targets, size_t count, Lease payload, Pipe pages, Lease head, size_t length, bint invalidates,
    uint32_t handle
)
cdef Chain chain_of_reads(object reads, object token)
cdef Chain chain_of_fetch(const Target *sources, size_t count, Fetch fetch)
cdef Chain chain_of_response(
    Registration registration, char *data, uint64_t length, uint32_t sink_stag, uint64_t sink_offset
)
cdef Chain chain_of_empty_write()
cdef Chain chain_of_terminate(bytes message)
