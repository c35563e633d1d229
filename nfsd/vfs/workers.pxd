"""C declarations of the worker threads, and of what they are given to do."""

from libc.stdint cimport uint64_t

from nfsd.vfs.identity cimport identity_t, server_identity_t, thread_state_t
from nfsd.vfs.threads cimport pthread_cond_t, pthread_mutex_t, pthread_t

cdef enum:
    MAX_THREADS = 256
    # Flags of steps.
    KEEP_GOING = 1
    ALWAYS = 2
    OWN = 4

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
    queue_t *queue
    void (*run)(job_t *job) noexcept nogil      # NULL: its steps are run
    void *data                  # for ``run``
    int refused                 # errno of a thread that could not become the caller, and did not run it
    int nsteps
    int failed                  # index of the step that stopped the chain, or -1
    int as_caller
    int syncs                   # it waits until something is on the disk
    identity_t caller
    step_t *steps

ctypedef struct queue_t:        # of one host's jobs, either those that sync or the others
    lane_t *lane
    ring_t *ring                # where it stands; NULL: it has no job
    queue_t *before
    queue_t *after
    job_t *head
    job_t *tail
    int syncs
    int running

ctypedef struct ring_t:
    queue_t *head
    queue_t *tail

ctypedef struct lane_t:
    lane_t *next_ready
    int ready                   # whether it stands in the ring
    int limit
    int running
    int syncing                 # of those, jobs that sync
    int synced_last             # the last one taken was such a job
    ring_t calls                # hosts' queues of jobs that do not sync
    ring_t syncs                # of those that do, of hosts that have less than their part
    ring_t over                 # of the other hosts

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

cdef class Workers:
    cdef shared_t shared
    cdef worker_t *workers[MAX_THREADS]
    cdef readonly int count

    cdef int bound(self, lane_t *lane, int limit) except -1
    cdef int hand_over(self, job_t *first, int count) except -1
    cdef job_t *take_finished(self) noexcept
    cdef int replace(self) except -1
    cdef int start_thread(self) except -1
    cdef void stop(self) noexcept


cdef void run_here(shared_t *shared, thread_state_t *thread, job_t *job) noexcept nogil
