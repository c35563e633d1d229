"""C declarations of data on its way between memory and a file, on a worker."""

from libc.stdint cimport int64_t, uint8_t, uint64_t

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.executor cimport Executor, Job
from nfsd.vfs.flushes cimport Sync  # for programs
from nfsd.vfs.records cimport Node, OpenFile
from nfsd.vfs.lanes cimport job_t, reading_t
from nfsd.vfs.stored_files cimport stored_t
from rpcrdma.memory cimport Lease
from rpcrdma.pipes cimport Pipe
from rpcrdma.rpc.work cimport Errand

ctypedef struct transfer_t:
    bint writes
    bint follows                # a write made in a row with the one in front of it: the looks are those around the row
    void *writer                # whose write it is; NULL: it is nobody's who could have another
    reading_t where             # of a write, too
    stored_t *stored            # the file, if it is a store's that workers read and write; or NULL
    bint as_root                # of a write
    const long long *ctime      # of a write to such a file: what is known of it; or NULL
    int64_t previous            # or this, as a write in front of it has left the file; -1
    bint checked                # nothing is written unless the file has that ctime: the caller does not hold it open
    const unsigned long long *epoch     # and unless this is
    unsigned long long in_epoch         # the one in which it was found that the caller may
    bint unwritten              # it had not
    int feed                    # the end of the pipe that a read goes to
    size_t level                # octets in it
    ssize_t done                # octets
    int error                   # errno, or 0
    statx_t before              # of a write
    statx_t after


cdef class Transfer(Job):
    cdef Node node              # as the call named the file
    cdef OpenFile opened
    cdef transfer_t data
    cdef Lease sink             # of a read; None: it goes to a pipe
    cdef Pipe pipe              # likewise
    cdef bint held              # the caller has it open: whatever its permissions are now
    cdef object unstable        # of the service: :class:`nfsd.vfs.unstable.UnstableWrites`
    cdef object failures        # of fsync, before a write
    cdef bytes verifier         # likewise
    cdef object writer          # the caller of a write

    cdef bint unpoured(self) noexcept
    cdef int let_go_in_store(self) except -1
    cdef int settle(self) except -1


cdef int errno_of(Errand errand) except -1
cdef Transfer reading(Executor executor, OpenFile opened, uint64_t offset, Lease sink, size_t size)
cdef Transfer pouring(Executor executor, OpenFile opened, uint64_t offset, Pipe pipe, size_t size)
cdef Transfer writing(
    Executor executor, object unstable, OpenFile opened, uint64_t offset, const uint8_t *source, size_t size, object writer
)
