"""C declarations of enciphering and sending, by whom it may be."""

from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t

from rpcrdma.threads cimport pthread_cond_t, pthread_mutex_t, pthread_t, sem_t
from rpcrdma.tls.records cimport direction_t


cdef enum:
    SOURCES = 64
    MOST_THREADS = 4
    # What becomes of a job
    AT_REST = 0
    QUEUED = 1
    RUNNING = 2


cdef struct source_t:
    const uint8_t *base
    size_t length
    int pipe                # where the octets are read from; -1: they are at ``base``
    uint8_t octets[8]       # a few that stand here


cdef struct job_t:
    direction_t *keys
    int fd
    source_t sources[SOURCES]
    size_t count
    size_t index            # what of them comes next
    size_t offset
    size_t left             # octets that have not been enciphered
    size_t enciphered       # octets that have
    uint8_t *room           # for records
    size_t capacity
    size_t start            # of those that have not left
    size_t end
    bint blocked            # the socket takes no more
    int error
    # Of one that is a thread's
    int state
    bint cancelled
    job_t *next
    PyObject *owner


cdef void run(job_t *job) noexcept nogil


cdef class Finished:
    """Whose job it was."""

    cdef int job_done(self) except -1


cdef struct pool_t:
    pthread_mutex_t lock
    sem_t calls                 # of threads that have nothing to do
    pthread_cond_t rest         # of a job that nobody wants any more
    int idle                    # threads that wait and have not been called
    bint stopping
    job_t *first                # those that wait for a thread
    job_t *last
    job_t *finished             # the newest first
    int event_fd


cdef class Sealers:
    cdef pool_t pool
    cdef pthread_t threads[MOST_THREADS]
    cdef int count
    cdef int most

    cdef bint post(self, job_t *job, Finished owner) except -1
    cdef int withdraw(self, job_t *job) except -1
    cdef int start_thread(self) except -1
    cdef int stop(self) except -1
