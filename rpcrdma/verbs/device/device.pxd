"""What native code may touch of a device."""

from rpcrdma.memory cimport Account, Pool
from rpcrdma.verbs.device.cm cimport Identifier
from rpcrdma.verbs.device.completions cimport CompletionQueue, Target
from rpcrdma.verbs.device.pump cimport Pump
from rpcrdma.verbs.device.registrations cimport Registrations
from rpcrdma.verbs.device.receives cimport SharedReceives
from rpcrdma.verbs.device.verbs_api cimport ibv_comp_channel, ibv_context, ibv_pd


cdef class Device:
    cdef ibv_context *context
    cdef ibv_pd *pd
    cdef ibv_comp_channel *channel
    cdef readonly str name
    cdef readonly bint iwarp
    cdef readonly bint software
    cdef readonly bint can_invalidate
    cdef readonly bint register_sinks
    cdef readonly bint failed
    cdef bint removed
    cdef readonly int max_requests
    cdef readonly int max_segments
    cdef readonly int max_completions
    cdef readonly int max_inbound_reads
    cdef readonly int max_outbound_reads
    cdef Registrations memory
    cdef Account account
    cdef object loop
    cdef object options
    cdef object on_failure
    cdef readonly object control
    cdef Pump pump
    cdef list queues
    cdef dict targets
    cdef readonly int shared_receives
    cdef dict shared
    cdef list due
    cdef bint in_turn
    cdef bint turn_scheduled
    cdef bint watching

    cdef int fail_one(self, object target, object error) except -1
    cdef int schedule(self, Target target) except -1
    cdef int schedule_turn(self) except -1
    cdef int run_due(self) except -1
    cdef int dispatch(self) except -1
    cdef SharedReceives shared_of(self, size_t size)
    cdef CompletionQueue reserve(self, int count)
    cdef int give_back(self, CompletionQueue queue, int count) except -1
    cdef int take_event(self, int kind, size_t queue_pair, size_t completion_queue, int port) except -1
