"""What native code may touch of posted Receives."""

from libc.stdint cimport uint64_t

from rpcrdma.memory cimport Lease
from rpcrdma.verbs.device.registrations cimport Registrations
from rpcrdma.verbs.device.verbs_api cimport ibv_pd, ibv_qp, ibv_recv_wr, ibv_srq


cdef inline bint is_receive(uint64_t identifier) noexcept nogil:
    """Whether a work request's identifier is a Receive's: a failed completion says nothing else about what it was."""
    return identifier >> 63


cdef class Receives:
    cdef ibv_qp *pair
    cdef ibv_srq *srq
    cdef readonly int posted
    cdef str device
    cdef Registrations memory
    cdef list slots
    cdef list free_slots

    cdef int open(self, int capacity, Registrations memory, str device) except -1
    cdef int put(self, list leases) except -1
    cdef int hand_over(self, ibv_recv_wr *requests, int count, list leases) except -1
    cdef Lease take(self, int slot)
    cdef list withdraw(self)


cdef class SharedReceives(Receives):
    cdef int post(self, list leases, bint keep) except -1


cdef SharedReceives make_shared_receives(ibv_pd *pd, Registrations memory, int capacity, str device)
