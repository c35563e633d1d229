"""C declarations of native calls: calls answered in native code, in the stack in which they arrived."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rpcrdma.declined cimport Declined
from rpcrdma.place cimport Answerer, Held, Place
from rpcrdma.rpc.callers cimport Caller, Callers  # the former for programs
from rpcrdma.rpc.replay cimport Entry, Peer, ReplayCache
from rpcrdma.rpc.signed cimport Signed
from rpcrdma.rpc.tally cimport Latencies, Tally
from rpcrdma.rpc.work cimport Errand, Work  # for programs


cdef class NativeProgram:
    """The procedures of one version of one program that can be answered directly."""

    cdef uint64_t procedures        # bit n: procedure n may be tried
    cdef uint64_t guarded           # bit n: procedure n is under the replay cache
    cdef readonly Latencies latencies
    # Of the call at hand, to be set by ``answer`` if it is to be counted so.
    cdef uint32_t shown             # its row in ``latencies``; otherwise the procedure
    cdef Tally tally                # of its client
    cdef readonly Declined declined
    cdef readonly Declined waited
    cdef Work work                  # what the call waits for that has just been answered so

    cdef bint guards(self, uint32_t procedure, const uint8_t *arguments, size_t size) except -1
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


cdef class Gate:
    """Whom the server is for."""

    cdef public unsigned long generation
    cdef public double lasts


cdef class NativeCalls(Answerer):
    """The native calls of one connection."""

    cdef object transport
    cdef Peer peer
    cdef ReplayCache replay
    cdef Callers callers
    cdef Signed signed                  # whose signature the present call has
    cdef list versions
    cdef NativeVersion latest
    cdef bint calling                   # since the last pause
    cdef double clock
    cdef Gate gate
    cdef unsigned long admitted_in      # the gate's generation in which the peer was let in
    cdef double admitted_until          # on ``clock``
    cdef int why                        # the present call is declined, unless its program does it
    cdef Declined unknown               # calls whose message is not known
    cdef Waiting waiting                # the call that has just been answered so
    cdef public object intercepted      # says whether all calls are to be declined; None: nobody asks for that
    cdef object flights                 # where calls that wait are entered,
    cdef set held                       # in its table
    cdef object begun                   # what has been done of the call that has just been declined,
    cdef Entry entry                    # and its place in the replay cache; None if it has none,
    cdef Signed taken                   # and with what signature its number was taken; None: it was not

    cdef bint admitted(self) except -1
    cdef int attempt(self, const uint8_t *message, size_t size, Place place) except -1
    cdef int failed(self, const uint8_t *message, size_t size, Place place, object error) except -1
    cdef NativeVersion version_of(self, uint32_t number, uint32_t version)
    cdef int left_off(self, object begun, bytes key) except -1
    cdef int enter(self, Held held, Waiting waiting) except -1
    cdef int cannot_begin(self, Waiting waiting, object error) except -1
    cdef int over(self, Held held, Waiting waiting, int outcome, Place place, const uint8_t *start) except -1
    cdef int carry_on(self, Held held, Place place, object holder) except -1
