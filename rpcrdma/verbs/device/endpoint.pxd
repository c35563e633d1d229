"""A connection's queue pair."""

from libc.stdint cimport uint64_t

from rpcrdma.verbs.device.chains cimport Chain
from rpcrdma.verbs.device.cm cimport Identifier
from rpcrdma.verbs.device.completions cimport Target
from rpcrdma.verbs.device.device cimport Device
from rpcrdma.verbs.device.pair cimport QueuePair
from rpcrdma.verbs.device.queue cimport SendQueue
from rpcrdma.verbs.device.receives cimport Receives, SharedReceives
from rpcrdma.verbs.device.verbs_api cimport ibv_wc


cdef class Endpoint(Target):
    cdef Device device
    cdef Identifier identifier
    cdef QueuePair pair
    cdef SendQueue queue
    cdef object handler
    cdef object on_closed
    cdef object options
    cdef readonly str peer_address
    cdef readonly int peer_port
    cdef readonly str local_address
    cdef readonly int max_reads
    cdef int state
    cdef list spare
    cdef list flushed
    cdef Receives own
    cdef SharedReceives shared
    cdef list messages
    cdef list finished
    cdef list failed
    cdef list reposted
    cdef list refused
    cdef list unposted
    cdef bint errored
    cdef bint in_turn
    cdef bint finishing
    cdef bint closing
    cdef object doomed
    cdef object on_made
    cdef object on_withdrawn
    cdef list given
    cdef object reason
    cdef object close_timer
    cdef object flush_timer
    cdef dict registrations
    cdef uint64_t progress
    cdef double progress_at
    cdef readonly uint64_t receives

    cdef int receive(self, list leases) except -1
    cdef int note_failure(self, ibv_wc *completion, int index, Chain chain) except -1
    cdef int deliver(self) except -1
    cdef int report(self, list over, bint ok) except -1
    cdef int submit(self, Chain chain, object token) except -1
    cdef int fail_soon(self, object problem) except -1
    cdef int settle(self) except -1
