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

A file without a descriptor is a store's. Workers read and write that like any other (:mod:`nfsd.vfs.stored_files`), or its
store's coroutine brings or takes the data (:class:`nfsd.vfs.store_mounts.StoreMount`).
"""

import asyncio
import errno as errors

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint8_t, uint64_t

from nfsd.vfs.attributes cimport status_in
from nfsd.vfs.kernel cimport AT_EMPTY_PATH, SYS_statx, c_syscall, pread
from nfsd.vfs.executor cimport Executor, Job
from nfsd.vfs.records cimport Credential, Inode, OpenFile
from nfsd.vfs.lanes cimport job_t
from nfsd.vfs.stored_files cimport StoredFile, iovec
from rpcrdma.memory cimport Lease
from rpcrdma.pipes cimport Pipe, pour
from rpcrdma.rpc.work cimport Errand

from nfsd.vfs.syscalls import STATX_MASK as _STATX_MASK
from rpcrdma.callers import CALLING_HOST
from rpcrdma.firewall import contain, report
from rpcrdma.rpc import eager

cdef extern from "sys/uio.h" nogil:
    ssize_t pwritev(int fd, const iovec *parts, int count, long offset)

cdef enum:
    TOGETHER = 64               # writes that one system call may make
    TOGETHER_SIZE = 256 << 10   # octets of these, of which none is added any more

cdef unsigned int STATX_MASK = _STATX_MASK


# -- one step, on a file of the kernel's or of a store: octets, or a negative errno; of a look 0, or an errno ------
cdef int look(transfer_t *data, statx_t *status) noexcept nogil:
    if data.stored != NULL:
        return data.stored.look(data.stored, status)
    return 0 if c_syscall(SYS_statx, data.where.fd, b"", AT_EMPTY_PATH, STATX_MASK, status) == 0 else errno


cdef int look_written(transfer_t *data, statx_t *status) noexcept nogil:
    """A look after a write. The kernel has cleared what it had to."""
    if data.stored != NULL and not data.as_root:
        return data.stored.look_written(data.stored, status)
    return look(data, status)


cdef ssize_t get(transfer_t *data) noexcept nogil:
    cdef reading_t *where = &data.where
    cdef ssize_t done
    if data.stored != NULL:
        return data.stored.read(data.stored, where.offset, where.octets, where.size)
    done = pread(where.fd, where.octets, where.size, <long>where.offset)
    while done < 0 and errno == EINTR:
        done = pread(where.fd, where.octets, where.size, <long>where.offset)
    return done if done >= 0 else -errno


cdef ssize_t put(transfer_t *data, const iovec *parts, int count) noexcept nogil:
    cdef reading_t *where = &data.where
    cdef ssize_t done
    if data.stored != NULL:
        return data.stored.write(data.stored, where.offset, parts, count)
    done = pwritev(where.fd, parts, count, <long>where.offset)
    while done < 0 and errno == EINTR:
        done = pwritev(where.fd, parts, count, <long>where.offset)
    return done if done >= 0 else -errno


# -- what the worker does ------------------------------------------------------------------------------------------
cdef void read(job_t *job) noexcept nogil:
    """A READ; it may have been made with others."""
    cdef transfer_t *data = <transfer_t *>job.data
    cdef int error
    data.done = data.where.result if data.where.made else get(data)
    if data.done < 0:
        data.error = <int>-data.done
    error = look(data, &data.after)
    if data.error == 0:
        data.error = error


cdef void pour_pages(job_t *job) noexcept nogil:
    """A READ whose data stay in the pages they are in."""
    cdef transfer_t *data = <transfer_t *>job.data
    cdef reading_t *where = &data.where
    cdef int error
    data.done = pour(where.fd, where.offset, data.feed, where.size, &data.level)
    if data.done < 0:
        data.error = errno
    error = look(data, &data.after)
    if data.error == 0:
        data.error = error


cdef void put_alone(transfer_t *data) noexcept nogil:
    """One write."""
    cdef iovec part
    part.iov_base, part.iov_len = data.where.octets, data.where.size
    data.done = put(data, &part, 1)
    if data.done < 0:
        data.error = <int>-data.done


cdef inline job_t *next_of_row(job_t *job) noexcept nogil:
    """The write behind this one, if it is of the same row; or NULL."""
    cdef job_t *behind = job.behind
    cdef transfer_t *data = <transfer_t *>job.data
    cdef transfer_t *other
    if behind == NULL or behind.run != write or data.writer == NULL:
        return NULL
    other = <transfer_t *>behind.data
    if other.writer != data.writer or other.where.fd != data.where.fd or other.stored != data.stored:
        return NULL
    return behind if other.checked == data.checked else NULL


cdef job_t *put_together(job_t *job) noexcept nogil:
    """One write, and in the same call those of its row that go on where the one before them ends in the file. Returns the
    next one of the row, or NULL. Where less than all has been written, each one that has not been begun is made alone, and
    so has an error of its own."""
    cdef iovec parts[TOGETHER]
    cdef transfer_t *data = <transfer_t *>job.data
    cdef transfer_t *first = data
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
        done = put(first, parts, count)
    while job != behind:
        data = <transfer_t *>job.data
        if done > 0:
            data.done = min(done, <ssize_t>data.where.size)
            done -= data.done
        else:
            put_alone(data)
        job = next_of_row(job)
    return behind


cdef inline int64_t ctime_in(const statx_t *status) noexcept nogil:
    return status.ctime.seconds * 1000000000 + status.ctime.nanoseconds


cdef void tell_next(job_t *behind, int64_t ctime) noexcept nogil:
    """The first of the next row in the train is to find the file with this ctime."""
    if behind != NULL and behind.run == write:
        (<transfer_t *>behind.data).previous = ctime


cdef void leave_unwritten(job_t *job, int64_t expected) noexcept nogil:
    """A row that must not be written: somebody may have taken the permission away."""
    cdef transfer_t *first = <transfer_t *>job.data
    cdef transfer_t *data
    cdef job_t *last = job
    while job != NULL:
        data = <transfer_t *>job.data
        data.unwritten = True
        data.before = data.after = first.before
        last, job = job, next_of_row(job)
    tell_next(last.behind, expected)


cdef void write(job_t *job) noexcept nogil:
    """A WRITE, and all of its row."""
    cdef transfer_t *first = <transfer_t *>job.data
    cdef transfer_t *data
    cdef job_t *one = job
    cdef job_t *last = job
    cdef int64_t expected = first.previous
    cdef bint is_known = True
    cdef int error
    if first.follows or first.unwritten:
        return  # it has been made with those in front of it, or not
    first.error = look(first, &first.before)
    if first.error != 0:
        return
    if first.ctime != NULL:
        if expected < 0:
            expected = first.ctime[0]  # as long as a train is under way, what is known of the file is how it was before
        is_known = ctime_in(&first.before) == expected
    if first.checked and not (is_known and first.epoch[0] == first.in_epoch):
        leave_unwritten(job, expected)
        return
    while one != NULL:
        one = put_together(one)
    error = look_written(first, &first.after)
    one = job
    while one != NULL:
        data = <transfer_t *>one.data
        data.follows = one != job
        data.before, data.after = first.before, first.after
        if data.error == 0:
            data.error = error
        last, one = one, next_of_row(one)
    # Whoever holds the file open writes whatever has become of it. Those behind must still notice.
    tell_next(last.behind, ctime_in(&first.after) if is_known else expected)


cdef class Transfer(Job):
    def __cinit__(self):
        self.data.previous = -1
        self.job.run = read
        self.job.data = &self.data

    def __del__(self):
        if self.sink is not None:
            self.sink.release()
        if self.pipe is not None:
            self.pipe.release()

    cdef int start(self) except -1:
        self.opened.keep()
        try:
            if self.opened.fd < 0 and self.data.stored == NULL:
                return in_store(self)
            if self.data.stored != NULL and not (<StoredFile>self.opened.stored).hold():
                raise OSError(errors.EBADF, "the store's file has been closed")
            try:
                if self.data.writes:
                    return self.opened.node.inode.serial.join(self)
                return self.executor.submit(self, self.lane)
            except Exception:
                self.let_go_in_store()
                raise
        except Exception:
            self.opened.let_go()
            raise

    cdef int let_go_in_store(self) except -1:
        return 0 if self.data.stored == NULL else (<StoredFile>self.opened.stored).let_go()

    cdef int finished(self) except -1:
        if self.job.refused:
            self.data.error = self.job.refused
        self.let_go_in_store()
        self.opened.let_go()
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
        self.opened.let_go()
        self.over()

    cdef int settle(self) except -1:
        """Tell the file's records what a write has done; the first of a row tells for all of it."""
        cdef Inode inode = self.opened.node.inode
        cdef statx_t *before = &self.data.before
        cdef statx_t *after = &self.data.after
        if not self.opened.unstable and not self.data.unwritten and (self.data.follows or not self.job.refused):
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
    made.executor, made.lane, made.opened = executor, opened.node.lane, opened
    made.data.where.fd, made.data.where.offset = opened.fd, offset
    made.data.where.octets, made.data.where.size = octets, size
    if opened.fd < 0 and isinstance(opened.stored, StoredFile):
        made.data.stored = (<StoredFile>opened.stored).body
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
    new.data.as_root = opened.credential is None or (<Credential>opened.credential).identity.uid == 0
    if opened.credential is not None and new.data.stored == NULL:
        new.job.as_caller = True
        new.job.caller = (<Credential>opened.credential).identity
    return new
