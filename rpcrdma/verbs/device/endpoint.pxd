"""A connection's queue pair."""

from libc.stdint cimport uint64_t

from rpcrdma.verbs.device.chains cimport Chain
from rpcrdma.verbs.device.cm cimport Identifier
from rpcrdma.verbs.device.pair cimport QueuePair
from rpcrdma.verbs.device.reports cimport Reporter


cdef class Endpoint(Reporter):
    cdef Identifier identifier
    cdef QueuePair pair
    cdef object on_closed
    cdef object options
    cdef readonly str peer_address
    cdef readonly int peer_port
    cdef readonly str local_address
    cdef readonly int max_reads
    cdef list spare
    cdef list reposted
    cdef bint in_turn
    cdef bint finishing
    cdef bint closing
    cdef object doomed
    cdef object on_made
    cdef list given
    cdef object close_timer
    cdef object flush_timer
    cdef uint64_t progress
    cdef double progress_at

    cdef int receive(self, list leases) except -1
    cdef int submit(self, Chain chain, object token) except -1
    cdef int fail_soon(self, object problem) except -1
    cdef int settle(self) except -1
