"""Chains of system calls on native threads (contract: ``executor.pyi``).

Operation. ``Executor.run`` puts a chain on a list; once per turn of the loop the whole list goes to the threads under
one lock (:mod:`nfsd.vfs.workers`, which says whose turn it is there). A thread takes a chain, becomes the chain's
caller if it is not already, makes the system calls, and puts the chain on the list of finished ones; the first to find
that list empty writes the eventfd, so the loop wakes once for as many chains as have finished by then.

Buffer ownership. A chain holds its buffers until it is deallocated; the executor holds the chain until it is finished,
and the queues that workers see as long as a job is in them.
"""

import os

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.buffer cimport PyBuffer_IsContiguous
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from posix.unistd cimport read

from nfsd.vfs.identity cimport Switch
from nfsd.vfs.kernel cimport SYS_fdatasync, SYS_fsync, SYS_syncfs, c_close
from nfsd.vfs.workers cimport MAX_THREADS, Workers, run_here
from nfsd.vfs.lanes cimport ALWAYS, KEEP_GOING, OWN, job_t, step_t

from rpcrdma.rpc.work cimport Work
from rpcrdma.threads cimport pthread_mutex_lock, pthread_mutex_unlock

from rpcrdma.callers import CALLING_HOST
from rpcrdma.firewall import contain, report
from rpcrdma.log_limits import limited_logger

cdef enum:
    MAX_STEPS = 16
    PATIENCE = 10       # seconds for calls that are under way at the end

_log = limited_logger(__name__)


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
        if number == SYS_fsync or number == SYS_fdatasync or number == SYS_syncfs:
            self.job.syncs = 1
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


cdef class Queues:
    pass


cdef class Lane:
    pass


@cython.no_gc_clear
cdef class Executor:
    # no_gc_clear: the threads see what is in here until they have ended.

    def __cinit__(self, loop, int threads=16, bint rings=False):
        self.event_fd = -1
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError("threads: 1 to 256")
        self.workers = Workers()
        self.max_threads = threads
        self.loop = loop
        self.pending = []
        self.lanes = {}
        self.queues = {}
        self.weights = {}
        self.switch = Switch()
        self.rings = rings
        self.workers.shared.identity = &self.switch.server
        self.event_fd = self.workers.shared.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self.event_fd, contain, None, self.drain)

    def __dealloc__(self):
        cdef job_t *job
        cdef void *owner
        if self.closed or self.workers is None:
            return
        # Nobody closed it.
        self.workers.stop(0)
        job = self.workers.take_finished()
        while job != NULL:
            owner = job.owner
            job = job.next
            Py_DECREF(<Job>owner)
        if self.event_fd >= 0:
            c_close(self.event_fd)

    @property
    def can_switch(self):
        return bool(self.switch.server.can_switch)

    @property
    def hindrance(self):
        return self.switch.reason

    cdef Lane lane(self, object number):
        cdef Lane lane = self.lanes.get(number)
        if lane is None:
            lane = Lane.__new__(Lane)
            memset(&lane.lane, 0, sizeof(lane.lane))
            lane.lane.limit = max(1, self.max_threads // 2)
            self.lanes[number] = lane
        return lane

    cdef Queues queues_of(self, object number, object host):
        """A host's queues in a lane, there as long as they have jobs."""
        cdef Queues queues = self.queues.get((number, host))
        if queues is None:
            queues = Queues.__new__(Queues)
            memset(&queues.calls, 0, sizeof(queues.calls))
            memset(&queues.syncs, 0, sizeof(queues.syncs))
            queues.calls.lane = queues.syncs.lane = &self.lane(number).lane
            queues.syncs.syncs = 1
            queues.key = number, host
            queues.calls.weight = queues.syncs.weight = self.weights.get(queues.key, 1) if self.weights else 1
            self.queues[queues.key] = queues
        return queues

    def set_lane(self, number, int limit):
        if limit < 1:
            raise ValueError("a lane needs at least one thread")
        self.workers.bound(&self.lane(number).lane, limit)

    def set_weight(self, number, host, int weight):
        cdef Queues queues
        if weight < 1:
            raise ValueError("a host takes one job in its turn, at least")
        if weight == 1:
            self.weights.pop((number, host), None)
        else:
            self.weights[number, host] = weight
        queues = self.queues.get((number, host))
        if queues is not None:
            self.workers.weigh(&queues.calls, &queues.syncs, weight)

    def weight_of(self, number, host):
        return self.weights.get((number, host), 1)

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
        if job.host is None:
            job.host = CALLING_HOST.get()
        if not self.flush_wanted:
            self.loop.call_soon(contain, None, self.flush)
            self.flush_wanted = True
        job.queues = self.queues_of(lane, job.host)
        job.job.queue = &job.queues.syncs if job.job.syncs else &job.queues.calls
        self.pending.append(job)  # behind all that may fail: a job that could not be submitted is not run
        job.queues.jobs += 1
        return 0

    def flush(self):
        """Hand what has been gathered in this turn of the loop to the threads."""
        cdef Job head, one_of_it
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
        wanted = self.workers.hand_over(first, count)
        while wanted > 0 and self.workers.count < self.max_threads:
            self.workers.start_thread()
            wanted -= 1

    def drain(self):
        """Tell the jobs that have finished."""
        cdef job_t *job
        cdef Job head, one_of_it, behind
        cdef Queues queues
        cdef uint64_t wakeups
        read(self.event_fd, &wakeups, sizeof(wakeups))  # there may be none: the last turn has taken these jobs, too
        job = self.workers.take_finished()
        while job != NULL:
            one_of_it = head = <Job>job.owner
            job = job.next
            Py_DECREF(head)
            queues, head.queues = head.queues, None
            queues.jobs -= 1
            if queues.jobs == 0:
                del self.queues[queues.key]
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
        if self.workers.shared.left and not self.closed:
            self.workers.relieve(self.max_threads)
        if self.workers.shared.ended and not self.closed:
            self.workers.replace()

    def run_inline(self, Chain chain not None):
        if chain.started:
            raise RuntimeError("the chain has been run")
        chain.started = True
        run_here(&self.workers.shared, &self.switch.loop, &chain.job)
        chain.keep.clear()
        self.switch.become_own()

    def statistics(self):
        with nogil:
            pthread_mutex_lock(&self.workers.shared.lock)
        try:
            return {
                "threads": self.workers.count,
                "queued": self.workers.shared.queued + len(self.pending),
                "running": self.workers.shared.running,
                "completed": self.workers.shared.completed,
                "together": self.workers.shared.together,
                "wakeups": self.workers.shared.wakeups,
                "credential_switches": self.switch.server.switches,
            }
        finally:
            pthread_mutex_unlock(&self.workers.shared.lock)

    def close(self, int patience=PATIENCE):
        cdef bint ended = True
        if self.closed:
            return
        while True:
            self.flush()
            ended = self.workers.stop(patience)
            self.drain()
            if not self.pending or not ended:  # trains have departed that were waiting for those
                break
        self.closed = True
        if not self.loop.is_closed():
            self.loop.remove_reader(self.event_fd)
        if ended:
            os.close(self.event_fd)
            return
        Py_INCREF(self)  # threads that do not end refer to it, and to the jobs that they have
        _log.error("%d workers hang in a call to a disk or a cluster: they are left behind", self.workers.count)
