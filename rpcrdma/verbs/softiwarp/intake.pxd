"""Where the next octets of a connection's stream are received."""

from rpcrdma.verbs.softiwarp.framing cimport iovec
from rpcrdma.verbs.softiwarp.receive cimport Receiver


cdef enum:
    PARTS = 64


cdef struct Plan:
    iovec[PARTS] vectors
    bint[PARTS] placed      # whether a vector is where a payload belongs
    size_t count
    size_t octets


cdef class Intake(Receiver):
    cdef int receive(self, size_t most) except -1
    cdef int stage(self, Plan *plan) noexcept
    cdef int expect(self, Plan *plan, size_t most) noexcept
    cdef size_t bulk(self) noexcept
    cdef int take(self, Plan *plan, size_t got) except -1
    cdef int take_elsewhere(self, Plan *plan, size_t index, size_t left) except -1
