"""C declarations of the executor: what native operations need to run chains of their own."""

from libc.stdint cimport uint64_t

from nfsd.vfs.identity cimport Switch, identity_t, server_identity_t
from nfsd.vfs.threads cimport pthread_cond_t, pthread_mutex_t, pthread_t
from rpcrdma.rpc.work cimport Work

cdef enum:
    MAX_THREADS = 256

ctypedef struct step_t:
    long number
    long arguments[6]
    signed char refers[6]       # index of the earlier step whose result is the argument, or -1
    unsigned char flags
    unsigned char reached
    long result
    int error

ctypedef struct job_t:
    job_t *next
    job_t *behind               # to be run next, by the same thread
    void *owner                 # the Job, referenced while it is queued or running
    void *lane
    void (*run)(job_t *job) noexcept nogil      # NULL: its steps are run
    void *data                  # for ``run``
    int refused                 # errno of a thread that could not become the caller, and did not run it
    int nsteps
    int failed                  # index of the step that stopped the chain, or -1
    int as_caller
    identity_t caller
    step_t *steps

ctypedef struct lane_t:
    lane_t *next_ready
    int ready                   # whether it stands in the ring
    int limit
    int running
    job_t *head
    job_t *tail

ctypedef struct shared_t:
    pthread_mutex_t lock
    pthread_cond_t work
    lane_t *ready_head
    lane_t *ready_tail
    job_t *finished             # newest first
    int event_fd
    int idle
    int stopping
    int queued
    int running
    uint64_t completed
    uint64_t wakeups
    int ended                   # workers that have ended before their time
    server_identity_t *identity

ctypedef struct worker_t:
    pthread_t thread
    shared_t *shared
    int ended

cdef class Step:
    cdef Chain chain
    cdef int index

cdef class Job(Work):
    """What a worker does."""

    cdef job_t job
    cdef Job behind             # the next of its train
    cdef bint departed          # handed over: nothing joins its train any more
    cdef Executor executor
    cdef object lane

    cdef int finished(self) except -1
    cdef int train_finished(self) except -1


cdef class Chain(Job):
    cdef step_t steps[16]
    cdef list keep              # buffers and bytes whose addresses are arguments
    cdef object credential
    cdef object future
    cdef bint started
    cdef int place(self, int index, int position, object argument) except -1


cdef class Executor:
    cdef shared_t shared
    cdef worker_t *workers[MAX_THREADS]
    cdef int nthreads
    cdef int max_threads
    cdef bint flush_wanted
    cdef bint closed
    cdef object loop
    cdef list pending           # Jobs, each the head of its train
    cdef dict lanes             # lane number -> address of its lane_t
    cdef readonly Switch switch
    cdef void *held             # the same, while there may be threads: garbage collection clears the one above earlier

    cdef int submit(self, Job job, object lane) except -1
    cdef lane_t *lane(self, object number) except NULL
    cdef int replace_threads(self) except -1
    cdef int start_thread(self) except -1
    cdef void stop_threads(self) noexcept
