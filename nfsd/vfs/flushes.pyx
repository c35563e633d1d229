"""Stable storage for calls that are answered natively: an fsync by a worker, shared with whoever waits for the same file's
(contract: ``flushes.pyi``).

Owns :class:`Sync`, :class:`Fsync`, :class:`Commit` and :class:`Part`; imports the executor, the records and
:mod:`nfsd.vfs.syncing`. What has an open descriptor is synchronised without a step in Python. The rest (what has yet to be opened,
files in memory) is the file service's (:meth:`~nfsd.vfs.stable.StableStorage.sync`), whose rules hold here.

Changes of names and attributes are in the journal of a file system that has one, in their order (:func:`nfsd.vfs.mounts.has_journal`).
Whoever waits for such a change waits for a commit of the journal, which takes those of all others with it, whatever files and
clients they are of (:mod:`nfsd.vfs.journal_files`). Where names in one directory are all that has changed, the directory's fsync
is one, and needs no file. It is not done through a regular file: errors of its data are for those who ask about the data.

So do those who wait for the data of small files. An fsync(2) writes the data, and then has the journal committed and the disk's
cache flushed. For many small files that is most of what it costs. Here all of them are written at once, and one commit is for
all, whose flush of the disk takes their data with it (:attr:`nfsd.vfs.mounts.Mount.flushes_data`). What is large is written by a
job of its own, so that nobody waits for it who has not asked.
"""

from libc.errno cimport EINVAL, EIO, ENOSYS, EPERM, errno
from libc.stdlib cimport free, realloc

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.executor cimport Executor
from nfsd.vfs.kernel cimport (
    AT_EMPTY_PATH, O_CLOEXEC, O_DIRECTORY, STATX_SIZE, SYNC_FILE_RANGE_WAIT_AFTER, SYNC_FILE_RANGE_WAIT_BEFORE,
    SYNC_FILE_RANGE_WRITE, SYS_statx, c_close, c_openat, c_syscall, sync_file_range,
)
from nfsd.vfs.journal_files cimport JournalFile, commit_through, fsync_of
from nfsd.vfs.lanes cimport job_t
from rpcrdma.rpc.work cimport Errand

from os import strerror

from nfsd.vfs.syscalls import XFS_MAGIC as _XFS_MAGIC
from nfsd.vfs.types import FileType
from rpcrdma.callers import CALLING_HOST
from rpcrdma.firewall import report

cdef long XFS_MAGIC = _XFS_MAGIC
cdef object REG = FileType.REG
cdef object DIR = FileType.DIR
cdef enum:
    SMALL = 256 << 10           # octets: a file of no more goes to the disk with others
    TOGETHER = 64               # files of one commit, and who wait for the next one before a file goes by itself
on_fsync = None


cdef bint is_small(int descriptor) noexcept nogil:
    """Whether the file is, as of now."""
    cdef statx_t status
    return c_syscall(SYS_statx, descriptor, b"", AT_EMPTY_PATH, STATX_SIZE, &status) == 0 and status.size <= SMALL


cdef void flush(flush_t *file) noexcept nogil:
    """A file's data and what there is to know of it."""
    cdef int position, error
    for position in range(file.count):
        error = fsync_of(file.descriptors[position])
        # EINVAL: there is no fsync on this file system. (EROFS is no excuse: a file system that an error has made
        # read-only says so, and the data is gone.)
        if error != EINVAL and file.error == 0:
            file.error = error


cdef void synchronise(job_t *job) noexcept nogil:
    """What the worker does for one file."""
    flush(<flush_t *>job.data)


cdef void write_out(flush_t *files) noexcept nogil:
    """The data of all of these, which a commit of the journal has yet to flush from the disk's cache. What has been written
    since, and makes a file large, is not waited for."""
    cdef flush_t *file = files
    cdef int position, error
    while file != NULL:
        sync_file_range(file.descriptors[0], 0, SMALL, SYNC_FILE_RANGE_WRITE)  # begins; errors are told below
        file = file.next
    file = files
    while file != NULL:
        for position in range(file.count):
            error = 0
            if sync_file_range(
                file.descriptors[position], 0, SMALL,
                SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER,
            ) != 0:
                error = errno
            if error == ENOSYS or error == EPERM:  # a container may be forbidden it
                error = fsync_of(file.descriptors[position])
            if file.error == 0:
                file.error = error
        file = file.next


cdef void commit_journal(job_t *job) noexcept nogil:
    """What the worker does for all."""
    cdef commit_t *data = <commit_t *>job.data
    cdef flush_t *one = data.files
    cdef int directory = -1, unopened = 0
    if one != NULL and one.next == NULL and not data.changes and is_small(one.descriptors[0]):
        flush(one)  # alone it needs no other one, and no commit if nothing but data has changed
        return
    write_out(data.files)
    if data.directory >= 0 and data.files == NULL:
        directory = c_openat(data.directory, b".", O_DIRECTORY | O_CLOEXEC)
    if directory >= 0:
        data.error = fsync_of(directory)
        c_close(directory)
        return
    data.error = commit_through(data.file, data.root, &unopened)
    if unopened == 0:
        return
    data.unopened = unopened if data.changes else 0
    while one != NULL:
        flush(one)
        one = one.next


cdef Commit commit_of(Executor executor, object stable, object mount, object done):
    """One that is yet to be submitted. It has a turn of its own among the hosts, as it may be for several."""
    cdef Commit job = Commit.__new__(Commit)
    job.executor, job.lane, job.host = executor, mount.lane, ""
    job.stable, job.mount, job.done = stable, mount, done
    job.data.root, job.data.file = mount.fd, &(<JournalFile?>mount.journal_file).file
    job.parts = []
    for sharer in (<GroupSync?>mount.sync).sharing:
        job.take(sharer)
    return job


def commit(Executor executor not None, stable, mount, done):
    cdef Commit job = commit_of(executor, stable, mount, done)
    executor.submit(job, job.lane)


cdef class Commit(Job):
    def __cinit__(self):
        self.data.directory = -1
        self.job.run = commit_journal
        self.job.data = &self.data
        self.job.syncs = 1

    cdef int take(self, object sharer) except -1:
        """Do it for this one as well, who shares it; not once it has departed."""
        cdef Part part
        cdef Sync sync
        cdef bint was_one = self.is_one()
        if isinstance(sharer, Part):
            part = sharer
            part.fsync.data.next, self.data.files = self.data.files, &part.fsync.data
            part.fsync.within = self
            self.parts.append(part)
        else:
            sync = <Sync>sharer if isinstance(sharer, Sync) else None
            if sync is not None and not self.data.changes and sync.names_in(sync.node):
                self.directory, self.data.directory = sync.node, sync.node.fd
            elif sync is None or not sync.names_in(self.directory):
                self.data.directory = -1
            self.data.changes = True
        if on_fsync is not None and self.is_one() and not was_one:
            on_fsync(self.mount.fd)
        return 0

    cdef bint is_one(self) noexcept:
        """Whether it is one: a file alone has its fsync."""
        return self.data.changes or (self.data.files != NULL and self.data.files.next != NULL)

    cdef int finished(self) except -1:
        cdef int error = self.job.refused or self.data.error
        try:
            if self.data.unopened:  # no room for it, or not for a server that is not root
                self.stable.sync_file_system(self.mount, self.done)
                return 0
            if error:
                self.mount.write_back.failed(error, self.mount.fd)
        except Exception as failure:
            report(self, failure)
            error = error or EIO  # whoever waits must hear of it, and of the next one
        self.done(error)
        return 0


cdef class Fsync(Job):
    def __cinit__(self):
        self.job.run = synchronise
        self.job.data = &self.data
        self.job.syncs = 1
        self.through = []

    def __dealloc__(self):
        free(self.data.descriptors)

    cdef int add(self, list more) except -1:
        """Synchronise through these as well, which stay open until it is over; not once it has departed. All of them: any
        may know of an error that no other one knows of."""
        cdef OpenFile opened
        cdef list new = [opened for opened in more if opened not in self.through]
        cdef int *room = <int *>realloc(self.data.descriptors, (self.data.count + len(new)) * sizeof(int))
        if room == NULL:
            raise MemoryError
        self.data.descriptors = room
        for opened in new:
            if on_fsync is not None:
                on_fsync(opened.fd)
            self.data.descriptors[self.data.count] = opened.fd
            self.data.count += 1
            self.through.append(opened)
        return 0

    cdef int finished(self) except -1:
        cdef int error = self.job.refused or self.data.error
        try:
            if error:
                self.write_back.failed(error, self.data.descriptors[0])
        except Exception as failure:
            report(self, failure)
        return self.group.over(error)


cdef class Part(Sharer):
    cdef Job depart(self, GroupSync group):
        return depart(self.service, self.mount)

    cdef bint covered(self) except -1:
        cdef Commit job = <Commit?>(<GroupSync?>self.mount.sync).job
        if len(job.parts) >= TOGETHER:
            return False
        job.take(self)
        return True

    cdef int told(self, int error) except -1:
        cdef Fsync fsync = self.fsync
        fsync.within = None
        if fsync.data.error:
            error = fsync.data.error
            try:
                fsync.write_back.failed(error, fsync.data.descriptors[0])
            except Exception as failure:
                report(self, failure)
        return fsync.group.over(error)


cdef Commit depart(object service, object mount):
    """Begin a commit of a file system's journal, for all who share it."""
    cdef Commit job = commit_of(service.chains.executor, service.stable, mount, (<GroupSync?>mount.sync).finished)
    job.executor.submit(job, job.lane)
    return job


cdef Sync sync_of(object service, Node node, object credential):
    """The file is to be on stable storage, for whoever this is. See :meth:`~nfsd.vfs.stable.StableStorage.sync`."""
    cdef Sync sync = Sync.__new__(Sync)
    sync.service, sync.node, sync.credential = service, node, credential
    return sync


cdef Sync change_of(object service, Node node, object credential):
    """A change of the file's attributes, or of names in the directory, is to be."""
    cdef Sync sync = sync_of(service, node, credential)
    sync.journal = node.mount.journal and not node.export.late_names
    return sync


cdef Sync sync_through(object service, Node node, OpenFile opened, object failures):
    """What has been written through a descriptor is. See :meth:`~nfsd.vfs.stable.StableStorage.sync_open`."""
    cdef Sync sync = sync_of(service, node, None)
    sync.opened, sync.failures = opened, failures
    return sync


cdef class Sync(Sharer):
    cdef int start(self) except -1:
        cdef bint written = self.opened is not None
        if self.host is None:
            self.host = CALLING_HOST.get()
        if self.journal or self.found():
            return self.group().share(self)
        if written:
            self.coroutine = self.service.stable.sync_open(self.node, self.opened, self.failures)
        elif self.behind is not None:
            self.coroutine = self.service.stable.settle_names(self.node, self.behind, self.credential)
            self.behind = None
        else:
            self.coroutine = self.service.stable.sync(self.node, self.credential)
        return Errand.start(self)

    cdef GroupSync group(self):
        """Those that the same fsync will do for."""
        return <GroupSync?>self.node.mount.sync if self.journal else self.node.inode.sync

    cdef bint found(self) except -1:
        """Whether there is a descriptor for it."""
        cdef OpenFile opened
        if self.node.inline or self.node.export.late_data:
            return False
        if self.node.stored_names is not None:
            return True
        if self.node.fd < 0:
            return False  # without a descriptor it is a store's
        if self.opened is not None:
            return True
        if self.node.type is not REG and self.node.type is not DIR:
            return False
        for opened in self.node.inode.opens.values():
            if opened.writable:
                self.opened = opened
                return True
        if self.node.inode.unstable:
            self.opened = self.node.inode.unstable[0]  # kept, should a removal let go of all of them before it begins
            return True
        self.opened = self.node.inode.opens.get((None, 1, False))
        if self.opened is None:
            return False
        self.opened.used = self.service.open_files.sweep_number
        return True

    cdef Job depart(self, GroupSync group):
        cdef Fsync job
        cdef Part part
        if self.journal:
            return depart(self.service, self.node.mount)
        if self.node.stored_names is not None:
            self.service.stable.sync_stored(self.node, group.finished)
            return None
        job = Fsync.__new__(Fsync)
        job.executor, job.lane, job.host = self.service.chains.executor, self.node.lane, self.host
        job.group, job.write_back = group, self.node.write_back
        job.add(self.node.inode.unstable or [self.opened])
        if self.goes_with_others():
            part = Part.__new__(Part)
            job.gathered = True
            part.fsync, part.service, part.mount, part.host = job, self.service, self.node.mount, self.host
            (<GroupSync?>part.mount.sync).share(part)
        else:
            job.executor.submit(job, job.lane)
        self.service.unstable.take(self.node.inode)
        return job

    cdef bint goes_with_others(self) except -1:
        """Whether the file is written by the next commit of the journal."""
        cdef GroupSync others = <GroupSync?>self.node.mount.sync
        return (
            self.node.type is REG and self.node.mount.flushes_data and len(others.waiting) < TOGETHER
            and is_small(self.opened.fd)
        )

    cdef bint names_in(self, Node directory) except -1:
        """Whether only names in this directory have been changed, and its fsync costs less than a new file: in XFS to open
        it is to wait for whoever changes it."""
        return (
            self.node is directory and self.behind is None and directory.type is DIR
            and <long>directory.mount.kind != XFS_MAGIC
        )

    cdef bint covered(self) except -1:
        cdef Fsync job
        cdef list owed
        if self.journal:
            (<Commit?>self.group().job).take(self)
            return True
        job = <Fsync?>self.node.inode.sync.job
        if job.gathered and (job.within is not None and job.within.departed or not is_small(job.data.descriptors[0])):
            return False
        owed = self.node.inode.unstable
        if owed:
            job.add(owed)
            self.service.unstable.take(self.node.inode)
        return True

    cdef int told(self, int error) except -1:
        cdef tuple failures = self.node.inode.sync.failures  # of its data
        if self.failures is not None and failures != self.failures:
            # One that began before the change may have ended after it, and been the one that is told what was lost.
            error = error or failures[1]
        return self.settled(error)

    cdef int settled(self, int error) except -1:
        """This file is; or it is not, with an errno."""
        self.opened = None
        if error:
            self.error = OSError(error, strerror(error))
        elif self.behind is not None and not self.journal:
            self.node, self.behind = self.behind, None
            try:
                return self.start()
            except Exception as failure:
                self.error = failure
        self.ended_already = True
        return self.over()
