"""C declarations of programs whose procedures are answered natively."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rpcrdma.declined cimport Declined
from rpcrdma.place cimport Place
from rpcrdma.rpc.callers cimport Caller
from rpcrdma.rpc.replay cimport Entry
from rpcrdma.rpc.signed cimport Signed
from rpcrdma.rpc.tally cimport Latencies, Tally
from rpcrdma.rpc.work cimport Work


cdef enum:
    # For how long the replay cache knows a call.
    NEVER = 0
    UNDER_WAY = 1       # as long as it is executed: what is left of it afterwards tells a retransmission by itself
    AFTERWARDS = 2


cdef class NativeProgram:
    """The procedures of one version of one program that can be answered natively."""

    cdef uint64_t procedures        # bit n: procedure n may be tried
    cdef uint64_t guarded           # bit n: procedure n is under the replay cache
    cdef readonly Latencies latencies
    # Of the call at hand, to be set by ``answer`` if it is to be counted so.
    cdef uint32_t shown             # its row in ``latencies``; otherwise the procedure
    cdef Tally tally                # of its client
    cdef readonly Declined declined
    cdef readonly Declined waited
    cdef Work work                  # what the call waits for that has just been answered so

    cdef int guards(self, uint32_t procedure, const uint8_t *arguments, size_t size) except -1
    cdef int reason(self, uint32_t procedure, uint32_t *row) noexcept
    cdef int answer(self, Caller caller, uint32_t procedure, const uint8_t *arguments, size_t size, Place place,
                    Work brought) except -1
    cdef void note(self, double seconds) noexcept
    cdef int wait_for(self, Work work, Work earlier) except -1
    cdef object dismiss(self, Work work)
    cdef int give_up(self, Work work) except -1
    cdef int pause(self) except -1


cdef class NativeVersion:
    """A native program on one connection, with what is to be counted for it."""

    cdef NativeProgram program
    cdef uint32_t number
    cdef uint32_t version
    cdef list rows              # Counts by procedure, or None

    cdef int answered(self, uint32_t procedure, double seconds) except -1


cdef class Waiting:
    """A call that waits."""

    cdef NativeVersion version
    cdef Caller caller
    cdef readonly uint32_t xid
    cdef uint32_t procedure
    cdef readonly uint32_t row      # the procedure, or the operation of a COMPOUND that waits
    cdef int reason
    cdef readonly Tally tally       # its client's on the export, if that is known
    cdef size_t offset              # of the arguments in the message,
    cdef size_t end                 # and what they end before
    cdef bytes key                  # for the replay cache; None: it is not under it
    cdef Entry entry
    cdef readonly double since
    cdef Work work
    cdef Signed signed

    cdef int told(self) except -1


cdef Waiting waiting_call(
    NativeVersion version, Caller caller, const uint8_t *message, uint32_t procedure, size_t offset, size_t end, bytes key,
    double since, Signed signed
)
