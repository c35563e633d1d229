"""What native code may touch of the Send queue's accounting."""

from libc.stdint cimport uint64_t


cdef class Job:
    cdef readonly object token
    cdef readonly int count
    cdef readonly bint reads
    cdef int taken
    cdef int open_pieces
    cdef bint broken
    cdef Job next


cdef struct Piece:
    void *job
    int first
    int count
    bint done


cdef class JobQueue:
    cdef Job first
    cdef Job last

    cdef int append(self, Job job) except -1
    cdef Job pop(self)


cdef class SendQueue:
    cdef readonly int depth
    cdef readonly int max_reads
    cdef readonly int free
    cdef readonly int free_reads
    cdef readonly uint64_t posted
    cdef readonly uint64_t completed
    cdef JobQueue sends
    cdef JobQueue reads
    cdef bint reads_next
    cdef Piece *ring

    cdef int submit(self, Job job) except -1
    cdef Piece *take(self) noexcept
    cdef int room(self, Job job) noexcept
    cdef int finish(self, uint64_t sequence, bint flushed, list jobs) except -1
    cdef Job complete_one(self)
    cdef int unpost(self, uint64_t first, list jobs) except -1
    cdef Job waiting(self)
