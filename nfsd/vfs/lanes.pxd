"""C declarations of jobs for workers, and of the lanes and queues in which they wait."""

from libc.stdint cimport uint64_t

from nfsd.vfs.identity cimport identity_t, server_identity_t
from rpcrdma.threads cimport pthread_mutex_t, sem_t

cdef enum:
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

ctypedef struct reading_t:      # a pread(2) that may be made together with others
    int fd
    void *octets
    size_t size
    uint64_t offset
    bint made                   # ``result`` is known
    ssize_t result              # octets, or -errno

ctypedef struct job_t:
    job_t *next
    job_t *behind               # to be run next, by the same thread
    void *owner                 # the Job, referenced while it is queued or running
    queue_t *queue
    void (*run)(job_t *job) noexcept nogil      # NULL: its steps are run
    void *data                  # for ``run``
    reading_t *reading          # what ``run`` does first, if others may do it; or NULL
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
    int weight                  # jobs that are taken in one turn
    int turns                   # of those, how many are left in this one

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
    sem_t calls                 # what workers rest on
    lane_t *ready_head
    lane_t *ready_tail
    job_t *finished             # newest first
    int event_fd
    int idle                    # workers that wait and have not been called
    int called                  # those that have been, and have not come yet
    int coming                  # 1: one of these has been woken
    int left                    # 1: there are READs that no thread has been called for
    int stopping
    int queued
    int running
    uint64_t completed
    uint64_t together           # of those, READs made by a thread that had others under way, or could have had
    uint64_t wakeups
    int ended                   # workers that have ended before their time
    server_identity_t *identity

cdef void make_ready(shared_t *shared, lane_t *lane) noexcept nogil
cdef void put_job(shared_t *shared, job_t *job) noexcept nogil
cdef job_t *take_job(shared_t *shared) noexcept nogil
cdef job_t *take_another(shared_t *shared, lane_t *lane) noexcept nogil
cdef bint reads_left(lane_t *lane) noexcept nogil
cdef void job_done(shared_t *shared, queue_t *queue) noexcept nogil
cdef void thread_done(shared_t *shared, lane_t *lane) noexcept nogil
cdef int threads_for(job_t *first) noexcept nogil
