"""C declarations of record streams."""

from libc.stdint cimport uint8_t, uint64_t

from rpcrdma.memory cimport Lease
from rpcrdma.pace cimport Pace
from rpcrdma.tcp.answers cimport RecordAnswers
from rpcrdma.tcp.outgoing cimport Outgoing
from rpcrdma.tcp.reading cimport Reading


cdef class RecordStream(Reading):
    cdef size_t max_record
    cdef size_t most_records
    cdef readonly bint severed          # nothing can be sent any more
    cdef bint last
    cdef Outgoing outgoing
    # Calls that are answered here.
    cdef RecordAnswers answers
    cdef readonly size_t answered
    cdef uint64_t until
    cdef readonly bint unfinished
    # What its host may do; None: anything.
    cdef Pace pace
    cdef readonly bint slowed           # what is unfinished is so for that reason
    # The present turn: whether it has begun, and how much may be sent in it.
    cdef bint begun
    cdef size_t may_send
    # Who sees every record, if anybody does.
    cdef object tap

    cpdef list receive(self, bint readable=*)
    cpdef bint settle(self) except -1
    cdef bint over(self) noexcept
    cdef int show(self, const uint8_t *record, size_t length) except -1
    cdef int begin_turn(self) except -1
    cdef bint must_wait(self) noexcept
    cdef int parse(self, list records) except -1
    cdef bint take_whole(self, Lease hold) except -1
    cdef bint answer(self, const uint8_t *message, size_t length, Lease lease) except -1
    cdef object holder_of(self, Lease hold)
    cdef bint send(self) except -1
    cdef int make_sure(self) except -1
