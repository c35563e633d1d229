"""The receiving half of a connection."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from rpcrdma.memory cimport Lease
from rpcrdma.verbs.softiwarp.stags cimport Registration, StagTable
from rpcrdma.verbs.softiwarp.transmit cimport Transmitter


cdef enum:
    RECEIVE_MORE = 0        # go on at the next wake-up
    RECEIVE_END = 1         # the peer has finished sending
    RECEIVE_FAILED = 2      # the socket failed; see ``error``
    RECEIVE_VIOLATION = 3   # the peer broke a rule; a Terminate is queued and ``problem`` says what
    RECEIVE_TERMINATED = 4  # the peer sent a Terminate; ``problem`` says which


cdef enum:
    # What is kept of an FPDU whose header has not come as a whole; with a CRC, of one that has not.
    KEPT = 64
    KEPT_WITH_CRC = 65544
    # States: what the next octet of the stream is
    AT_HEADER = 0
    AT_PAYLOAD = 1
    AT_TRAILER = 2


cdef struct ReceiveCounters:
    uint64_t fpdus
    uint64_t octets
    uint64_t system_calls
    uint64_t sends
    uint64_t writes
    uint64_t invalidations
    uint64_t reads
    uint64_t responses


cdef class Receiver:
    cdef int fd
    cdef readonly int error
    cdef readonly str problem
    cdef readonly object refusal    # RemoteAccessError, when the peer's Terminate was one
    cdef readonly tuple terminate_codes
    cdef bint crc
    cdef bint expect_rtr
    cdef uint32_t inbound_reads
    cdef StagTable stags
    cdef Transmitter transmitter
    cdef ReceiveCounters counters

    cdef readonly object posted     # deque of Lease
    cdef list messages              # Received, to deliver
    cdef list answered              # tokens of completed reads

    # Where in the stream
    cdef int state
    cdef bint finished
    cdef char *kept                 # the start of an FPDU that could not be taken yet
    cdef size_t kept_length
    cdef size_t kept_size
    cdef char *destination
    cdef size_t remaining
    cdef size_t skip

    # The FPDU being received
    cdef char header[48]
    cdef size_t header_length
    cdef uint16_t ulpdu
    cdef uint8_t opcode
    cdef bint last
    cdef size_t payload
    cdef Registration target
    cdef char scratch[64]

    # The messages it may belong to
    cdef Lease current
    cdef size_t placed
    cdef uint32_t send_msn
    cdef uint32_t read_msn
    cdef bint write_open
    cdef uint32_t write_stag
    cdef uint64_t write_next
    cdef uint64_t read_placed

    cdef bint within_fpdu(self) noexcept
    cdef void release_all(self)
    cdef void drop_messages(self)
    cdef int parse(self, char *data, size_t length) except -1
    cdef int keep(self, char *data, size_t length) except -1
    cdef ssize_t take_header(self, char *data, size_t length) except -1
    cdef int accept_header(self) except -1
    cdef int begin_send(self) except -1
    cdef int begin_write(self) except -1
    cdef int begin_read_response(self) except -1
    cdef int begin_read_request(self) except -1
    cdef int finish_fpdu(self) except -1
    cdef int finish_send(self) except -1
    cdef int finish_read_request(self) except -1
    cdef int finish_read_response(self) except -1
    cdef int violation(self, int layer, int etype, int code) except -1
