"""Worker threads, and what they do.

Owns the threads and the running of chains; imports identities, lanes and rings. No thread of this file ever takes the
interpreter's lock while it works. What Python sees is in :mod:`nfsd.vfs.executor`; whose job is next, in
:mod:`nfsd.vfs.lanes`.

Identity. A thread keeps the identity of its last chain, since a switch and back costs microseconds
(:mod:`nfsd.vfs.identity`). A chain whose caller a thread cannot become ends there, whatever failures it tolerates. A
worker that is nobody in particular any more ends, and another takes its place.

READs of a disk are made many at a time, by one thread with a ring (:mod:`nfsd.vfs.uring`). Each is told when it is done,
however long the others take.
"""

import os

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from nfsd.vfs.identity cimport (
    BROKEN,
    identity_become_caller,
    identity_become_own,
    thread_state_t,
)
from nfsd.vfs.kernel cimport SYS_close, c_syscall, c_write
from nfsd.vfs.lanes cimport (
    ALWAYS, KEEP_GOING, OWN, job_done, job_t, lane_t, make_ready, put_job, queue_t, reading_t, reads_left, shared_t, step_t,
    take_another, take_job, thread_done, threads_for,
)
from nfsd.vfs.uring cimport DEPTH, uring_close, uring_done, uring_enter, uring_open, uring_read, uring_t, uring_take_back

from rpcrdma.threads cimport (
    SIG_SETMASK, pthread_attr_destroy, pthread_attr_init, pthread_attr_setstacksize, pthread_attr_t,
    pthread_create, pthread_join, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_unlock, pthread_sigmask, pthread_timedjoin_np, sem_destroy, sem_init, sem_post, sem_wait, sigfillset, sigset_t,
)

from rpcrdma.log_limits import limited_logger

cdef enum:
    STACK = 1 << 20     # a store's client library may be what they call
_log = limited_logger(__name__)


# -- calling threads ----------------------------------------------------------------------------------------------
# Threads are called at once, one for each job, and come one behind the other: who has come and taken a job wakes the next
# one. Jobs that take less time than a thread takes to wake are done by few threads then, and one that waits for a disk
# keeps no other waiting. A thread is woken without the lock, or the thread would wake to wait for that.
cdef void call(shared_t *shared, int count) noexcept nogil:
    """Have so many of the idle threads come, or all of them. A thread that has been called is idle no more, though it may take a
    while to come: another job needs another thread. Called with the lock; see :func:`to_wake`."""
    count = min(count, shared.idle)
    shared.idle -= count
    shared.called += count


cdef bint to_wake(shared_t *shared) noexcept nogil:
    """Whether to signal one of the threads that have been called, once the lock is given up."""
    if shared.called == 0 or shared.coming:
        return False
    shared.coming = 1
    return True


cdef void call_off(shared_t *shared, int count) noexcept nogil:
    """Let so many of the called threads that do not wake yet, or all of them, be idle again: others do their work."""
    count = min(count, shared.called - shared.coming)
    shared.called -= count
    shared.idle += count


cdef void call_for_reads(shared_t *shared, lane_t *lane) noexcept nogil:
    """Have another thread come for READs of the lane that this one does not take with its own: they had one thread for all
    of them, and this one may now wait for as long as a disk does. Called with the lock; see :func:`to_wake`."""
    cdef uint64_t one = 1
    if not reads_left(lane):
        return
    if shared.idle > 0:
        call(shared, 1)
    elif not shared.left:
        shared.left = 1
        c_write(shared.event_fd, &one, 8)  # the loop starts one


cdef void call_for_others(shared_t *shared, job_t *taken) noexcept nogil:
    """Have another thread come for what is ready besides the job ``taken``, if none has been called: whoever takes the job
    of one that is called off may have made room for a further one, in the lane that it has left. READs of its own lane a
    thread takes itself. Called with the lock; see :func:`to_wake`."""
    cdef lane_t *lane = taken.queue.lane
    if shared.ready_head == NULL or shared.called > 0:
        return
    if taken.reading == NULL or shared.ready_head != lane or not reads_left(lane):
        call(shared, 1)


cdef void let_go_on(shared_t *shared) noexcept nogil:
    """Give up the lock, and wake who is to come. A semaphore never has the loop wait. A condition variable may: glibc lets
    nobody signal further waiters until those it has signalled before have had a processor, and that takes milliseconds
    where processors are scarce."""
    cdef bint wakes = to_wake(shared)
    pthread_mutex_unlock(&shared.lock)
    if wakes:
        sem_post(&shared.calls)


cdef void rest(shared_t *shared) noexcept nogil:
    """Wait until it is this thread's turn to come. Called with the lock, when there is no job."""
    call_off(shared, shared.called)
    shared.idle += 1
    while not shared.coming and not shared.stopping:
        pthread_mutex_unlock(&shared.lock)
        sem_wait(&shared.calls)  # woken for a call that another thread has come for, or by a signal, it waits again
        pthread_mutex_lock(&shared.lock)
    if shared.coming:
        shared.coming = 0
        shared.called -= 1
    else:
        call_off(shared, shared.called)
        shared.idle -= 1


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


# -- READs, many at a time ----------------------------------------------------------------------------------------
cdef void put_in(uring_t *ring, job_t *job) noexcept nogil:
    cdef reading_t *reading = job.reading
    uring_read(ring, reading.fd, reading.octets, <unsigned int>reading.size, reading.offset, job)


cdef void give_up(shared_t *shared, thread_state_t *thread, uring_t *ring, job_t **done) noexcept nogil:
    """The kernel takes no more: what it has not begun is done in the other way."""
    cdef job_t *job = <job_t *>uring_take_back(ring)
    while job != NULL:
        run_here(shared, thread, job)
        job.next, done[0] = done[0], job
        job = <job_t *>uring_take_back(ring)


cdef int gather(shared_t *shared, thread_state_t *thread, uring_t *ring, job_t **done) noexcept nogil:
    """Wait until some READs are done, and take them, the newest first. Returns how many."""
    cdef int count = 0, result
    cdef job_t *job
    cdef int error = uring_enter(ring, 1)
    if error != 0 and error != EINTR:
        give_up(shared, thread, ring, done)
        job = done[0]
        while job != NULL:
            count, job = count + 1, job.next
    while True:
        job = <job_t *>uring_done(ring, &result)
        if job == NULL:
            return count
        # What was interrupted, or has to be asked for in another way, is.
        job.reading.made = result >= 0 or (result != -EINTR and result != -EAGAIN)
        job.reading.result = result
        run_here(shared, thread, job)
        job.next, done[0] = done[0], job
        count += 1


cdef void read_together(shared_t *shared, thread_state_t *thread, uring_t *ring, job_t *job) noexcept nogil:
    """Make this READ, and others of its lane with it, until none is left. Comes back with the lock."""
    cdef lane_t *lane = job.queue.lane
    cdef job_t *done
    cdef int made, under_way = 0
    pthread_mutex_lock(&shared.lock)
    while job != NULL or under_way > 0:
        while job != NULL:
            put_in(ring, job)
            under_way += 1
            job = take_another(shared, lane) if under_way < DEPTH else NULL
        call_for_reads(shared, lane)
        let_go_on(shared)
        done = NULL
        made = gather(shared, thread, ring, &done)
        under_way -= made
        pthread_mutex_lock(&shared.lock)
        shared.together += made
        told(shared, done, NULL)
        job = take_another(shared, lane) if under_way < DEPTH else NULL
    thread_done(shared, lane)


# -- threads -----------------------------------------------------------------------------------------------------
cdef void told(shared_t *shared, job_t *newest, lane_t *left) noexcept nogil:
    """These are done, and the thread has left this lane, if it has. Called with the lock, and gives it up in between."""
    cdef int first = shared.finished == NULL
    cdef job_t *job = newest
    cdef job_t *oldest = NULL
    cdef job_t *one_of_it
    cdef uint64_t one = 1
    if job == NULL:
        return
    while job != NULL:
        oldest = job
        one_of_it = job
        while one_of_it != NULL:
            shared.completed += 1
            one_of_it = one_of_it.behind
        job_done(shared, job.queue)
        job = job.next
    if left != NULL:
        thread_done(shared, left)
    oldest.next = shared.finished
    shared.finished = newest
    if first:
        shared.wakeups += 1
        # Not with the lock: the loop wakes at once and wants it, and this thread may not go on for milliseconds.
        pthread_mutex_unlock(&shared.lock)
        c_write(shared.event_fd, &one, 8)
        pthread_mutex_lock(&shared.lock)


cdef bint may_read_together(shared_t *shared, worker_t *worker, thread_state_t *thread) noexcept nogil:
    """Whether this thread has a ring, and is who makes READs."""
    if worker.ring.opened < 0:
        return False
    if worker.ring.opened == 0 and uring_open(&worker.ring) != 0:
        return False
    return identity_become_own(shared.identity, thread) == 0


cdef void *work(void *argument) noexcept nogil:
    cdef worker_t *worker = <worker_t *>argument
    cdef shared_t *shared = worker.shared
    cdef thread_state_t thread
    cdef job_t *job
    cdef job_t *one_of_it
    cdef bint expected = True  # a job has been handed over for it
    cdef uint64_t one = 1
    memset(&thread, 0, sizeof(thread))
    pthread_mutex_lock(&shared.lock)
    while True:
        job = take_job(shared)
        if job == NULL:
            if shared.stopping:
                break
            rest(shared)
            expected = True
            continue
        if not expected:
            call_off(shared, 1)
        expected = False
        call_for_others(shared, job)
        let_go_on(shared)
        if job.reading != NULL and may_read_together(shared, worker, &thread):
            read_together(shared, &thread, &worker.ring, job)
        else:
            if job.reading != NULL:
                pthread_mutex_lock(&shared.lock)
                call_for_reads(shared, job.queue.lane)
                let_go_on(shared)
            one_of_it = job
            while one_of_it != NULL:
                run_here(shared, &thread, one_of_it)
                one_of_it = one_of_it.behind
            job.next = NULL
            pthread_mutex_lock(&shared.lock)
            told(shared, job, job.queue.lane)
        if thread.whose == BROKEN:
            # Under the lock since the chain was finished, or anew: either way the loop will look after it has been told.
            worker.ended = 1
            shared.ended += 1
            c_write(shared.event_fd, &one, 8)
            break
    pthread_mutex_unlock(&shared.lock)
    uring_close(&worker.ring)
    free(thread.now.groups)
    return NULL


cdef class Workers:
    def __cinit__(self):
        memset(&self.shared, 0, sizeof(self.shared))
        self.shared.event_fd = -1
        pthread_mutex_init(&self.shared.lock, NULL)
        sem_init(&self.shared.calls, 0, 0)

    def __dealloc__(self):
        # Threads that wait must be gone before what they wait on.
        self.stop(0)
        sem_destroy(&self.shared.calls)
        pthread_mutex_destroy(&self.shared.lock)

    cdef int bound(self, lane_t *lane, int limit) except -1:
        """Let the lane hold so many threads."""
        with nogil:
            pthread_mutex_lock(&self.shared.lock)
            lane.limit = limit
            make_ready(&self.shared, lane)
            call(&self.shared, 1)
            let_go_on(&self.shared)
        return 0

    cdef int weigh(self, queue_t *calls, queue_t *syncs, int weight) except -1:
        """Have so many jobs of the queues' host taken in each of its turns."""
        with nogil:
            pthread_mutex_lock(&self.shared.lock)
            calls.weight = syncs.weight = weight
            pthread_mutex_unlock(&self.shared.lock)
        return 0

    cdef int hand_over(self, job_t *first, int count) except -1:
        """Have so many jobs run. Returns how many more threads there is work for."""
        cdef job_t *job
        cdef int wanted
        with nogil:
            pthread_mutex_lock(&self.shared.lock)
            self.shared.queued += count
            count = threads_for(first)
            while first != NULL:
                job = first
                first = job.next
                put_job(&self.shared, job)
            wanted = count - self.shared.idle
            call(&self.shared, count)
            let_go_on(&self.shared)
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

    cdef int relieve(self, int most) except -1:
        """Start a thread, unless there are ``most``, for READs that another one has left."""
        cdef int left
        with nogil:
            pthread_mutex_lock(&self.shared.lock)
            left = self.shared.left
            self.shared.left = 0
            pthread_mutex_unlock(&self.shared.lock)
        if left and self.count < most:
            self.start_thread()
        return 0

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
        pthread_attr_setstacksize(&attributes, STACK)
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

    cdef bint stop(self, int patience) noexcept:
        """Have every job run that was handed over, and the threads end; whether they have in so many seconds (0: however
        long it takes). Others may be started when they have."""
        cdef int ended, index = 0
        cdef timespec until
        with nogil:
            pthread_mutex_lock(&self.shared.lock)
            self.shared.stopping = 1
            pthread_mutex_unlock(&self.shared.lock)
            for index in range(self.count):
                sem_post(&self.shared.calls)
            clock_gettime(CLOCK_REALTIME, &until)
            until.tv_sec += patience
            index = 0
            while index < self.count:
                if patience:
                    ended = pthread_timedjoin_np(self.workers[index].thread, NULL, &until) == 0
                else:
                    ended = pthread_join(self.workers[index].thread, NULL) == 0
                if ended:
                    free(self.workers[index])
                    self.count -= 1
                    self.workers[index] = self.workers[self.count]
                index += not ended
        if self.count:
            return False
        self.shared.stopping = 0
        return True
