"""Chains of system calls on native threads (contract: ``executor.pyi``).

Operation. ``Executor.run`` puts a chain on a list; once per turn of the loop the whole list goes to the threads under
one lock. A thread takes a chain, becomes the chain's caller if it is not already, makes the system calls, and puts the
chain on the list of finished ones; the first to find that list empty writes the eventfd, so the loop wakes once for as
many chains as have finished by then. No thread of this file ever takes the interpreter's lock.

Identity. A thread keeps the identity of its last chain, since a switch and back costs microseconds
(:mod:`nfsd.vfs.identity`). A chain whose caller a thread cannot become ends there, whatever failures it tolerates. A
worker that is nobody in particular any more ends, and another takes its place.

Lanes. Every export is a lane with a bound on the threads it may hold. A lane with work and room stands in the ring of
ready lanes; threads take the ring's head and put it at the tail, so lanes share the threads fairly.

Buffer ownership. A chain holds its buffers until it is deallocated; the executor holds the chain until it is finished.
"""

import os

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.buffer cimport PyBuffer_IsContiguous
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from nfsd.vfs.kernel cimport SYS_close, c_close, c_syscall, c_write

from nfsd.vfs.identity cimport (
    BROKEN,
    Switch,
    identity_become_caller,
    identity_become_own,
    server_identity_t,
    thread_state_t,
)
from nfsd.vfs.threads cimport (
    SIG_SETMASK, pthread_attr_destroy, pthread_attr_init, pthread_attr_setstacksize, pthread_attr_t,
    pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_init, pthread_cond_signal, pthread_cond_t,
    pthread_cond_wait, pthread_create, pthread_join, pthread_mutex_destroy, pthread_mutex_init,
    pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, pthread_sigmask, pthread_t, sigfillset, sigset_t,
)

from rpcrdma.rpc.work cimport Work

from rpcrdma.firewall import contain, report
from rpcrdma.log_limits import limited_logger

cdef enum:
    MAX_STEPS = 16
    KEEP_GOING = 1
    ALWAYS = 2
    OWN = 4

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


# -- threads ------------------------------------------------------------------------------------------------------
cdef void make_ready(shared_t *shared, lane_t *lane) noexcept nogil:
    if lane.ready or lane.head == NULL or lane.running >= lane.limit:
        return
    lane.ready = 1
    lane.next_ready = NULL
    if shared.ready_tail == NULL:
        shared.ready_head = lane
    else:
        shared.ready_tail.next_ready = lane
    shared.ready_tail = lane


cdef job_t *take_job(shared_t *shared) noexcept nogil:
    cdef lane_t *lane = shared.ready_head
    cdef job_t *job
    if lane == NULL:
        return NULL
    shared.ready_head = lane.next_ready
    if shared.ready_head == NULL:
        shared.ready_tail = NULL
    lane.ready = 0
    job = lane.head
    lane.head = job.next
    if lane.head == NULL:
        lane.tail = NULL
    lane.running += 1
    shared.queued -= 1
    shared.running += 1
    make_ready(shared, lane)
    return job


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
            if one_of_it.run != NULL:
                run_native(shared, &thread, one_of_it)
            else:
                run_job(shared, &thread, one_of_it)
            one_of_it, made = one_of_it.behind, made + 1
        pthread_mutex_lock(&shared.lock)
        (<lane_t *>job.lane).running -= 1
        make_ready(shared, <lane_t *>job.lane)
        shared.running -= 1
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


# -- what Python sees ---------------------------------------------------------------------------------------------
cdef class Step:
    @property
    def result(self):
        return self.chain.job.steps[self.index].result

    @property
    def error(self):
        return self.chain.job.steps[self.index].error


cdef class Job(Work):
    cdef int start(self) except -1:
        return self.executor.submit(self, self.lane)

    cdef int finished(self) except -1:
        """It has been run; back on the loop's thread."""
        raise NotImplementedError

    cdef int train_finished(self) except -1:
        """All of its train have been ``finished``; told to the first one."""
        return 0


cdef class Chain(Job):
    def __cinit__(self, credential=None):
        cdef Py_ssize_t position
        memset(&self.job, 0, sizeof(self.job))
        self.job.failed = -1
        self.job.steps = self.steps
        self.keep = []
        self.credential = credential
        if credential is None:
            return
        gids = credential.gids
        self.job.as_caller = 1
        self.job.caller.uid = credential.uid
        self.job.caller.gid = credential.gid
        self.job.caller.ngroups = <int>len(gids)
        self.job.caller.groups = <unsigned int *>malloc(max(1, len(gids)) * sizeof(unsigned int))
        if self.job.caller.groups == NULL:
            raise MemoryError
        for position in range(len(gids)):
            self.job.caller.groups[position] = gids[position]

    def __dealloc__(self):
        free(self.job.caller.groups)

    cdef int place(self, int index, int position, object argument) except -1:
        cdef step_t *step = &self.job.steps[index]
        cdef Step earlier
        if argument is None:
            return 0
        if isinstance(argument, Step):
            earlier = <Step>argument
            if earlier.chain is not self:
                raise ValueError("a step of another chain")
            step.refers[position] = earlier.index
        elif isinstance(argument, int):
            if argument < 0:
                step.arguments[position] = <long>argument
            else:
                step.arguments[position] = <long><unsigned long>argument
        elif isinstance(argument, bytes):
            self.keep.append(argument)
            step.arguments[position] = <long>PyBytes_AS_STRING(argument)
        else:
            view = PyMemoryView_FromObject(argument)
            if not PyBuffer_IsContiguous(PyMemoryView_GET_BUFFER(view), b"C"):
                raise BufferError("system calls need contiguous buffers")
            self.keep.append(view)
            step.arguments[position] = <long>PyMemoryView_GET_BUFFER(view).buf
        return 0

    def add(self, long number, *arguments, bint keep_going=False, bint always=False, bint own=False):
        cdef int index = self.job.nsteps
        cdef int position
        cdef step_t *step = &self.job.steps[index]
        if self.started:
            raise RuntimeError("the chain has been run")
        if index == MAX_STEPS or len(arguments) > 6:
            raise ValueError("a chain has at most 16 steps of at most 6 arguments")
        step.number = number
        step.flags = (KEEP_GOING if keep_going else 0) | (ALWAYS if always else 0) | (OWN if own else 0)
        step.result = -1
        for position in range(6):
            step.refers[position] = -1
        for position in range(len(arguments)):
            self.place(index, position, arguments[position])
        self.job.nsteps = index + 1
        return make_step(self, index)

    cdef int finished(self) except -1:
        future, self.future = self.future, None
        self.keep.clear()
        if not future.done():
            future.set_result(None)
        return 0

    @property
    def failed(self):
        return None if self.job.failed < 0 else make_step(self, self.job.failed)

    def check(self):
        cdef int code = self.job.refused
        if self.job.failed >= 0:
            code = self.job.steps[self.job.failed].error
        if code != 0:
            raise OSError(code, os.strerror(code))


cdef Step make_step(Chain chain, int index):
    cdef Step step = Step.__new__(Step)
    step.chain = chain
    step.index = index
    return step


cdef class Executor:
    def __cinit__(self, loop, int threads=16):
        memset(&self.shared, 0, sizeof(self.shared))
        self.shared.event_fd = -1
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError("threads: 1 to 256")
        pthread_mutex_init(&self.shared.lock, NULL)
        pthread_cond_init(&self.shared.work, NULL)
        self.max_threads = threads
        self.loop = loop
        self.pending = []
        self.lanes = {}
        self.switch = Switch()
        Py_INCREF(self.switch)
        self.held = <void *>self.switch
        self.shared.identity = &self.switch.server
        self.shared.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self.shared.event_fd, contain, None, self.drain)

    def __dealloc__(self):
        cdef size_t address
        cdef job_t *job
        if not self.closed:
            # Nobody closed it. Threads that wait must be gone before what they wait on (pthread_cond_destroy blocks).
            self.stop_threads()
            while self.shared.finished != NULL:
                job = self.shared.finished
                self.shared.finished = job.next
                Py_DECREF(<Job>job.owner)
            if self.shared.event_fd >= 0:
                c_close(self.shared.event_fd)
        if self.held != NULL:
            Py_DECREF(<Switch>self.held)
        if self.lanes is not None:
            for address in self.lanes.values():
                free(<void *>address)
        pthread_cond_destroy(&self.shared.work)
        pthread_mutex_destroy(&self.shared.lock)

    @property
    def can_switch(self):
        return bool(self.switch.server.can_switch)

    @property
    def hindrance(self):
        return self.switch.reason

    cdef lane_t *lane(self, object number) except NULL:
        cdef lane_t *lane
        cdef size_t address
        known = self.lanes.get(number)
        if known is not None:
            address = known
            return <lane_t *>address
        lane = <lane_t *>calloc(1, sizeof(lane_t))
        if lane == NULL:
            raise MemoryError
        lane.limit = max(1, self.max_threads // 2)
        self.lanes[number] = <size_t>lane
        return lane

    def set_lane(self, number, int limit):
        cdef lane_t *lane = self.lane(number)
        if limit < 1:
            raise ValueError("a lane needs at least one thread")
        with nogil:
            pthread_mutex_lock(&self.shared.lock)
            lane.limit = limit
            make_ready(&self.shared, lane)
            pthread_cond_signal(&self.shared.work)
            pthread_mutex_unlock(&self.shared.lock)

    def allow_threads(self, int threads):
        self.max_threads = max(self.max_threads, min(threads, MAX_THREADS))

    def run(self, Chain chain not None, lane=0):
        if self.closed:
            raise RuntimeError("the executor is closed")
        if chain.started:
            raise RuntimeError("the chain has been run")
        chain.started = True
        chain.future = future = self.loop.create_future()
        self.submit(chain, lane)
        return future

    cdef int submit(self, Job job, object lane) except -1:
        """Run a job, and those that get behind it in this turn of the loop; then it is told."""
        if self.closed:
            raise RuntimeError("the executor is closed")
        job.job.lane = self.lane(lane)
        if not self.flush_wanted:
            self.loop.call_soon(contain, None, self.flush)
            self.flush_wanted = True
        self.pending.append(job)  # last: a job that could not be submitted is not run
        return 0

    def flush(self):
        """Hand what has been gathered in this turn of the loop to the threads."""
        cdef Job head, one_of_it
        cdef lane_t *lane
        cdef job_t *job
        cdef job_t *first = NULL
        cdef job_t *last = NULL
        cdef int count = 0
        cdef int wanted
        self.flush_wanted = False
        for head in self.pending:
            job = &head.job
            job.owner = <void *>head
            job.next = NULL
            Py_INCREF(head)
            head.departed = True
            one_of_it = head
            while one_of_it.behind is not None:
                one_of_it.job.behind = &one_of_it.behind.job
                one_of_it = one_of_it.behind
            if last == NULL:
                first = job
            else:
                last.next = job
            last = job
            count += 1
        self.pending.clear()
        if count == 0:
            return
        with nogil:
            pthread_mutex_lock(&self.shared.lock)
            self.shared.queued += count
            job = first
            while job != NULL:
                last = job.next
                job.next = NULL
                lane = <lane_t *>job.lane
                if lane.tail == NULL:
                    lane.head = job
                else:
                    lane.tail.next = job
                lane.tail = job
                make_ready(&self.shared, lane)
                job = last
            wanted = count - self.shared.idle
            if count >= self.shared.idle:
                pthread_cond_broadcast(&self.shared.work)
            else:
                while count > 0:
                    pthread_cond_signal(&self.shared.work)
                    count -= 1
            pthread_mutex_unlock(&self.shared.lock)
        while wanted > 0 and self.nthreads < self.max_threads:
            self.start_thread()
            wanted -= 1

    cdef int replace_threads(self) except -1:
        """Others take the place of workers that have ended before their time."""
        cdef int index = 0
        cdef worker_t *worker
        with nogil:
            pthread_mutex_lock(&self.shared.lock)
            self.shared.ended = 0
            pthread_mutex_unlock(&self.shared.lock)
        while index < self.nthreads:
            worker = self.workers[index]
            if not worker.ended:
                index += 1
                continue
            with nogil:
                pthread_join(worker.thread, NULL)
            free(worker)
            self.nthreads -= 1
            self.workers[index] = self.workers[self.nthreads]
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
            self.workers[self.nthreads] = worker
            self.nthreads += 1
            return 0
        free(worker)
        if self.nthreads == 0:
            raise OSError(error, "cannot start a worker thread: " + os.strerror(error))
        return 0

    def drain(self):
        """Tell the jobs that have finished."""
        cdef job_t *job
        cdef job_t *next_job
        cdef job_t *oldest_first = NULL
        cdef Job head, one_of_it, behind
        try:
            os.eventfd_read(self.shared.event_fd)
        except BlockingIOError:
            pass
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
        while oldest_first != NULL:
            one_of_it = head = <Job>oldest_first.owner
            oldest_first = oldest_first.next
            Py_DECREF(head)
            while one_of_it is not None:
                behind, one_of_it.behind = one_of_it.behind, None
                try:
                    one_of_it.finished()
                except Exception as error:
                    report(self.drain, error)  # the others are over as well
                one_of_it = behind
            try:
                head.train_finished()
            except Exception as error:
                report(self.drain, error)
        if self.shared.ended and not self.closed:
            self.replace_threads()

    def run_inline(self, Chain chain not None):
        if chain.started:
            raise RuntimeError("the chain has been run")
        chain.started = True
        if chain.job.run != NULL:
            run_native(&self.shared, &self.switch.loop, &chain.job)
        else:
            run_job(&self.shared, &self.switch.loop, &chain.job)
        chain.keep.clear()
        self.switch.become_own()

    def statistics(self):
        with nogil:
            pthread_mutex_lock(&self.shared.lock)
        try:
            return {
                "threads": self.nthreads,
                "queued": self.shared.queued + len(self.pending),
                "running": self.shared.running,
                "completed": self.shared.completed,
                "wakeups": self.shared.wakeups,
                "credential_switches": self.switch.server.switches,
            }
        finally:
            pthread_mutex_unlock(&self.shared.lock)

    cdef void stop_threads(self) noexcept:
        """Have every chain run that was handed over, and the threads end."""
        cdef int index
        with nogil:
            pthread_mutex_lock(&self.shared.lock)
            self.shared.stopping = 1
            pthread_cond_broadcast(&self.shared.work)
            pthread_mutex_unlock(&self.shared.lock)
            for index in range(self.nthreads):
                pthread_join(self.workers[index].thread, NULL)
                free(self.workers[index])

    def close(self):
        if self.closed:
            return
        self.flush()
        self.closed = True
        self.stop_threads()
        self.drain()
        if not self.loop.is_closed():
            self.loop.remove_reader(self.shared.event_fd)
        os.close(self.shared.event_fd)
