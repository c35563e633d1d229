"""C declarations of what answers the calls of a record stream."""

from libc.stdint cimport uint8_t

from rpcrdma.in_progress cimport CountingConnection
from rpcrdma.memory cimport Account, Lease
from rpcrdma.pace cimport Pace
from rpcrdma.place cimport Answerer, Held
from rpcrdma.tcp.outgoing cimport Outgoing
from rpcrdma.tcp.replies cimport NativeReplies


cdef class HeldRecord(Held):
    """A call that waits, where it was received."""

    cdef RecordAnswers answers
    cdef Lease hold             # of the message
    cdef Lease room             # for its reply


cdef class RecordAnswers:
    """The calls of one stream that are answered natively."""

    cdef Answerer native
    cdef Outgoing outgoing
    cdef Account account
    cdef CountingConnection owner   # of the stream; None: no call can be kept
    cdef NativeReplies replies      # of calls that are answered in the stack in which they arrive
    cdef NativeReplies late         # of those that had to wait
    cdef size_t most_unsent
    cdef size_t octets              # of replies, in the present turn
    cdef object tap
    cdef Pace pace                  # of the host; None: it may do anything
    cdef bint closed

    cdef bint answer(self, const uint8_t *message, size_t length, Lease lease) except -1
    cdef bint hold(self, const uint8_t *message, size_t length, Lease lease) except -1
    cdef int again(self, HeldRecord held) except -1
    cdef bint offer(self, HeldRecord held) except -1
    cdef int queue(self, NativeReplies replies) except -1
    cdef int show(self, NativeReplies replies, size_t head) except -1
    cdef int pause(self) except -1
    cdef int close(self) except -1


cdef RecordAnswers record_answers(
    Answerer native, Outgoing outgoing, Account account, size_t most_unsent, CountingConnection owner
)
