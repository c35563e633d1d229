"""A connection's queue pair."""

from libc.stdint cimport uint32_t, uint64_t

from rpcrdma.memory cimport Lease
from rpcrdma.verbs.device.chains cimport Chain
from rpcrdma.verbs.device.cm cimport Identifier
from rpcrdma.verbs.device.completions cimport CompletionQueue, Target
from rpcrdma.verbs.device.device cimport Device
from rpcrdma.verbs.device.queue cimport SendQueue
from rpcrdma.verbs.device.shared cimport SharedReceives
from rpcrdma.verbs.device.verbs_api cimport ibv_qp, ibv_qp_init_attr, ibv_send_wr, ibv_wc


cdef class Endpoint(Target):
    cdef Device device
    cdef Identifier identifier
    cdef CompletionQueue completions
    cdef ibv_qp *pair
    cdef uint32_t number
    cdef SendQueue queue
    cdef object handler
    cdef object on_closed
    cdef object options
    cdef readonly str peer_address
    cdef readonly int peer_port
    cdef readonly str local_address
    cdef readonly int max_reads
    cdef int state
    cdef int reserved
    cdef int broken
    cdef ibv_qp_init_attr attributes
    cdef list slots
    cdef list free_slots
    cdef list spare
    cdef list flushed
    cdef SharedReceives shared
    cdef int posted_receives
    cdef list messages
    cdef list finished
    cdef list refused
    cdef list unposted
    cdef bint errored
    cdef bint in_turn
    cdef bint finishing
    cdef object reason
    cdef object close_timer
    cdef object flush_timer
    cdef dict registrations
    cdef uint64_t progress
    cdef double progress_at
    cdef readonly uint64_t sends
    cdef readonly uint64_t doorbells
    cdef readonly uint64_t receives

    cdef int receive(self, list leases) except -1
    cdef int flush(self) except -1
    cdef int note_failure(self, ibv_wc *completion, int index, Chain chain) except -1
    cdef int deliver(self) except -1
    cdef int report(self, object token, bint ok) except -1
    cdef int handler_failed(self) except -1
    cdef int settle(self) except -1
    cdef int tear_down(self) except -1
