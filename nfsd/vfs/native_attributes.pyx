"""SETATTR for native programs, in memory and on disks.

Owns :class:`NativeAttributes`; imports the records, the changes themselves (:mod:`nfsd.vfs.attribute_changes`) and
:mod:`nfsd.vfs.native_files`, whose rules hold here.
"""

from libc.errno cimport EPERM

from nfsd.vfs.attribute_changes cimport AttributeChange, changes_owner, changes_times
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.native_files cimport UTIME_NOW, UTIME_OMIT, no
from nfsd.vfs.flushes cimport change_of, sync_through
from nfsd.vfs.records cimport OpenFile, given_to_others
from rpcrdma.declined cimport BUSY, FAILED, MAY_WAIT, RARE, RECALL
from rpcrdma.rpc.work cimport Errand


cdef class NativeAttributes(NativeLookup):
    cdef AttributeChange to_set(
        self, Credential credential, Node node, changes_t *changes, int64_t size, OpenFile through=None
    ):
        """A change of mode, owner, times and, where it is not negative, the size: made already if the file is in memory;
        None declines. The size is set ``through`` what the caller has open, or a file that is open for the caller."""
        cdef AttributeChange change
        cdef OpenFile opened = None
        cdef statx_t status
        if given_to_others(node.inode, self.asker) or (node.inode.delegated and size >= 0):
            self.why = RECALL  # or the size is to be set through what the delegation has open
            return None
        if not node.inline and not node.caching:
            self.why = MAY_WAIT if node.fd >= 0 else RARE  # a store has no worker's descriptor
            return None
        if node.inline and node.inode.serial.busy:
            self.why = BUSY
            return None
        if node.export.read_only:
            self.why = RARE
            return None
        if size >= 0:
            if not self.look(node, &status):
                return None
            opened = through
            if opened is None or not opened.writable or opened.node.inode is not node.inode:
                opened = self.opened(node, credential, 2)
            if opened is None:
                return None
        change = self.setting_of(credential, node, changes, size, opened)
        if node.inline:
            if not self.become(credential):
                return None
            change.run_here()
        return change

    cdef AttributeChange setting_of(
        self, Credential credential, Node node, changes_t *changes, int64_t size, OpenFile opened
    ):
        """As :meth:`to_set`, to be waited for. ``opened``: for the caller, if the size is to be set."""
        cdef AttributeChange change = AttributeChange.__new__(AttributeChange)
        change.executor, change.lane, change.node = self.tables.executor, node.lane, node
        change.credential, change.failures = credential, node.inode.sync.failures
        change.job.as_caller, change.job.caller = True, credential.identity
        change.data.file, change.data.proc = node.fd, self.tables.proc_fd
        change.data.changes, change.data.size = changes[0], size
        change.data.used = node.inode.used_count != 0
        if opened is not None:
            change.opened, change.data.writing = opened, opened.fd
        return change

    cdef bint have_set(self, AttributeChange change) except -1:
        """Take note of what has been done. False: it has failed, or part of it; ``why`` is RARE if it is the times alone
        that could not be set, and may yet be, by who may write the file."""
        cdef changes_t *changes = &change.data.changes
        self.why = FAILED
        if change.data.unequal:
            return False
        if change.data.error:
            # utimensat(2) lets whoever may write set both times to now, but not one alone; NFS clients send one alone.
            if change.data.touching and change.data.error == EPERM and (
                no_clients(changes.times[0].nanoseconds) and no_clients(changes.times[1].nanoseconds)
            ):
                self.why = RARE
            return False
        self.observe(change.node, &change.data.before, False)
        self.observe(change.node, &change.data.after, True)
        return True

    cdef Errand to_settle_attributes(self, AttributeChange change):
        """What has been set on a disk is to be on stable storage; None: nothing has."""
        cdef changes_t *changes = &change.data.changes
        if change.opened is not None:
            return sync_through(self.service, change.node, change.opened, change.failures)
        if changes_owner(changes) or changes_times(changes) or changes.mode >= 0:
            return change_of(self.service, change.node, change.credential)
        return None


cdef inline bint no_clients(long nanoseconds) noexcept nogil:
    """Whether a time is not the client's own."""
    return nanoseconds == UTIME_NOW or nanoseconds == UTIME_OMIT
