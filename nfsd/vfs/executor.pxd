"""C declarations of the executor: what native operations need to run chains of their own."""

from nfsd.vfs.identity cimport Switch
from nfsd.vfs.lanes cimport job_t, lane_t, queue_t, step_t
from nfsd.vfs.workers cimport Workers
from rpcrdma.rpc.work cimport Work


cdef class Queues:
    """One host's jobs in one lane."""

    cdef queue_t calls
    cdef queue_t syncs
    cdef object key
    cdef Py_ssize_t jobs        # that are not over


cdef class Lane:
    cdef lane_t lane


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
    cdef Queues queues

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
    cdef Workers workers
    cdef int max_threads
    cdef bint flush_wanted
    cdef bint closed
    cdef object loop
    cdef int event_fd
    cdef list pending           # Jobs, each the head of its train
    cdef dict lanes             # Lanes by number
    cdef dict queues            # Queues by lane's number and host
    cdef dict weights           # of hosts, where they are not 1, likewise
    cdef readonly Switch switch
    cdef readonly bint rings    # workers make READs of disks many at a time

    cdef int submit(self, Job job, object lane) except -1
    cdef Lane lane(self, object number)
    cdef Queues queues_of(self, object number, object host)
