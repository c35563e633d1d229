"""The sending half of a connection."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rpcrdma.verbs.softiwarp.chain cimport Chain, ChainQueue, Message
from rpcrdma.verbs.softiwarp.framing cimport iovec


cdef enum:
    FLUSH_IDLE = 0      # nothing is left to send
    FLUSH_BLOCKED = 1   # the socket is full
    FLUSH_MORE = 2      # the turn's share was sent, more waits
    FLUSH_FAILED = 3    # the socket failed; see ``error``


cdef struct TransmitCounters:
    uint64_t fpdus
    uint64_t octets
    uint64_t largest_fpdu
    uint64_t system_calls
    uint64_t sends
    uint64_t writes
    uint64_t invalidations
    uint64_t reads
    uint64_t responses


cdef class Transmitter:
    cdef int fd
    cdef readonly int error
    cdef public bint enabled      # FPDUs may be sent (RFC 5044 section 7.1.2 rule 4)
    cdef readonly bint stopped      # the Terminate is framed: nothing may follow it
    cdef bint crc
    cdef bint markers
    cdef bint aligned               # FPDUs keep to segments
    cdef size_t segment             # the peer's segment size
    cdef uint64_t stream            # octets framed since the start, which is where Markers count from
    cdef uint32_t send_msn
    cdef uint32_t read_msn
    cdef readonly uint32_t max_reads
    cdef readonly uint32_t outstanding_reads
    cdef TransmitCounters counters

    # What waits
    cdef ChainQueue queue           # posts and reads in the order posted
    cdef ChainQueue responses       # Read Responses in the order asked for
    cdef ChainQueue reads           # reads whose turn came: being issued or awaiting their answers
    cdef Chain issuing              # the first of ``reads`` with a request still to go
    cdef bint response_turn
    cdef Chain terminating
    cdef readonly bint refused      # a Read Response lost its memory: the Terminate is queued
    cdef Chain active               # the chain of the message being framed
    cdef uint64_t active_sent       # its octets framed
    cdef uint32_t active_piece
    cdef size_t active_offset

    # The run being sent
    cdef char *arena
    cdef size_t arena_size
    cdef size_t arena_used
    cdef size_t arena_open          # start of what is not yet in an iovec
    cdef iovec *vectors
    cdef uint32_t vector_count
    cdef uint32_t vector_next
    cdef uint32_t *fpdu_ends        # octets of the run up to and including each FPDU
    cdef uint32_t fpdu_count
    cdef size_t run_octets
    cdef size_t run_sent
    cdef bint one_by_one
    cdef ChainQueue framed          # chains wholly in the run
    cdef list done                  # tokens to report as sent

    cdef int flush(self) except -1
    cdef void post(self, Chain chain)
    cdef void respond(self, Chain chain)
    cdef Chain read_answered(self)
    cdef bint busy(self) noexcept
    cdef int terminate(self, bytes message) except -1
    cdef list drop_all(self)
    cdef int make_room(self) except -1
    cdef int measure_segment(self) noexcept
    cdef int build_run(self) except -1
    cdef Message *pick(self) except? NULL
    cdef Message *refuse_response(self) except NULL
    cdef void count_fpdu(self, size_t octets) noexcept
    cdef int frame(self, Message *message, size_t header, size_t payload, bint last) except -1
    cdef int frame_marked(self, Message *message, size_t header, size_t payload, bint last) except -1
    cdef void write_header(self, char *where, Message *message, size_t header, size_t payload, bint last) noexcept
    cdef char *next_octets(self, size_t wanted, size_t *got) noexcept
    cdef void finish_message(self, Message *message)
    cdef void close_arena(self) noexcept
    cdef int send_run(self) except -1
    cdef void note_progress(self)
