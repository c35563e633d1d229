"""Runs: FPDUs framed for one sendmsg(), and sent."""

from libc.stdint cimport uint32_t, uint64_t

from rpcrdma.pipes cimport PAGE
from rpcrdma.verbs.softiwarp.chain cimport Chain, ChainQueue, Message
from rpcrdma.verbs.softiwarp.framing cimport CRC_LENGTH, TAGGED_HEADER, iovec


cdef enum:
    # A run ends before an FPDU that would start beyond RUN_VECTORS. One FPDU adds at most 515 vectors: each piece it
    # points at is longer than COPY octets, and at most one arena chunk lies between two of them.
    RUN_VECTORS = 1000
    VECTORS = 1536
    COPY = 256
    ARENA = 72 << 10
    RUN_OCTETS = 1 << 20
    MARKER_INTERVAL = 512
    MARKER_LENGTH = 4
    # What an FPDU of pages carries at most: with its header and its trailer as many fragments as one socket buffer has.
    PAGES = 15
    PAGES_FPDU = TAGGED_HEADER + PAGES * PAGE + CRC_LENGTH
    # What send_run() returns
    SENT = 0
    BLOCKED = 1
    FAILED = 2


cdef struct TransmitCounters:
    uint64_t fpdus
    uint64_t octets
    uint64_t largest_fpdu
    uint64_t system_calls
    uint64_t cut                    # of those, that took less than they were given
    uint64_t sends
    uint64_t writes
    uint64_t invalidations
    uint64_t reads
    uint64_t responses


cdef size_t room_between_markers(size_t room, size_t to_marker) noexcept nogil


cdef class Run:
    cdef int fd
    cdef readonly int error
    cdef bint crc
    cdef bint markers
    cdef bint aligned               # FPDUs keep to segments
    cdef size_t segment             # the segment size in use towards the peer
    cdef uint64_t stream            # octets framed since the start, which is where Markers count from
    cdef uint32_t send_msn
    cdef uint32_t read_msn
    cdef TransmitCounters counters

    # The message being framed
    cdef Chain active
    cdef uint64_t active_sent       # its octets framed
    cdef uint32_t active_piece
    cdef size_t active_offset

    # The run
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
    cdef Chain paged                # the run consists of what its Writes carry in pages
    cdef bint one_by_one            # a partial send has lost the grid: one FPDU per call until the run is sent
    cdef ChainQueue framed          # chains wholly in the run
    cdef list done                  # tokens to report as sent

    cdef int make_room(self) except -1
    cdef void begin(self) noexcept
    cdef void count_fpdu(self, size_t octets) noexcept
    cdef int frame(self, Message *message, size_t header, size_t payload, bint last) except -1
    cdef int frame_marked(self, Message *message, size_t header, size_t payload, bint last) except -1
    cdef int frame_pages(self, Message *message, size_t payload, bint last) except -1
    cdef void write_header(self, char *where, Message *message, size_t header, size_t payload, bint last) noexcept
    cdef char *next_octets(self, size_t wanted, size_t *got) noexcept
    cdef void close_arena(self) noexcept
    cdef int send_run(self) except -1
    cdef int send_pages(self) except -1
    cdef ssize_t send_between(self, size_t *asked) noexcept
    cdef int advance(self, size_t sent) except -1
    cdef void note_progress(self)
