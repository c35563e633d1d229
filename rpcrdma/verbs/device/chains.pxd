"""What an endpoint needs of a chain of work requests."""

from libc.stdint cimport uint32_t, uint64_t

from rpcrdma.memory cimport Lease
from rpcrdma.verbs.device.device cimport Device
from rpcrdma.verbs.device.queue cimport Job
from rpcrdma.verbs.device.verbs_api cimport ibv_send_wr, ibv_sge
from rpcrdma.verbs.native cimport Fetch, Target


cdef enum:
    FEW_REQUESTS = 2
    FEW_SEGMENTS = 4


cdef class Chain(Job):
    cdef ibv_send_wr *requests
    cdef ibv_sge *segments
    cdef void *block
    cdef ibv_send_wr few_requests[FEW_REQUESTS]
    cdef ibv_sge few_segments[FEW_SEGMENTS]
    cdef int request_count
    cdef int segment_count
    cdef object kept
    cdef list holds
    cdef Lease head                 # a reply given natively: what it is sent from
    cdef Lease payload

    cdef int allocate(self, size_t requests, size_t segments) except -1
    cdef ibv_send_wr *request(self, int opcode, uint32_t key, uint64_t address) noexcept
    cdef int place(self, ibv_send_wr *request, size_t address, size_t length, uint32_t key) except -1
    cdef int hold(self, object owner) except -1
    cdef int release(self) except -1


cdef Chain chain_of_nothing(Device device, object token)
cdef Chain chain_of_post(Device device, object writes, object send, object token)
cdef Chain chain_of_reads(Device device, object reads, object token)
cdef Chain chain_of_reply(
    Device device, const Target *targets, size_t count, Lease payload, Lease head, size_t length, bint invalidates,
    uint32_t handle
)
cdef Chain chain_of_fetch(Device device, const Target *sources, size_t count, Fetch fetch)
