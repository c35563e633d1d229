"""Receives that all connections of a device share."""

from rpcrdma.memory cimport Lease
from rpcrdma.verbs.device.registrations cimport Registrations
from rpcrdma.verbs.device.verbs_api cimport ibv_pd, ibv_srq


cdef class SharedReceives:
    cdef ibv_srq *srq
    cdef readonly int capacity
    cdef readonly int posted
    cdef readonly object error
    cdef str device
    cdef Registrations memory
    cdef list slots
    cdef list free_slots

    cdef int post(self, list leases, bint keep) except -1
    cdef Lease take(self, int slot)


cdef SharedReceives make_shared_receives(ibv_pd *pd, Registrations memory, int capacity, str device)
