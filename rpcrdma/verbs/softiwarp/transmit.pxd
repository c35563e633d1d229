"""The sending half of a connection."""

from libc.stdint cimport uint32_t

from rpcrdma.verbs.softiwarp.chain cimport Chain, ChainQueue, Message
from rpcrdma.verbs.softiwarp.frame cimport Run


cdef enum:
    FLUSH_IDLE = 0      # nothing is left to send
    FLUSH_BLOCKED = 1   # the socket is full
    FLUSH_MORE = 2      # the turn's share was sent, more waits
    FLUSH_FAILED = 3    # the socket failed; see ``error``


cdef class Transmitter(Run):
    cdef public bint enabled        # FPDUs may be sent (RFC 5044 section 7.1.2 rule 4)
    cdef readonly bint stopped      # the Terminate is framed: nothing may follow it
    cdef readonly bint refused      # a Read Response lost its memory: the Terminate is queued
    cdef readonly uint32_t max_reads
    cdef readonly uint32_t outstanding_reads

    cdef ChainQueue queue           # posts and reads in the order posted
    cdef ChainQueue responses       # Read Responses in the order asked for
    cdef ChainQueue reads           # reads whose turn came: being issued or awaiting their answers
    cdef Chain issuing              # the first of ``reads`` with a request still to go
    cdef bint response_turn
    cdef Chain terminating

    cdef int flush(self, size_t most) except -1
    cdef void post(self, Chain chain)
    cdef void respond(self, Chain chain)
    cdef Chain read_answered(self)
    cdef bint busy(self) noexcept
    cdef int terminate(self, bytes message) except -1
    cdef list drop_all(self)
    cdef int measure_segment(self) noexcept
    cdef int build_run(self, size_t most) except -1
    cdef bint takes_pages(self) noexcept
    cdef Message *pick(self) except? NULL
    cdef Message *refuse_response(self) except NULL
    cdef void finish_message(self, Message *message)
