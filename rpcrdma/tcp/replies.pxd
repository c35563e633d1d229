"""C declarations of native replies on their way into a record stream."""

from libc.stdint cimport uint8_t

from rpcrdma.memory cimport Account, Lease
from rpcrdma.place cimport Place
from rpcrdma.pipes cimport Pipe


cdef class NativeReplies(Place):
    cdef Account account
    cdef Lease lease
    cdef uint8_t *start         # of the present reply, at its record mark
    cdef Lease payload          # of the present reply, if it has a buffer of its own
    cdef Pipe pipe              # or is in one
    cdef bint shown             # to somebody: it must be in memory
    cdef bint whole             # what is written is protected as a whole
    cdef size_t payload_at      # how much of the reply goes before it
    cdef size_t payload_length

    cdef bint begin(self) except -1
    cdef int cancel(self) except -1
    cdef int drop(self) except -1
    cdef bint may_have(self, size_t room) noexcept
