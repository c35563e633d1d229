"""Stable storage for calls that are answered natively: an fsync by a worker, shared with whoever waits for the same file's
(contract: ``flushes.pyi``).

Owns :class:`Sync` and :class:`Fsync`; imports the executor, the records and :mod:`nfsd.vfs.syncing`. What has an open
descriptor is synchronised without a step in Python. The rest (what has yet to be opened, links and devices, files in memory)
is the file service's (:meth:`~nfsd.vfs.stable.StableStorage.sync`), whose rules hold here.
"""

from libc.errno cimport EINTR, EINVAL, errno
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from nfsd.vfs.kernel cimport fsync
from nfsd.vfs.lanes cimport job_t
from rpcrdma.rpc.work cimport Errand

from os import strerror

from nfsd.vfs.types import FileType
from rpcrdma.callers import CALLING_HOST
from rpcrdma.firewall import report

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
        if self.found():
            return self.node.inode.sync.share(self)
        if written:
            self.coroutine = self.service.stable.sync_open(self.node, self.opened, self.failures)
        elif self.behind is not None:
            self.coroutine = self.service.stable.settle_names(self.node, self.behind, self.credential)
            self.behind = None
        else:
            self.coroutine = self.service.stable.sync(self.node, self.credential)
        return Errand.start(self)

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

    cdef bint covered(self) except -1:
        cdef Fsync job = <Fsync?>self.node.inode.sync.job
        cdef list owed = self.node.inode.unstable
        if owed:
            job.add(owed)
            self.service.unstable.take(self.node.inode)
        return True

    cdef int told(self, int error) except -1:
        cdef tuple failures = self.node.inode.sync.failures
        if self.failures is not None and failures != self.failures:
            # One that began before the change may have ended after it, and been the one that is told what was lost.
            error = error or failures[1]
        return self.settled(error)

    cdef int settled(self, int error) except -1:
        """This file is; or it is not, with an errno."""
        self.opened = None
        if error:
            self.error = OSError(error, strerror(error))
        elif self.behind is not None:
            self.node, self.behind = self.behind, None
            try:
                return self.start()
            except Exception as failure:
                self.error = failure
        self.ended_already = True
        return self.over()
