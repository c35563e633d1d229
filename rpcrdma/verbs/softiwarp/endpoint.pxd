"""One connection of the provider."""

from rpcrdma.verbs.native cimport NativeEndpoint
from rpcrdma.verbs.softiwarp.chain cimport Chain
from rpcrdma.verbs.softiwarp.intake cimport Intake
from rpcrdma.verbs.softiwarp.stags cimport StagTable
from rpcrdma.verbs.softiwarp.transmit cimport Transmitter


cdef class Endpoint(NativeEndpoint):
    cdef readonly str peer_address
    cdef readonly int peer_port
    cdef readonly str local_address
    cdef readonly int max_reads
    cdef readonly object handler
    cdef readonly tuple terminate_sent
    cdef readonly tuple terminate_received
    cdef object loop
    cdef object socket
    cdef object on_closed
    cdef object close_timer
    cdef object nudge_timer
    cdef int fd
    cdef Transmitter transmitter
    cdef Intake receiver
    cdef StagTable stags
    cdef int state
    cdef bint started
    cdef bint in_turn           # posts made now are sent before the turn ends
    cdef bint turn_scheduled
    cdef size_t batch               # messages handed over at once
    cdef bint shared                # whether others wait for their turns
    cdef bint unsure            # whether the end may have come, and nobody will tell
    cdef bint writer_added
    cdef str reason
    cdef list refused           # tokens of what was posted after the end
    cdef double close_timeout
    cdef double nudge_after
    cdef object headway

    cdef int post_chain(self, Chain chain) except -1
    cdef int issue(self, Chain chain) except -1
    cdef int begin_turn(self) except -1
    cdef int schedule(self) except -1
    cdef int make_sure(self) except -1
    cdef int deliver(self) except -1
    cdef int flush(self) except -1
    cdef int report(self, list tokens, bint ok) except -1
    cdef int drain(self, str reason) except -1
    cdef int finish(self, str reason, bint reset) except -1
    cdef int discard(self) except -1
