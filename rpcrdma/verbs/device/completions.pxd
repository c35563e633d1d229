"""What a queue pair and a device share with the completion queues."""

from libc.stdint cimport uint64_t

from rpcrdma.verbs.device.pump cimport watched_t
from rpcrdma.verbs.device.verbs_api cimport ibv_comp_channel, ibv_context, ibv_cq, ibv_wc
from rpcrdma.verbs.native cimport NativeEndpoint


cdef class Target(NativeEndpoint):
    cdef bint touched

    cdef int take(self, ibv_wc *completion) except -1
    cdef int take_refusal(self, uint64_t identifier, int error) except -1
    cdef int turn(self) except -1


cdef class CompletionQueue:
    cdef ibv_cq *cq
    cdef watched_t *watched
    cdef readonly int capacity
    cdef readonly int reserved


cdef CompletionQueue make_completion_queue(ibv_context *context, ibv_comp_channel *channel, int capacity, str device)
