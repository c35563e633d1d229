"""Stable storage for calls that are answered natively: an fsync by a worker, shared with whoever waits for the same file's
(contract: ``flushes.pyi``).

Owns :class:`Sync`, :class:`Fsync` and :class:`Commit`; imports the executor, the records and :mod:`nfsd.vfs.syncing`. What has
an open descriptor is synchronised without a step in Python. The rest (what has yet to be opened, files in memory) is the file
service's (:meth:`~nfsd.vfs.stable.StableStorage.sync`), whose rules hold here.

Changes of names and attributes are in the journal of a file system that has one, in their order (:func:`nfsd.vfs.mounts.has_journal`).
Whoever waits for such a change waits for a commit of the journal, which takes those of all others with it, whatever files and
clients they are of. The fsync of a file without a name, made now, is one. Where names in one directory are all that has changed, that of
the directory is, for less. It is not done through a regular file: errors of its data are for those who ask about the data.
"""

from libc.errno cimport EINTR, EINVAL, EIO, errno
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from nfsd.vfs.executor cimport Executor
from nfsd.vfs.kernel cimport O_CLOEXEC, O_DIRECTORY, O_EXCL, O_TMPFILE, O_WRONLY, c_close, c_openat, fsync
from nfsd.vfs.lanes cimport job_t
from rpcrdma.rpc.work cimport Errand

from os import strerror

from nfsd.vfs.mounts import journalled
from nfsd.vfs.syscalls import XFS_MAGIC as _XFS_MAGIC
from nfsd.vfs.types import FileType
from rpcrdma.callers import CALLING_HOST
from rpcrdma.firewall import report

cdef long XFS_MAGIC = _XFS_MAGIC
cdef object REG = FileType.REG
cdef object DIR = FileType.DIR
on_fsync = None


cdef void synchronise(job_t *job) noexcept nogil:
    """What the worker does."""
    cdef flush_t *data = <flush_t *>job.data
    cdef int position, error
    for position in range(data.count):
        error = EINTR
        while error == EINTR:
            error = errno if fsync(data.descriptors[position]) != 0 else 0
        # EINVAL: there is no fsync on this file system. (EROFS is no excuse: a file system that an error has made
        # read-only says so, and the data is gone.)
        if error != EINVAL and data.error == 0:
            data.error = error


cdef void commit_journal(job_t *job) noexcept nogil:
    """What the worker does for all."""
    cdef commit_t *data = <commit_t *>job.data
    cdef int file = -1
    if data.directory >= 0:
        file = c_openat(data.directory, b".", O_DIRECTORY | O_CLOEXEC)
    if file < 0:
        file = c_openat(data.root, b".", O_TMPFILE | O_WRONLY | O_EXCL | O_CLOEXEC, 0)
    if file < 0:
        data.unopened = errno
        return
    data.error = EINTR
    while data.error == EINTR:
        data.error = errno if fsync(file) != 0 else 0
    c_close(file)


cdef Commit commit_of(Executor executor, object stable, object mount, object done):
    """One that is yet to be submitted. It has a turn of its own among the hosts, as it may be for several."""
    cdef Commit job = Commit.__new__(Commit)
    job.executor, job.lane, job.host = executor, mount.lane, ""
    job.stable, job.mount, job.done = stable, mount, done
    job.data.root = mount.fd
    if on_fsync is not None:
        on_fsync(mount.fd)
    return job


def commit(Executor executor not None, stable, mount, done):
    cdef Commit job = commit_of(executor, stable, mount, done)
    executor.submit(job, job.lane)


cdef class Commit(Job):
    def __cinit__(self):
        memset(&self.data, 0, sizeof(self.data))
        self.data.directory = -1
        self.job.run = commit_journal
        self.job.data = &self.data
        self.job.syncs = 1

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
        memset(&self.data, 0, sizeof(self.data))
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


cdef Sync sync_of(object service, Node node, object credential):
    """The file is to be on stable storage, for whoever this is. See :meth:`~nfsd.vfs.stable.StableStorage.sync`."""
    cdef Sync sync = Sync.__new__(Sync)
    sync.service, sync.node, sync.credential = service, node, credential
    return sync


cdef Sync change_of(object service, Node node, object credential):
    """A change of the file's attributes, or of names in the directory, is to be."""
    cdef Sync sync = sync_of(service, node, credential)
    sync.journal = journalled(node.mount) and not node.export.asynchronous
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
        if self.node.inline or self.node.export.asynchronous:
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
        if self.journal:
            return self.commit(group)
        if self.node.stored_names is not None:
            self.service.stable.sync_stored(self.node, group.finished)
            return None
        job = Fsync.__new__(Fsync)
        job.executor, job.lane, job.host = self.service.chains.executor, self.node.lane, self.host
        job.group, job.write_back = group, self.node.write_back
        job.add(self.node.inode.unstable or [self.opened])
        job.executor.submit(job, job.lane)
        self.service.unstable.take(self.node.inode)
        return job

    cdef Commit commit(self, GroupSync group):
        """Begin a commit of the journal."""
        cdef Commit job = commit_of(self.service.chains.executor, self.service.stable, self.node.mount, group.finished)
        for sharer in group.sharing:
            if not isinstance(sharer, Sync) or not (<Sync>sharer).names_in(self.node):
                break
        else:
            job.directory, job.data.directory = self.node, self.node.fd
        job.executor.submit(job, job.lane)
        return job

    cdef bint names_in(self, Node directory) except -1:
        """Whether only names in this directory have been changed, and its fsync costs less than a new file: in XFS to open
        it is to wait for whoever changes it."""
        return (
            self.node is directory and self.behind is None and directory.type is DIR
            and <long>directory.mount.kind != XFS_MAGIC
        )

    cdef bint covered(self) except -1:
        cdef Commit commit
        cdef Fsync job
        cdef list owed
        if self.journal:
            commit = <Commit?>self.group().job
            if not self.names_in(commit.directory):
                commit.data.directory = -1
            return True
        job = <Fsync?>self.node.inode.sync.job
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
