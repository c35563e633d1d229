"""What native code may touch of a queue pair."""

from libc.stdint cimport uint32_t, uint64_t

from rpcrdma.verbs.device.cm cimport Identifier
from rpcrdma.verbs.device.completions cimport CompletionQueue
from rpcrdma.verbs.device.device cimport Device
from rpcrdma.verbs.device.queue cimport SendQueue
from rpcrdma.verbs.device.verbs_api cimport ibv_qp, ibv_qp_init_attr, ibv_srq

cdef enum:
    INDEX_BITS = 16


cdef class QueuePair:
    cdef Device device
    cdef Identifier identifier
    cdef CompletionQueue completions
    cdef ibv_qp *pair
    cdef readonly uint32_t number
    cdef SendQueue queue
    cdef readonly uint64_t pieces
    cdef readonly uint64_t doorbells
    cdef int reserved
    cdef int broken
    cdef ibv_qp_init_attr attributes
    cdef object on_gone

    cdef int open(self, int depth, int receive_depth, int max_reads, ibv_srq *srq, object made) except -1
    cdef int flush(self) except -1
    cdef int close(self, object on_gone) except -1


cdef QueuePair make_queue_pair(Device device, Identifier identifier)
