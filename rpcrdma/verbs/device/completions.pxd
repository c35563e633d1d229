"""What a queue pair and a device share with the completion queues."""

from rpcrdma.verbs.device.verbs_api cimport ibv_comp_channel, ibv_context, ibv_cq, ibv_wc


cdef class Target:
    cdef bint touched

    cdef int take(self, ibv_wc *completion) except -1
    cdef int turn(self) except -1


cdef class CompletionQueue:
    cdef ibv_cq *cq
    cdef str device
    cdef readonly int capacity
    cdef readonly int reserved
    cdef readonly dict targets
    cdef bint armed
    cdef list touched

    cdef int collect(self, int batches) except -1
    cdef int drain(self) except -1
    cdef int deliver(self) except -1
    cdef int close(self) except -1


cdef CompletionQueue make_completion_queue(ibv_context *context, ibv_comp_channel *channel, int capacity, str device)
