"""C declarations of native calls: calls answered in native code, in the stack in which they arrived."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rpcrdma.declined cimport Declined
from rpcrdma.place cimport Answerer, Held, Place
from rpcrdma.rpc.callers cimport Caller, Callers
from rpcrdma.rpc.native_program cimport NativeProgram, NativeVersion, Waiting
from rpcrdma.rpc.replay cimport Entry, Peer, ReplayCache
from rpcrdma.rpc.signed cimport Signed


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
    cdef int execute(
        self, NativeVersion version, Caller caller, const uint8_t *message, uint32_t procedure, size_t offset, size_t size,
        Place place
    ) except -1
    cdef int failed(self, const uint8_t *message, size_t size, Place place, object error) except -1
    cdef NativeVersion version_of(self, uint32_t number, uint32_t version)
    cdef int left_off(self, object begun, bytes key) except -1
    cdef int enter(self, Held held, Waiting waiting) except -1
    cdef int cannot_begin(self, Waiting waiting, object error) except -1
    cdef int over(self, Held held, Waiting waiting, int outcome, Place place, const uint8_t *start) except -1
    cdef int go_on(self, Held held, Waiting waiting, Place place) except -1
    cdef bint is_new(self, Held held, Waiting waiting, Place place) except -1
    cdef int sealed(self, Held held, Waiting waiting, Place place) except -1
    cdef int open_later(
        self, NativeVersion version, Caller caller, const uint8_t *message, uint32_t procedure, size_t offset, size_t size
    ) except -1
    cdef int carry_on(self, Held held, Place place, object holder) except -1
