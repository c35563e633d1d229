"""Whose job is next among those that wait for worker threads.

Owns the lanes' queues; imports nothing. Everything here is done under the workers' lock, and in constant time.

Lanes. Every export is a lane with a bound on the threads it may hold. A lane with work and room stands in the ring of
ready lanes; threads take the ring's head and put it at the tail, so lanes share the threads fairly.

Turns. Within a lane hosts take turns, each with a job (or a train of them): however many one has waiting, another's
next job waits for one of each. What waits for a disk to have written (fsync) is apart, for that may take long. Such jobs
take turns with the others, and leave a quarter of the lane's threads, one at least, to them, if the lane has more than
one. A host has half of the lane's threads for them while anybody waits.

Weights. In its turn a host has as many jobs taken as its weight says, as far as it has them waiting (weighted round
robin). It stays at its ring's head for so long, so a turn costs what it did.

Batches. A thread that has taken a READ goes on taking those whose turn it is in the same lane, as long as no other lane
waits for a thread: the kernel works on all of them at the same time (:mod:`nfsd.vfs.uring`). They count as one thread.
"""


cdef void enter(ring_t *ring, queue_t *queue) noexcept nogil:
    """Stand at the ring's tail."""
    queue.ring = ring
    queue.before, queue.after = ring.tail, NULL
    if ring.tail == NULL:
        ring.head = queue
    else:
        ring.tail.after = queue
    ring.tail = queue


cdef void enter_first(ring_t *ring, queue_t *queue) noexcept nogil:
    """Stand at the ring's head."""
    queue.ring = ring
    queue.before, queue.after = NULL, ring.head
    if ring.head == NULL:
        ring.tail = queue
    else:
        ring.head.before = queue
    ring.head = queue


cdef void leave(queue_t *queue) noexcept nogil:
    """Stand in no ring any more."""
    cdef ring_t *ring = queue.ring
    if queue.before == NULL:
        ring.head = queue.after
    else:
        queue.before.after = queue.after
    if queue.after == NULL:
        ring.tail = queue.before
    else:
        queue.after.before = queue.before
    queue.ring = NULL


cdef int host_syncs(lane_t *lane) noexcept nogil:
    """Jobs that sync of one host that may run while others wait."""
    return max(1, lane.limit // 2)


cdef int may_sync(lane_t *lane) noexcept nogil:
    """Whether another job that syncs may run in the lane."""
    return lane.syncing < max(1, lane.limit - max(1, lane.limit // 4))


cdef ring_t *place_of(queue_t *queue) noexcept nogil:
    """The ring that the queue's next job is to be taken from; NULL: it has none."""
    cdef lane_t *lane = queue.lane
    if queue.head == NULL:
        return NULL
    if not queue.syncs:
        return &lane.calls
    return &lane.syncs if queue.running < host_syncs(lane) else &lane.over


cdef void line_up(queue_t *queue) noexcept nogil:
    """Stand where the queue's next job is to be taken from."""
    cdef ring_t *ring = place_of(queue)
    if ring == NULL:
        return
    if queue.turns > 0 and ring == &queue.lane.syncs:
        enter_first(ring, queue)  # its turn was not over when it had its part of the threads
        return
    if queue.turns <= 0 and ring != &queue.lane.over:
        queue.turns = queue.weight
    enter(ring, queue)


cdef queue_t *next_queue(lane_t *lane) noexcept nogil:
    """Whose turn in the lane it is; NULL: nobody's."""
    cdef queue_t *syncs = lane.syncs.head if may_sync(lane) else NULL
    if syncs != NULL and not (lane.synced_last and lane.calls.head != NULL):
        return syncs
    if lane.calls.head != NULL:
        return lane.calls.head
    return lane.over.head if may_sync(lane) else NULL


cdef void make_ready(shared_t *shared, lane_t *lane) noexcept nogil:
    if lane.ready or lane.running >= lane.limit or next_queue(lane) == NULL:
        return
    lane.ready = 1
    lane.next_ready = NULL
    if shared.ready_tail == NULL:
        shared.ready_head = lane
    else:
        shared.ready_tail.next_ready = lane
    shared.ready_tail = lane


cdef void put_job(shared_t *shared, job_t *job) noexcept nogil:
    cdef queue_t *queue = job.queue
    job.next = NULL
    if queue.tail == NULL:
        queue.head = queue.tail = job
        queue.turns = 0
        line_up(queue)
    else:
        queue.tail.next = job
        queue.tail = job
    make_ready(shared, queue.lane)


cdef job_t *take_head(shared_t *shared, queue_t *queue) noexcept nogil:
    """The first job of a queue whose turn it is."""
    cdef lane_t *lane = queue.lane
    cdef job_t *job = queue.head
    queue.head = job.next
    if queue.head == NULL:
        queue.tail = NULL
    queue.running += 1
    lane.syncing += queue.syncs
    lane.synced_last = queue.syncs
    queue.turns -= 1
    if queue.turns <= 0 or place_of(queue) != queue.ring:
        leave(queue)
        line_up(queue)
    shared.queued -= 1
    shared.running += 1
    return job


cdef job_t *take_job(shared_t *shared) noexcept nogil:
    cdef lane_t *lane
    cdef queue_t *queue = NULL
    cdef job_t *job
    while queue == NULL:
        lane = shared.ready_head
        if lane == NULL:
            return NULL
        shared.ready_head = lane.next_ready
        if shared.ready_head == NULL:
            shared.ready_tail = NULL
        lane.ready = 0
        queue = next_queue(lane)  # NULL, if its bound has become smaller
    lane.running += 1
    job = take_head(shared, queue)
    make_ready(shared, lane)
    return job


cdef job_t *take_another(shared_t *shared, lane_t *lane) noexcept nogil:
    """The lane's next job, if it may be worked on together with others and nobody else waits for a thread; or NULL."""
    cdef queue_t *queue = next_queue(lane)
    if queue == NULL or queue.head.reading == NULL:
        return NULL
    if shared.ready_head != NULL and (shared.ready_head != lane or lane.next_ready != NULL):
        return NULL
    return take_head(shared, queue)


cdef bint reads_left(lane_t *lane) noexcept nogil:
    """Whether the lane's next job is a READ, and another thread could take it."""
    cdef queue_t *queue = next_queue(lane) if lane.ready else NULL
    return queue != NULL and queue.head.reading != NULL


cdef void job_done(shared_t *shared, queue_t *queue) noexcept nogil:
    """One of the queue's jobs is over. Nobody but its host sees the queue afterwards."""
    cdef lane_t *lane = queue.lane
    queue.running -= 1
    lane.syncing -= queue.syncs
    shared.running -= 1
    if queue.ring == &lane.over:
        leave(queue)
        line_up(queue)


cdef void thread_done(shared_t *shared, lane_t *lane) noexcept nogil:
    """A thread is free of the lane again."""
    lane.running -= 1
    make_ready(shared, lane)


cdef int threads_for(job_t *first) noexcept nogil:
    """How many threads these jobs keep busy: one all READs that stand behind each other, of a lane."""
    cdef int wanted = 0
    cdef job_t *before = NULL
    while first != NULL:
        if before == NULL or before.reading == NULL or first.reading == NULL or before.queue.lane != first.queue.lane:
            wanted += 1
        before, first = first, first.next
    return wanted
