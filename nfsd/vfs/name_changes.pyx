"""CREATE of a new file and REMOVE, as one stay of a thread that acts as the caller (RFC 1813 sections 3.3.8 and 3.3.12).

Owns :class:`NameChange`; imports the executor and the records. What is in memory is changed on the loop's thread, what is
on a disk by a worker, in its turn on the directory; either way by the same functions.

A change that fails leaves nothing behind. After a success nothing fails but what a local process undoes at the same
moment (the new name leads elsewhere): that counts as a failure, since nothing is left of what was done.
"""

from libc.errno cimport EMFILE, ENFILE, ESTALE, errno
from libc.string cimport memcmp, memset

from nfsd.vfs.attributes cimport same_permissions, statx_t
from nfsd.vfs.direct cimport ctime_of, how_t, stat_of
from nfsd.vfs.executor cimport Job, job_t
from nfsd.vfs.kernel cimport (
    AT_EMPTY_PATH, SYS_name_to_handle_at, SYS_openat2, SYS_utimensat, c_close, c_syscall, unlinkat,
)
from nfsd.vfs.records cimport Inode

from nfsd.vfs.creation import CREATION_FLAGS as _CREATION_FLAGS
from nfsd.vfs.syscalls import O_PATH as _O_PATH, RESOLVE_COMPONENT as _RESOLVE_COMPONENT

cdef how_t CREATION
CREATION.flags, CREATION.mode, CREATION.resolve = _CREATION_FLAGS, 0, _RESOLVE_COMPONENT
cdef how_t NAMING
NAMING.flags, NAMING.mode, NAMING.resolve = _O_PATH, 0, _RESOLVE_COMPONENT


cdef bint handle_at(int directory, const char *path, int flags, kernel_handle_t *kernel) noexcept nogil:
    """The kernel's handle of a file, of which it does not matter where it is mounted."""
    cdef int mount
    kernel.size = sizeof(kernel.octets)
    return c_syscall(SYS_name_to_handle_at, directory, path, kernel, &mount, flags) == 0


cdef inline bint same(kernel_handle_t *one, kernel_handle_t *other) noexcept nogil:
    return one.size == other.size and one.kind == other.kind and memcmp(one.octets, other.octets, one.size) == 0


cdef int name_it(name_change_t *change) noexcept nogil:
    """Find the file that has just been made by its name, as whoever is to have it will; 0 or an errno."""
    cdef kernel_handle_t made
    if not handle_at(change.descriptor, b"", AT_EMPTY_PATH, &made):
        return errno
    change.naming = <int>c_syscall(SYS_openat2, change.directory, change.path, &NAMING, sizeof(NAMING))
    if change.naming < 0 and (errno == EMFILE or errno == ENFILE):
        # The last descriptor: the file can do without being open.
        c_close(change.descriptor)
        change.descriptor = -1
        change.short_of_descriptors = True
        change.naming = <int>c_syscall(SYS_openat2, change.directory, change.path, &NAMING, sizeof(NAMING))
    if change.naming < 0:
        return errno
    if not handle_at(change.naming, b"", AT_EMPTY_PATH, &change.kernel) or not stat_of(change.naming, &change.status):
        return errno
    return 0 if same(&change.kernel, &made) else ESTALE


cdef int make(name_change_t *change) noexcept nogil:
    """Make a regular file of a name that is not taken; 0 or an errno."""
    cdef how_t how = CREATION
    cdef int error
    if not stat_of(change.directory, &change.before):
        return errno
    how.mode = change.mode
    change.descriptor = <int>c_syscall(SYS_openat2, change.directory, change.path, &how, sizeof(how))
    if change.descriptor < 0:
        return errno
    error = name_it(change)
    if error == 0 and change.timed and (
        c_syscall(SYS_utimensat, change.naming, b"", change.times, AT_EMPTY_PATH) != 0
        or not stat_of(change.naming, &change.status)
    ):
        # Something forbids it: as if nothing had been done.
        error = errno
        unlinkat(change.directory, change.path, 0)
    return error


cdef int remove(name_change_t *change) noexcept nogil:
    """Remove a name that is no directory's; 0 or an errno."""
    cdef kernel_handle_t now
    if not change.certain:
        if not handle_at(change.directory, change.path, 0, &now):
            return errno
        if not same(&change.kernel, &now):
            return ESTALE
    if not stat_of(change.directory, &change.before) or unlinkat(change.directory, change.path, 0) != 0:
        return errno
    return 0


cdef void run(job_t *job) noexcept nogil:
    """What the thread does."""
    cdef name_change_t *change = <name_change_t *>job.data
    change.error = remove(change) if change.removes else make(change)
    if change.error == 0 and not stat_of(change.directory, &change.after):
        change.after = change.before
    if change.error == 0 and change.removes and (change.naming < 0 or not stat_of(change.naming, &change.status)):
        change.status.nlink = 1


cdef class NameChange(Job):
    def __cinit__(self):
        memset(&self.data, 0, sizeof(self.data))
        self.data.descriptor = self.data.naming = -1
        self.job.run = run
        self.job.data = &self.data

    def __del__(self):
        if self.data.descriptor >= 0:
            c_close(self.data.descriptor)
        if self.data.naming >= 0:
            c_close(self.data.naming)
        if self.share is not None:
            self.share.give_back()
        if self.victim is not None:
            self.victim.changing -= 1

    cdef int start(self) except -1:
        return self.directory.inode.serial.join(self)

    cdef int run_here(self) except -1:
        """Run on the loop's thread, which acts as the caller."""
        run(&self.job)
        return self.settle()

    cdef int finished(self) except -1:
        if self.job.refused:
            self.data.error = self.job.refused
        try:
            self.settle()
        finally:
            self.over()
        return 0

    cdef int settle(self) except -1:
        """Tell the directory's record what has been done, or that nothing has: as long as nothing but such changes were
        under way, nobody would notice somebody else's."""
        cdef Inode inode = self.directory.inode
        cdef statx_t *before = &self.data.before
        cdef statx_t *after = before if self.data.error else &self.data.after
        if before.mask == 0:
            inode.permissions_changed()
            return 0
        inode.wrote(ctime_of(before), ctime_of(after))
        if not same_permissions(before, after):
            inode.permissions_changed()  # between the two looks
        return 0

    cdef int train_finished(self) except -1:
        self.directory.inode.serial.release()
        return 0
