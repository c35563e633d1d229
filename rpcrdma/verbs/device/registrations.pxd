"""What native code may touch of a device's registered memory."""

from libc.stdint cimport uint32_t, uint64_t

from rpcrdma.memory cimport Pool
from rpcrdma.verbs.device.verbs_api cimport ibv_mr, ibv_pd


cdef class Registration:
    cdef ibv_mr *mr
    cdef object view
    cdef object control
    cdef readonly uint32_t lkey
    cdef readonly uint32_t rkey
    cdef readonly uint64_t base         # what the device and the peer call its first octet

    cdef int withdraw(self) except -1


cdef class Registrations:
    cdef ibv_pd *pd
    cdef Pool pool
    cdef str device
    cdef ibv_mr **regions
    cdef size_t *bases
    cdef size_t count
    cdef size_t last
    cdef bint pinned                    # the arenas
    cdef bint can_rename                # memory may have other addresses for the device than for us
    cdef object control

    cdef int key_of(self, size_t address, size_t length, uint32_t *key) except -1
    cdef Registration register(self, size_t address, size_t length, int access, object view)
