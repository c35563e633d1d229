"""Reading and writing of files by workers, for calls that are answered natively (RFC 1813 sections 3.3.6 and 3.3.7).

Owns :class:`Transfer`; imports the executor, the records and the pipes. A read goes alone, a write in its turn on the file. Each
is one stay on a worker, with the looks around it, and takes no interpreter there.

Writes of one caller through one descriptor that stand behind each other in a train are a *row*, with one look before and one
after all of it. wcc_data is to show a client that somebody else has changed the file (RFC 1813 section 2.6), and between two
writes of its own there is no other client. What a local process does there is taken for the row's own doing, as it is during a
single write; mode and owner are compared (:meth:`nfsd.vfs.records.Inode.changed_between`). It also saves the file system work:
after each look, the next write must move ctime, which ext4 and XFS enter in their journals.

Those of a row whose data is one piece of the file, too, are one system call. ext4, for one, takes as long for each of those as
its caches have put pages together, however little is written.

A file without a descriptor is a store's (:class:`nfsd.vfs.store_mounts.StoreMount`), whose coroutine brings or takes the data.
"""

import asyncio
import errno as errors

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memset

from nfsd.vfs.attributes cimport status_in
from nfsd.vfs.kernel cimport AT_EMPTY_PATH, SYS_statx, c_syscall, pread, pwrite
from nfsd.vfs.executor cimport Executor, Job
from nfsd.vfs.records cimport Credential, Inode, OpenFile
from nfsd.vfs.lanes cimport job_t
from rpcrdma.memory cimport Lease
from rpcrdma.pipes cimport Pipe, pour
from rpcrdma.rpc.work cimport Errand

from nfsd.vfs.syscalls import STATX_MASK as _STATX_MASK
from rpcrdma.callers import CALLING_HOST
from rpcrdma.firewall import contain, report
from rpcrdma.rpc import eager

cdef extern from "sys/uio.h" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t pwritev(int fd, const iovec *parts, int count, long offset)

cdef enum:
    TOGETHER = 64               # writes that one system call may make
    TOGETHER_SIZE = 256 << 10   # octets of these, of which none is added any more

cdef unsigned int STATX_MASK = _STATX_MASK


cdef inline bint look(int fd, statx_t *status) noexcept nogil:
    return c_syscall(SYS_statx, fd, b"", AT_EMPTY_PATH, STATX_MASK, status) == 0


cdef void read(job_t *job) noexcept nogil:
    """What the worker does for a READ; it may have been made with others."""
    cdef transfer_t *data = <transfer_t *>job.data
    cdef reading_t *where = &data.where
    if where.made:
        data.done = where.result
        if data.done < 0:
            data.error = <int>-data.done
    else:
        data.done = pread(where.fd, where.octets, where.size, <long>where.offset)
        while data.done < 0 and errno == EINTR:
            data.done = pread(where.fd, where.octets, where.size, <long>where.offset)
        if data.done < 0:
            data.error = errno
    if not look(where.fd, &data.after) and data.error == 0:
        data.error = errno


cdef void pour_pages(job_t *job) noexcept nogil:
    """What the worker does for a READ whose data stay in the pages they are in."""
    cdef transfer_t *data = <transfer_t *>job.data
    cdef reading_t *where = &data.where
    data.done = pour(where.fd, where.offset, data.feed, where.size, &data.level)
    if data.done < 0:
        data.error = errno
    if not look(where.fd, &data.after) and data.error == 0:
        data.error = errno


cdef void put(transfer_t *data) noexcept nogil:
    """One write."""
    cdef reading_t *where = &data.where
    data.done = pwrite(where.fd, where.octets, where.size, <long>where.offset)
    while data.done < 0 and errno == EINTR:
        data.done = pwrite(where.fd, where.octets, where.size, <long>where.offset)
    if data.done < 0:
        data.error = errno


cdef inline job_t *next_of_row(job_t *job) noexcept nogil:
    """The write behind this one, if it is of the same row; or NULL."""
    cdef job_t *behind = job.behind
    cdef transfer_t *data = <transfer_t *>job.data
    cdef transfer_t *other
    if behind == NULL or behind.run != write or data.writer == NULL:
        return NULL
    other = <transfer_t *>behind.data
    return behind if other.writer == data.writer and other.where.fd == data.where.fd else NULL


cdef job_t *put_together(job_t *job) noexcept nogil:
    """One write, and in the same system call those of its row that go on where the one before them ends in the file.
    Returns the next one of the row, or NULL. Where the kernel has written less than all, each one that it has not begun is
    made alone, and so has an error of its own."""
    cdef iovec parts[TOGETHER]
    cdef transfer_t *data = <transfer_t *>job.data
    cdef uint64_t start = data.where.offset, end = start
    cdef job_t *behind = job
    cdef int count = 0
    cdef ssize_t done = 0
    while behind != NULL and count < TOGETHER and end - start < TOGETHER_SIZE:
        data = <transfer_t *>behind.data
        if data.where.offset != end:
            break
        parts[count].iov_base, parts[count].iov_len = data.where.octets, data.where.size
        end += data.where.size
        count += 1
        behind = next_of_row(behind)
    if count > 1:
        done = pwritev(data.where.fd, parts, count, <long>start)
    while job != behind:
        data = <transfer_t *>job.data
        if done > 0:
            data.done = min(done, <ssize_t>data.where.size)
            done -= data.done
        else:
            put(data)
        job = next_of_row(job)
    return behind


cdef void write(job_t *job) noexcept nogil:
    """What the worker does for a WRITE, and for all of its row."""
    cdef transfer_t *first = <transfer_t *>job.data
    cdef transfer_t *data
    cdef job_t *one = job
    cdef int error = 0
    if first.follows:
        return  # it has been made
    if not look(first.where.fd, &first.before):
        first.error = errno
        return
    while one != NULL:
        one = put_together(one)
    if not look(first.where.fd, &first.after):
        error = errno
    one = job
    while one != NULL:
        data = <transfer_t *>one.data
        data.follows = one != job
        data.before, data.after = first.before, first.after
        if data.error == 0:
            data.error = error
        one = next_of_row(one)


cdef class Transfer(Job):
    def __cinit__(self):
        memset(&self.data, 0, sizeof(self.data))
        self.job.run = read
        self.job.data = &self.data

    def __del__(self):
        if self.sink is not None:
            self.sink.release()
        if self.pipe is not None:
            self.pipe.release()

    cdef int start(self) except -1:
        self.opened.retain()
        try:
            if self.opened.fd < 0:
                return in_store(self)
            if self.data.writes:
                return self.opened.node.inode.serial.join(self)
            return self.executor.submit(self, self.lane)
        except Exception:
            self.opened.release()
            raise

    cdef int finished(self) except -1:
        if self.job.refused:
            self.data.error = self.job.refused
        self.opened.release()
        if self.pipe is not None:
            self.pipe.filled(self.data.where.offset, self.data.level)
        try:
            if self.data.writes:
                self.settle()
        finally:
            self.over()
        return 0

    cdef bint unpoured(self) noexcept:
        """Whether the pages could not be put into the pipe (large ones do not fit): a buffer is to be filled instead."""
        return self.pipe is not None and self.data.error != 0

    def stored(self, result, error):
        """A store has come to this: (octets, the look before a write, the look after it). Its records are told at once,
        before the next change of the file; the call goes on when whoever has begun this is done."""
        if result is not None and not 0 <= result[0] <= self.data.where.size:
            result, error = None, ValueError(f"a store has moved {result[0]} of {self.data.where.size} octets")
        if result is None:
            if not isinstance(error, OSError):
                report(self, error)
            self.data.error = getattr(error, "errno", None) or errors.EIO
        else:
            self.data.done = result[0]
            if result[1] is not None:
                self.data.before = status_in(result[1])[0]
            self.data.after = status_in(result[2])[0]
        asyncio.get_running_loop().call_soon(contain, None, self.finished_in_store)
        if self.data.writes:
            self.settle()

    def finished_in_store(self):
        """The call goes on."""
        self.opened.release()
        self.over()

    cdef int settle(self) except -1:
        """Tell the file's records what a write has done; the first of a row tells for all of it."""
        cdef Inode inode = self.opened.node.inode
        cdef statx_t *before = &self.data.before
        cdef statx_t *after = &self.data.after
        if not self.opened.unstable and (self.data.follows or not self.job.refused):
            self.unstable.add(self.opened)  # of what has failed, too, some may have been written
        if self.data.follows:
            return 0
        if before.mask == 0 or after.mask == 0:
            inode.permissions_changed()  # it is not known what has come before: the kernel is asked again
            return 0
        inode.changed_between(before, after)
        return 0

    cdef int train_finished(self) except -1:
        if self.data.writes:
            self.opened.node.inode.serial.release()
        return 0


cdef int in_store(Transfer transfer) except -1:
    """Have a file's store do it."""
    cdef reading_t *where = &transfer.data.where
    mount = transfer.opened.node.mount
    octets = PyMemoryView_FromMemory(
        <char *>where.octets, where.size, PyBUF_READ if transfer.data.writes else PyBUF_WRITE
    )
    caller = None if transfer.host is None else CALLING_HOST.set(transfer.host)
    try:
        eager.start(
            (mount.write if transfer.data.writes else mount.read)(transfer.opened, where.offset, octets), transfer.stored
        )
    finally:
        if caller is not None:
            CALLING_HOST.reset(caller)
    return 0


cdef int errno_of(Errand errand) except -1:
    """What an errand has come to: 0, or an errno. Raises what is no OSError."""
    error = errand.error
    if error is None:
        return 0
    if isinstance(error, OSError) and error.errno:
        return error.errno
    raise error


cdef Transfer made(Executor executor, OpenFile opened, uint64_t offset, void *octets, size_t size):
    cdef Transfer made = Transfer.__new__(Transfer)
    made.executor, made.lane, made.opened = executor, opened.node.mount.lane, opened
    made.data.where.fd, made.data.where.offset = opened.fd, offset
    made.data.where.octets, made.data.where.size = octets, size
    return made


cdef Transfer reading(Executor executor, OpenFile opened, uint64_t offset, Lease sink, size_t size):
    """To fill the beginning of ``sink``, whose count is taken."""
    cdef Transfer new = made(executor, opened, offset, <void *>sink.address, size)
    new.sink = sink
    if executor.rings and opened.node.caching:
        new.job.reading = &new.data.where
    return new


cdef Transfer pouring(Executor executor, OpenFile opened, uint64_t offset, Pipe pipe, size_t size):
    """To put a file's pages into an empty ``pipe``, which is taken. splice(2) may wait, and has no RWF_NOWAIT."""
    cdef Transfer new = made(executor, opened, offset, NULL, size)
    new.job.run = pour_pages
    new.pipe, new.data.feed = pipe, pipe.feed
    return new


cdef Transfer writing(
    Executor executor, object unstable, OpenFile opened, uint64_t offset, const uint8_t *source, size_t size, object writer
):
    """To write ``source``, which the caller keeps, as whom the file is open for: blocks reserved for root, quotas and the
    clearing of set-user-id bits go by who writes. Writes of one ``writer``, who is one connection's, may go in a row."""
    cdef Transfer new = made(executor, opened, offset, <void *>source, size)
    new.data.writes = True
    new.job.run = write
    new.unstable = unstable
    new.writer, new.data.writer = writer, <void *>writer
    if opened.credential is not None:
        new.job.as_caller = True
        new.job.caller = (<Credential>opened.credential).identity
    return new
