"""What a device reports of a connection."""

from libc.stdint cimport uint64_t

from rpcrdma.verbs.device.chains cimport Chain
from rpcrdma.verbs.device.completions cimport Target
from rpcrdma.verbs.device.device cimport Device
from rpcrdma.verbs.device.queue cimport SendQueue
from rpcrdma.verbs.device.receives cimport Receives, SharedReceives
from rpcrdma.verbs.device.verbs_api cimport ibv_wc


cdef enum:
    # What they mean is told in endpoint.pyx.
    OPEN = 0
    DRAINING = 1
    ENDING = 2
    CLOSED = 3
    OPENING = 4


cdef class Reporter(Target):
    cdef Device device
    cdef SendQueue queue
    cdef Receives own
    cdef SharedReceives shared
    cdef object handler
    cdef int state
    cdef dict registrations
    cdef list messages
    cdef list finished
    cdef list failed
    cdef list refused
    cdef list unposted
    cdef list flushed
    cdef bint errored
    cdef object reason
    cdef readonly uint64_t receives

    cdef int note_failure(self, ibv_wc *completion, int index, Chain chain) except -1
    cdef int deliver(self) except -1
    cdef int report(self, list over, bint ok) except -1
    cdef int give_up_work(self) except -1
