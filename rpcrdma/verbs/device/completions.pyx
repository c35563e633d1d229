"""Completion queues: shared by as many queue pairs as surely fit, taken in batches.

Owns :class:`CompletionQueue` and what a queue pair is to it (:class:`Target`).

A wake-up
    The queue is polled until it is empty, what came is handed to the queue pairs in batches, and what they post in
    answer is posted; then the queue is armed, and polled once more, since a completion that came in between raises no
    event. After ``ROUNDS`` of this the loop gets its turn.
"""

from libc.errno cimport errno

from rpcrdma.verbs.device.verbs_api cimport (
    ibv_comp_channel,
    ibv_context,
    ibv_cq,
    ibv_create_cq,
    ibv_destroy_cq,
    ibv_poll_cq,
    ibv_req_notify_cq,
    ibv_wc,
)

from rpcrdma.verbs.device.errors import failure


cdef enum:
    BATCH = 64
    ROUNDS = 16


cdef class Target:
    """A queue pair, as its completion queue sees it."""

    cdef int take(self, ibv_wc *completion) except -1:
        """Note a completion."""
        return 0

    cdef int turn(self) except -1:
        """Hand up what was noted, and post what comes of it."""
        return 0


cdef class CompletionQueue:
    """One completion queue."""

    def __cinit__(self):
        self.targets = {}
        self.touched = []

    cdef int collect(self, int batches) except -1:
        """Poll, and note what came with its target. Returns how many came. Raises OSError."""
        cdef ibv_wc completions[BATCH]
        cdef Target target = None
        cdef object found
        cdef int i, got
        cdef int total = 0
        cdef unsigned int number = 0
        while batches > 0:
            batches -= 1
            got = ibv_poll_cq(self.cq, BATCH, completions)
            if got < 0:
                raise failure("ibv_poll_cq", self.device, errno)
            for i in range(got):
                if target is None or completions[i].qp_num != number:
                    number = completions[i].qp_num
                    found = self.targets.get(number)
                    target = <Target>found if found is not None else None
                    if target is None:
                        continue  # of a queue pair that is gone
                    if not target.touched:
                        target.touched = True
                        self.touched.append(target)
                target.take(completions + i)
            total += got
            if got < BATCH:
                break
        return total

    cdef int deliver(self) except -1:
        """Give every queue pair that something came for its turn."""
        cdef Target target
        cdef list touched
        if self.touched:
            touched = self.touched
            self.touched = []
            for target in touched:
                target.touched = False
                target.turn()
        return 0

    cdef int drain(self) except -1:
        """Take all there is. Returns 1 when there may be more, 0 when the next completion raises an event."""
        cdef int round
        cdef int error
        self.deliver()
        for round in range(ROUNDS):
            if self.collect(4):
                self.deliver()
            elif self.armed:
                return 0
            else:
                error = ibv_req_notify_cq(self.cq, 0)
                if error:
                    raise failure("ibv_req_notify_cq", self.device, error)
                self.armed = True
        return 1

    cdef int close(self) except -1:
        """Destroy the queue."""
        cdef ibv_cq *cq = self.cq
        self.cq = NULL
        if cq != NULL:
            with nogil:
                ibv_destroy_cq(cq)
        return 0


cdef CompletionQueue make_completion_queue(
    ibv_context *context, ibv_comp_channel *channel, int capacity, str device
):
    """Create and arm a queue. Raises OSError."""
    cdef CompletionQueue queue = CompletionQueue.__new__(CompletionQueue)
    cdef int error
    queue.device = device
    with nogil:
        queue.cq = ibv_create_cq(context, capacity, <void *>NULL, channel, 0)
    if queue.cq == NULL:
        raise failure("ibv_create_cq", device, errno)
    queue.capacity = queue.cq.cqe
    error = ibv_req_notify_cq(queue.cq, 0)
    if error:
        queue.close()
        raise failure("ibv_req_notify_cq", device, error)
    queue.armed = True
    return queue
