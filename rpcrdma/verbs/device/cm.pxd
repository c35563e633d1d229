"""What native code may touch of RDMA-CM's identifiers."""

from libc.stdint cimport uint16_t, uint32_t

from rpcrdma.verbs.device.verbs_api cimport ibv_context, rdma_cm_id, rdma_event_channel


cdef class Identifier


cdef class EventChannel:
    cdef rdma_event_channel *channel
    cdef dict identifiers
    cdef readonly object control
    cdef object loop

    cdef int tell(self, Identifier identifier, str kind, int status, object request) except -1


cdef class Identifier:
    cdef rdma_cm_id *id
    cdef EventChannel channel
    cdef public object owner

    cdef str device(self)


cdef int release_context(ibv_context *context) except -1
