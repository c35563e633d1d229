"""Completion queues, shared by as many queue pairs as surely fit, and what a queue pair is to its device.

Owns :class:`CompletionQueue` and :class:`Target`.
"""

from libc.errno cimport errno
from libc.stdint cimport uint64_t

from rpcrdma.verbs.device.verbs_api cimport ibv_comp_channel, ibv_context, ibv_cq, ibv_create_cq, ibv_destroy_cq, ibv_wc
from rpcrdma.verbs.native cimport NativeEndpoint

from rpcrdma.verbs.device.errors import failure


cdef class Target(NativeEndpoint):
    """A queue pair, as its device sees it."""

    cdef int take(self, ibv_wc *completion) except -1:
        """Note a completion."""
        return 0

    cdef int take_refusal(self, uint64_t identifier, int error) except -1:
        """Note that nothing was posted from the work request of this identifier on."""
        return 0

    cdef int turn(self) except -1:
        """Hand up what was noted, and post what comes of it."""
        return 0


cdef class CompletionQueue:
    """One completion queue."""

    def close(self):
        """Destroy the queue. To be called by the control thread. Idempotent."""
        cdef ibv_cq *cq = self.cq
        self.cq = NULL
        if cq != NULL:
            with nogil:
                ibv_destroy_cq(cq)


cdef CompletionQueue make_completion_queue(
    ibv_context *context, ibv_comp_channel *channel, int capacity, str device
):
    """Create a queue. To be called by the control thread. Raises OSError."""
    cdef CompletionQueue queue = CompletionQueue.__new__(CompletionQueue)
    with nogil:
        queue.cq = ibv_create_cq(context, capacity, <void *>NULL, channel, 0)
    if queue.cq == NULL:
        raise failure("ibv_create_cq", device, errno)
    queue.capacity = queue.cq.cqe
    return queue
