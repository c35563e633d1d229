"""Changes of one file's attributes, each as one stay of a thread that acts as the caller (RFC 1813 section 3.3.2).

Owns :class:`AttributeChange`; imports the executor and the records. In memory it is made on the loop's thread, on a disk
by a worker, in its turn on the file; either way by the same function.
"""

from libc.errno cimport EBADF, ESTALE, errno

from nfsd.vfs.native_files cimport ctime_of, stat_of
from nfsd.vfs.lanes cimport job_t
from nfsd.vfs.kernel cimport (
    AT_EMPTY_PATH, SYS_fchmodat, SYS_fchmodat2, SYS_fchownat, SYS_utimensat, c_ftruncate, c_syscall,
)
from nfsd.vfs.records cimport Inode

cdef extern from "stdio.h" nogil:
    int snprintf(char *sink, size_t size, const char *format, ...)


cdef bint sets_modes = c_syscall(SYS_fchmodat2, -1, b"", 0, AT_EMPTY_PATH) != 0 and errno == EBADF
# The kernel sets the mode of an O_PATH descriptor's file: since Linux 6.6, unless a container forbids it.


cdef bint set_mode(int file, int proc, int mode) noexcept nogil:
    """Set the mode of such a file; False: there is an errno. To find it by way of /proc takes longer than to set its mode."""
    cdef char link[16]
    if sets_modes:
        return c_syscall(SYS_fchmodat2, file, b"", mode, AT_EMPTY_PATH) == 0
    snprintf(link, sizeof(link), b"%d", file)
    return c_syscall(SYS_fchmodat, proc, link, mode) == 0


cdef int apply_changes(int file, int proc, const changes_t *changes, int *made, bint *touching) noexcept nogil:
    """Set owner, mode and times of an O_PATH descriptor's file; 0 or an errno. ``made``: how much has been done. The owner
    comes first: changing it clears set-user-id bits that the mode may set again."""
    made[0] = 0
    touching[0] = False
    if changes_owner(changes):
        if c_syscall(SYS_fchownat, file, b"", changes.uid, changes.gid, AT_EMPTY_PATH) != 0:
            return errno
        made[0] += 1
    if changes.mode >= 0:
        if not set_mode(file, proc, changes.mode):
            return errno
        made[0] += 1
    if changes_times(changes):
        if c_syscall(SYS_utimensat, file, b"", changes.times, AT_EMPTY_PATH) != 0:
            touching[0] = True
            return errno
        made[0] += 1
    return 0


cdef void run(job_t *job) noexcept nogil:
    """What the thread does."""
    cdef attribute_change_t *data = <attribute_change_t *>job.data
    cdef int made
    if not stat_of(data.file, &data.before):
        data.error = errno
        return
    if data.before.nlink == 0 and not data.used:
        data.error = ESTALE  # as every look at it says
        return
    data.unequal = data.changes.guarded and data.changes.ctime != ctime_of(&data.before)
    if data.unequal:
        return
    if data.size >= 0:
        if c_ftruncate(data.writing, data.size) != 0:
            data.error = errno
            return
        data.made = 1
    data.error = apply_changes(data.file, data.proc, &data.changes, &made, &data.touching)
    data.made += made
    if data.error == 0 and not stat_of(data.file, &data.after):
        data.error = errno


cdef class AttributeChange(Job):
    def __cinit__(self):
        self.job.run = run
        self.job.data = &self.data

    cdef int start(self) except -1:
        if self.opened is not None:
            self.opened.keep()
        try:
            return self.node.inode.serial.join(self)
        except Exception:
            if self.opened is not None:
                self.opened.let_go()
            raise

    cdef int run_here(self) except -1:
        """Run on the loop's thread, which acts as the caller."""
        run(&self.job)
        return self.settle()

    cdef int finished(self) except -1:
        if self.job.refused:
            self.data.error = self.job.refused
        if self.opened is not None:
            self.opened.let_go()
        try:
            self.settle()
        finally:
            self.over()
        return 0

    cdef int settle(self) except -1:
        """Tell the file's record what has been done."""
        cdef Inode inode = self.node.inode
        cdef attribute_change_t *data = &self.data
        if data.unequal or (data.error and data.made == 0 and data.before.mask != 0):
            # Nothing has been done; but of what has come before in this turn the record must know.
            inode.wrote(ctime_of(&data.before), ctime_of(&data.before))
        elif data.error:
            inode.permissions_changed()  # part of it has been done
        elif changes_owner(&data.changes) or data.changes.mode >= 0:
            inode.wrote(ctime_of(&data.before), ctime_of(&data.after))
            inode.permissions_changed()
        else:
            inode.changed_between(&data.before, &data.after)
        return 0

    cdef int train_finished(self) except -1:
        self.node.inode.serial.release()
        return 0
