"""Worker threads, and whose job is next.

Owns the threads, the queues and the running of chains; imports identities. No thread of this file ever takes the
interpreter's lock while it works. What Python sees is in :mod:`nfsd.vfs.executor`.

Identity. A thread keeps the identity of its last chain, since a switch and back costs microseconds
(:mod:`nfsd.vfs.identity`). A chain whose caller a thread cannot become ends there, whatever failures it tolerates. A
worker that is nobody in particular any more ends, and another takes its place.

Lanes. Every export is a lane with a bound on the threads it may hold. A lane with work and room stands in the ring of
ready lanes; threads take the ring's head and put it at the tail, so lanes share the threads fairly.

Turns. Within a lane hosts take turns, each with a job (or a train of them): however many one has waiting, another's
next job waits for one of each. What waits for a disk to have written (fsync) is apart, for that may take long. Such jobs
take turns with the others, and leave a quarter of the lane's threads, one at least, to them, if the lane has more than
one. A host has half of the lane's threads for them while anybody waits. Each of this is done in constant time.
"""

import os

from libc.errno cimport EINTR, errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from nfsd.vfs.identity cimport (
    BROKEN,
    identity_become_caller,
    identity_become_own,
    thread_state_t,
)
from nfsd.vfs.kernel cimport SYS_close, c_syscall, c_write
from nfsd.vfs.threads cimport (
    SIG_SETMASK, pthread_attr_destroy, pthread_attr_init, pthread_attr_setstacksize, pthread_attr_t,
    pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_init, pthread_cond_signal, pthread_cond_wait,
    pthread_create, pthread_join, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_unlock, pthread_sigmask, sigfillset, sigset_t,
)

from rpcrdma.log_limits import limited_logger

_log = limited_logger(__name__)


# -- running a chain ----------------------------------------------------------------------------------------------
cdef int resolve_arguments(job_t *job, step_t *step, long *arguments) noexcept nogil:
    """Fill in results of earlier steps; 0 when one of them has none."""
    cdef int position
    cdef step_t *earlier
    for position in range(6):
        arguments[position] = step.arguments[position]
        if step.refers[position] >= 0:
            earlier = &job.steps[step.refers[position]]
            if not earlier.reached or earlier.error != 0:
                return 0
            arguments[position] = earlier.result
    return 1


cdef void run_native(shared_t *shared, thread_state_t *thread, job_t *job) noexcept nogil:
    """Run a job of native code, as whom it is to be run."""
    if shared.identity.can_switch and job.as_caller:
        job.refused = identity_become_caller(shared.identity, thread, &job.caller)
    else:
        job.refused = identity_become_own(shared.identity, thread)
    if job.refused == 0:
        job.run(job)


cdef void run_job(shared_t *shared, thread_state_t *thread, job_t *job) noexcept nogil:
    cdef int index
    cdef long arguments[6]
    cdef step_t *step
    cdef long result
    cdef int switched
    cdef int severed = 0
    for index in range(job.nsteps):
        step = &job.steps[index]
        if job.failed >= 0 and not step.flags & ALWAYS:
            step.error = severed
            continue
        if not resolve_arguments(job, step, arguments):
            # Only after a failure, or when it refers to a step whose failure was tolerated.
            step.error = severed
            continue
        if shared.identity.can_switch and job.as_caller and not step.flags & OWN:
            switched = identity_become_caller(shared.identity, thread, &job.caller)
        else:
            switched = identity_become_own(shared.identity, thread)
        step.reached = 1
        if switched != 0:
            step.result = -1
            # Those behind it as well: where failures are tolerated, a step without an error counts as done.
            step.error = severed = switched
            if job.failed < 0:
                job.failed = index
            continue
        while True:
            result = c_syscall(
                step.number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]
            )
            # close(2): the descriptor is gone even when it was interrupted.
            if result != -1 or errno != EINTR or step.number == SYS_close:
                break
        step.result = result
        step.error = errno if result == -1 else 0
        if step.error != 0 and not step.flags & KEEP_GOING and job.failed < 0:
            job.failed = index


cdef void run_here(shared_t *shared, thread_state_t *thread, job_t *job) noexcept nogil:
    """Run a job on this thread."""
    if job.run != NULL:
        run_native(shared, thread, job)
    else:
        run_job(shared, thread, job)


# -- whose turn it is ---------------------------------------------------------------------------------------------
cdef void enter(ring_t *ring, queue_t *queue) noexcept nogil:
    """Stand at the ring's tail."""
    queue.ring = ring
    queue.before, queue.after = ring.tail, NULL
    if ring.tail == NULL:
        ring.head = queue
    else:
        ring.tail.after = queue
    ring.tail = queue


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


cdef void line_up(queue_t *queue) noexcept nogil:
    """Stand where the queue's next job is to be taken from."""
    cdef lane_t *lane = queue.lane
    if queue.head == NULL:
        return
    if not queue.syncs:
        enter(&lane.calls, queue)
    elif queue.running < host_syncs(lane):
        enter(&lane.syncs, queue)
    else:
        enter(&lane.over, queue)


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
        line_up(queue)
    else:
        queue.tail.next = job
        queue.tail = job
    make_ready(shared, queue.lane)


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
    job = queue.head
    queue.head = job.next
    if queue.head == NULL:
        queue.tail = NULL
    queue.running += 1
    lane.running += 1
    lane.syncing += queue.syncs
    lane.synced_last = queue.syncs
    leave(queue)
    line_up(queue)
    shared.queued -= 1
    shared.running += 1
    make_ready(shared, lane)
    return job


cdef void job_done(shared_t *shared, queue_t *queue) noexcept nogil:
    """One of the queue's jobs is over."""
    cdef lane_t *lane = queue.lane
    queue.running -= 1
    lane.running -= 1
    lane.syncing -= queue.syncs
    shared.running -= 1
    if queue.ring == &lane.over:
        leave(queue)
        line_up(queue)
    make_ready(shared, lane)


# -- threads -----------------------------------------------------------------------------------------------------
cdef void *work(void *argument) noexcept nogil:
    cdef worker_t *worker = <worker_t *>argument
    cdef shared_t *shared = worker.shared
    cdef thread_state_t thread
    cdef job_t *job
    cdef job_t *one_of_it
    cdef int first, made
    cdef uint64_t one = 1
    memset(&thread, 0, sizeof(thread))
    pthread_mutex_lock(&shared.lock)
    while True:
        job = take_job(shared)
        if job == NULL:
            if shared.stopping:
                break
            shared.idle += 1
            pthread_cond_wait(&shared.work, &shared.lock)
            shared.idle -= 1
            continue
        pthread_mutex_unlock(&shared.lock)
        one_of_it, made = job, 0
        while one_of_it != NULL:
            run_here(shared, &thread, one_of_it)
            one_of_it, made = one_of_it.behind, made + 1
        pthread_mutex_lock(&shared.lock)
        job_done(shared, job.queue)
        shared.completed += made
        first = shared.finished == NULL
        job.next = shared.finished
        shared.finished = job
        if first:
            shared.wakeups += 1
            # Not with the lock: the loop wakes at once and wants it, and this thread may not go on for milliseconds.
            pthread_mutex_unlock(&shared.lock)
            c_write(shared.event_fd, &one, 8)
            pthread_mutex_lock(&shared.lock)
        if thread.whose == BROKEN:
            # Under the lock since the chain was finished, or anew: either way the loop will look after it has been told.
            worker.ended = 1
            shared.ended += 1
            c_write(shared.event_fd, &one, 8)
            break
    pthread_mutex_unlock(&shared.lock)
    free(thread.now.groups)
    return NULL


cdef class Workers:
    def __cinit__(self):
        memset(&self.shared, 0, sizeof(self.shared))
        self.shared.event_fd = -1
        pthread_mutex_init(&self.shared.lock, NULL)
        pthread_cond_init(&self.shared.work, NULL)

    def __dealloc__(self):
        # Threads that wait must be gone before what they wait on (pthread_cond_destroy blocks).
        self.stop()
        pthread_cond_destroy(&self.shared.work)
        pthread_mutex_destroy(&self.shared.lock)

    cdef int bound(self, lane_t *lane, int limit) except -1:
        """Let the lane hold so many threads."""
        with nogil:
            pthread_mutex_lock(&self.shared.lock)
            lane.limit = limit
            make_ready(&self.shared, lane)
            pthread_cond_signal(&self.shared.work)
            pthread_mutex_unlock(&self.shared.lock)
        return 0

    cdef int hand_over(self, job_t *first, int count) except -1:
        """Have so many jobs run. Returns how many more threads there is work for."""
        cdef job_t *job
        cdef int wanted
        with nogil:
            pthread_mutex_lock(&self.shared.lock)
            self.shared.queued += count
            while first != NULL:
                job = first
                first = job.next
                put_job(&self.shared, job)
            wanted = count - self.shared.idle
            if count >= self.shared.idle:
                pthread_cond_broadcast(&self.shared.work)
            else:
                while count > 0:
                    pthread_cond_signal(&self.shared.work)
                    count -= 1
            pthread_mutex_unlock(&self.shared.lock)
        return max(0, wanted)

    cdef job_t *take_finished(self) noexcept:
        """The jobs that have finished, the oldest first."""
        cdef job_t *job
        cdef job_t *next_job
        cdef job_t *oldest_first = NULL
        with nogil:
            pthread_mutex_lock(&self.shared.lock)
            job = self.shared.finished
            self.shared.finished = NULL
            pthread_mutex_unlock(&self.shared.lock)
        while job != NULL:
            next_job = job.next
            job.next = oldest_first
            oldest_first = job
            job = next_job
        return oldest_first

    cdef int replace(self) except -1:
        """Others take the place of workers that have ended before their time."""
        cdef int index = 0
        cdef worker_t *worker
        with nogil:
            pthread_mutex_lock(&self.shared.lock)
            self.shared.ended = 0
            pthread_mutex_unlock(&self.shared.lock)
        while index < self.count:
            worker = self.workers[index]
            if not worker.ended:
                index += 1
                continue
            with nogil:
                pthread_join(worker.thread, NULL)
            free(worker)
            self.count -= 1
            self.workers[index] = self.workers[self.count]
            _log.critical("a worker could not become the server again after acting as a caller: another takes its place")
            self.start_thread()
        return 0

    cdef int start_thread(self) except -1:
        cdef pthread_attr_t attributes
        cdef sigset_t everything
        cdef sigset_t before
        cdef int error
        cdef worker_t *worker = <worker_t *>calloc(1, sizeof(worker_t))
        if worker == NULL:
            raise MemoryError
        worker.shared = &self.shared
        # Signals belong to the interpreter's thread.
        sigfillset(&everything)
        pthread_sigmask(SIG_SETMASK, &everything, &before)
        pthread_attr_init(&attributes)
        pthread_attr_setstacksize(&attributes, 256 * 1024)
        error = pthread_create(&worker.thread, &attributes, work, worker)
        pthread_attr_destroy(&attributes)
        pthread_sigmask(SIG_SETMASK, &before, NULL)
        if error == 0:
            self.workers[self.count] = worker
            self.count += 1
            return 0
        free(worker)
        if self.count == 0:
            raise OSError(error, "cannot start a worker thread: " + os.strerror(error))
        return 0

    cdef void stop(self) noexcept:
        """Have every job run that was handed over, and the threads end. Others may be started afterwards."""
        cdef int index
        with nogil:
            pthread_mutex_lock(&self.shared.lock)
            self.shared.stopping = 1
            pthread_cond_broadcast(&self.shared.work)
            pthread_mutex_unlock(&self.shared.lock)
            for index in range(self.count):
                pthread_join(self.workers[index].thread, NULL)
                free(self.workers[index])
        self.count = 0
        self.shared.stopping = 0
