"""C declarations of the worker threads."""

from nfsd.vfs.identity cimport thread_state_t
from nfsd.vfs.lanes cimport job_t, lane_t, queue_t, shared_t
from nfsd.vfs.uring cimport uring_t

from rpcrdma.threads cimport pthread_t

cdef enum:
    MAX_THREADS = 256

ctypedef struct worker_t:
    pthread_t thread
    shared_t *shared
    int ended
    uring_t ring

cdef class Workers:
    cdef shared_t shared
    cdef worker_t *workers[MAX_THREADS]
    cdef readonly int count

    cdef int bound(self, lane_t *lane, int limit) except -1
    cdef int relieve(self, int most) except -1
    cdef int weigh(self, queue_t *calls, queue_t *syncs, int weight) except -1
    cdef int hand_over(self, job_t *first, int count) except -1
    cdef job_t *take_finished(self) noexcept
    cdef int replace(self) except -1
    cdef int start_thread(self) except -1
    cdef bint stop(self, int patience) noexcept


cdef void run_here(shared_t *shared, thread_state_t *thread, job_t *job) noexcept nogil
