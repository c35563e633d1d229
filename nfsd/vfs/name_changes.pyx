"""Changes of directories' names, each as one stay of a thread that acts as the caller (RFC 1813 sections 3.3.8 to 3.3.10
and 3.3.12 to 3.3.15).

Owns :class:`NameChange` and :class:`Walk`; imports the executor and the records. What is in memory is changed on the
loop's thread, what is on a disk by a worker, in its turn on the directory; either way by the same functions.

A change that fails leaves nothing behind. After a success nothing fails but what a local process undoes at the same
moment (the new name leads elsewhere): that counts as a failure, since nothing is left of what was done.
"""

import asyncio

from libc.errno cimport EIO, EISDIR, EMFILE, ENFILE, ESTALE, errno
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcmp

from nfsd.vfs.attribute_changes cimport apply_changes, changes_owner, changes_times
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.native_files cimport access_to, ctime_of, no_changes, stat_of
from nfsd.vfs.executor cimport Job
from nfsd.vfs.kernel cimport (
    AT_EMPTY_PATH, AT_REMOVEDIR, AT_SYMLINK_FOLLOW, SYS_getxattr, SYS_linkat, SYS_mkdirat,
    SYS_name_to_handle_at, SYS_openat2, SYS_renameat2, SYS_symlinkat, c_close, c_ftruncate, c_syscall, how_t,
    kernel_handle_t, unlinkat,
)
from nfsd.vfs.identity cimport identity_t
from nfsd.vfs.records cimport Inode, Node
from nfsd.vfs.lanes cimport job_t
from nfsd.vfs.stored_files cimport stored_names_t

from nfsd.vfs.creation import CREATION_FLAGS as _CREATION_FLAGS
from nfsd.vfs.serial import take_both
from nfsd.vfs.syscalls import O_PATH as _O_PATH, RESOLVE_COMPONENT as _RESOLVE_COMPONENT
from rpcrdma.firewall import contain, report
from rpcrdma.rpc import eager

cdef extern from "stdio.h" nogil:
    int snprintf(char *sink, size_t size, const char *format, ...)

cdef enum:
    S_IFMT = 0o170000
    S_IFDIR = 0o040000
    S_IFLNK = 0o120000
    DEFAULT_ACL_SIZE = 4096     # as long as the file systems that have ACLs let them be, or longer
    ACL_USER_OBJ = 0x01
    ACL_GROUP_OBJ = 0x04
    ACL_MASK = 0x10
    ACL_OTHER = 0x20

cdef how_t CREATION
CREATION.flags, CREATION.mode, CREATION.resolve = _CREATION_FLAGS, 0, _RESOLVE_COMPONENT
cdef how_t NAMING
NAMING.flags, NAMING.mode, NAMING.resolve = _O_PATH, 0, _RESOLVE_COMPONENT


# -- what a thread does --------------------------------------------------------------------------------------------
cdef bint handle_of(int file, kernel_handle_t *kernel, int *mount) noexcept nogil:
    """The kernel's handle of the file of a descriptor, and the mount it is on."""
    kernel.size = sizeof(kernel.octets)
    return c_syscall(SYS_name_to_handle_at, file, b"", kernel, mount, AT_EMPTY_PATH) == 0


cdef bint handle_at(int directory, const char *path, int flags, kernel_handle_t *kernel) noexcept nogil:
    """The kernel's handle of a file, of which it does not matter where it is mounted."""
    cdef int mount
    kernel.size = sizeof(kernel.octets)
    return c_syscall(SYS_name_to_handle_at, directory, path, kernel, &mount, flags) == 0


cdef inline bint same(kernel_handle_t *one, kernel_handle_t *other) noexcept nogil:
    return one.size == other.size and one.kind == other.kind and memcmp(one.octets, other.octets, one.size) == 0


cdef int looked_up(name_t *name, int *naming) noexcept nogil:
    """0; ESTALE if the name leads elsewhere than it is known to. ``naming`` becomes an O_PATH descriptor of what is to
    lose its name, unless it is one, or is NULL."""
    cdef kernel_handle_t now
    cdef int descriptor
    if naming == NULL or naming[0] >= 0 or not name.there:
        if not handle_at(name.directory, name.path, 0, &now):
            return 0  # what is to be done to it will fail likewise
        return 0 if name.there and same(&name.kernel, &now) else ESTALE
    descriptor = <int>c_syscall(SYS_openat2, name.directory, name.path, &NAMING, sizeof(NAMING))
    if descriptor < 0:
        return errno if errno == EMFILE or errno == ENFILE else 0
    naming[0] = descriptor
    if not handle_at(descriptor, b"", AT_EMPTY_PATH, &now):
        return 0
    return 0 if same(&name.kernel, &now) else ESTALE


cdef int find(name_change_t *change) noexcept nogil:
    """Find the file that has just been made by its name, as whoever is to have it will; 0 or an errno."""
    cdef name_t *name = &change.name
    change.naming = <int>c_syscall(SYS_openat2, name.directory, name.path, &NAMING, sizeof(NAMING))
    if change.naming < 0 and (errno == EMFILE or errno == ENFILE):
        change.short_of_descriptors = True
        if change.descriptor >= 0 and not change.opens:
            # The last descriptor: the file can do without being open.
            c_close(change.descriptor)
            change.descriptor = -1
            change.naming = <int>c_syscall(SYS_openat2, name.directory, name.path, &NAMING, sizeof(NAMING))
    if change.naming < 0:
        return errno
    if not handle_at(change.naming, b"", AT_EMPTY_PATH, &name.kernel) or not stat_of(change.naming, &change.status):
        return errno
    return 0


cdef int default_mode(int directory) noexcept nogil:
    """The permission bits that a directory's default ACL stands for (acl(5)); -1: it has none."""
    cdef char path[32]
    cdef uint8_t acl[DEFAULT_ACL_SIZE]
    cdef int owner = -1, group = -1, mask = -1, others = -1
    cdef long at, size
    snprintf(path, sizeof(path), b"/proc/self/fd/%d", directory)
    size = c_syscall(SYS_getxattr, path, b"system.posix_acl_default", acl, sizeof(acl))
    for at in range(4, size - 7, 8):  # behind the version, entries of tag, permissions and id; all little-endian
        if acl[at] == ACL_USER_OBJ:
            owner = acl[at + 2]
        elif acl[at] == ACL_GROUP_OBJ:
            group = acl[at + 2]
        elif acl[at] == ACL_MASK:
            mask = acl[at + 2]
        elif acl[at] == ACL_OTHER:
            others = acl[at + 2]
    if owner < 0 or group < 0 or others < 0:
        return -1
    return (owner << 6 | (group if mask < 0 else mask) << 3 | others) & 0o777


cdef uint32_t created_with(name_change_t *change) noexcept nogil:
    """The mode to create a file with. A default ACL takes the umask's place (RFC 8275 section 3), as with umask(2): what
    the umask has taken is then given back behind the creation."""
    cdef int mode
    if not change.umask & change.mode:
        return change.mode
    mode = default_mode(change.name.directory)
    if mode >= 0:
        change.initial.mode = <int>(change.mode & (0o7000 | <uint32_t>mode))
    return change.mode & ~change.umask


cdef int initialize(name_change_t *change) noexcept nogil:
    """Set what a new file's creation does not; 0 or an errno."""
    cdef changes_t *initial = &change.initial
    cdef bint touching
    cdef int made, error
    if initial.mode < 0 and not changes_owner(initial) and not changes_times(initial):
        return 0
    error = apply_changes(change.naming, change.proc, initial, &made, &touching)
    if error == 0 and not stat_of(change.naming, &change.status):
        error = errno
    return error


cdef void unmake(name_t *name, kernel_handle_t *made, int flags) noexcept nogil:
    """Take the name away from what has just been made, but not from what a local process has put in its place."""
    cdef kernel_handle_t now
    if handle_at(name.directory, name.path, 0, &now) and same(&now, made):
        unlinkat(name.directory, name.path, flags)


cdef int make_file(name_change_t *change) noexcept nogil:
    """Make a regular file of a name that is not taken; 0 or an errno."""
    cdef name_t *name = &change.name
    cdef how_t how = CREATION
    cdef kernel_handle_t made
    cdef int error = 0
    how.mode = created_with(change)
    change.descriptor = <int>c_syscall(SYS_openat2, name.directory, name.path, &how, sizeof(how))
    if change.descriptor < 0 or not handle_at(change.descriptor, b"", AT_EMPTY_PATH, &made):
        return errno
    if change.size != 0 and c_ftruncate(change.descriptor, change.size) != 0:  # who finds the file may have to close it
        error = errno
    if error == 0:
        error = find(change)
        if error != 0 and error != EMFILE and error != ENFILE:
            return error
        if error == 0 and not same(&name.kernel, &made):
            return ESTALE
    if error == 0:
        error = initialize(change)
    if error != 0:
        # Something forbids it, or it can only be had by a descriptor: it is not to be there when it is made again.
        unmake(name, &made, 0)
    return error


cdef int make_other(name_change_t *change) noexcept nogil:
    """Make a directory or a symbolic link; 0 or an errno."""
    cdef name_t *name = &change.name
    cdef bint directory = change.kind == MAKE_DIRECTORY
    cdef int flags = AT_REMOVEDIR if directory else 0
    cdef int error
    if directory and c_syscall(SYS_mkdirat, name.directory, name.path, created_with(change)) != 0:
        return errno
    if not directory and c_syscall(SYS_symlinkat, change.text, name.directory, name.path) != 0:
        return errno
    error = find(change)
    if error != 0:
        unlinkat(name.directory, name.path, flags)
        return error
    # Otherwise a local process has replaced it already, and its attributes are that process's business.
    if change.status.mode & S_IFMT == (S_IFDIR if directory else S_IFLNK):
        error = initialize(change)
        if error != 0:
            unmake(name, &name.kernel, flags)
    return error


cdef int remove(name_change_t *change) noexcept nogil:
    """Remove a name; 0 or an errno."""
    cdef int error = 0 if change.certain else looked_up(&change.name, &change.naming)
    if error != 0:
        return error
    if unlinkat(change.name.directory, change.name.path, AT_REMOVEDIR if change.kind == REMOVE_DIRECTORY else 0) == 0:
        return 0
    if change.kind == REMOVE_ANY and errno == EISDIR and (
        unlinkat(change.name.directory, change.name.path, AT_REMOVEDIR) == 0
    ):
        return 0
    return errno


cdef int rename(name_change_t *change) noexcept nogil:
    """Rename a file, in the place of what has the new name; 0 or an errno."""
    cdef name_t *old = &change.old
    cdef int error = 0
    if not change.certain:
        error = looked_up(old, NULL)
        if error == 0:
            error = looked_up(&change.name, &change.naming)
    if error != 0:
        return error
    if change.across and not stat_of(old.directory, &change.old_before):
        return errno
    if c_syscall(SYS_renameat2, old.directory, old.path, change.name.directory, change.name.path, 0) != 0:
        return errno
    # RFC 8881 section 18.26.3: a rename of a file to itself or onto a further link of it.
    change.nothing = old.there and change.name.there and same(&old.kernel, &change.name.kernel)
    if change.across and not stat_of(old.directory, &change.old_after):
        change.old_after = change.old_before
    return 0


cdef int add_name(name_change_t *change) noexcept nogil:
    """Give a file a further name; 0 or an errno."""
    cdef char link[16]
    snprintf(link, sizeof(link), b"%d", change.file)
    if c_syscall(
        SYS_linkat, change.proc, link, change.name.directory, change.name.path, AT_SYMLINK_FOLLOW
    ) != 0:
        return errno
    return 0


cdef int made_or_removed(name_change_t *change) noexcept nogil:
    if not stat_of(change.name.directory, &change.before):
        return errno
    if change.kind == MAKE_FILE:
        return make_file(change)
    if change.kind == MAKE_DIRECTORY or change.kind == MAKE_LINK:
        return make_other(change)
    if change.kind == RENAME:
        return rename(change)
    if change.kind == ADD_NAME:
        return add_name(change)
    return remove(change)


cdef void look_again(name_change_t *change) noexcept nogil:
    """See what has come of it."""
    cdef int loser
    if not stat_of(change.name.directory, &change.after):
        change.after = change.before
    if change.kind == ADD_NAME:
        if not stat_of(change.file, &change.status):
            change.error = errno
    elif change.opens:
        change.access = access_to(change.naming, False)
    elif change.kind >= REMOVE_NAME:
        loser = change.known if change.naming < 0 else change.naming
        if loser < 0 or not stat_of(loser, &change.status):
            change.status.nlink = 1


cdef int made_or_removed_in_store(name_change_t *change, identity_t *caller) noexcept nogil:
    cdef stored_names_t *stored = change.stored
    if change.kind == MAKE_FILE:
        return stored.make(
            stored, caller, &change.directory_key, change.name.path, change.mode & ~change.umask, &change.file_key,
            &change.status, &change.before, &change.after
        )
    return stored.remove(
        stored, caller, &change.directory_key, change.name.path, change.kind == REMOVE_DIRECTORY, &change.file_key,
        &change.status, &change.before, &change.after
    )


cdef void run(job_t *job) noexcept nogil:
    """What the thread does."""
    cdef name_change_t *change = <name_change_t *>job.data
    if change.stored != NULL:
        change.error = made_or_removed_in_store(change, &job.caller)
        return
    change.error = made_or_removed(change)
    if change.error == 0:
        look_again(change)
    if change.kind >= REMOVE_NAME and change.naming >= 0 and not change.certain:
        # Perhaps the last descriptor of a file without a name, whoever has removed it: its space is freed here.
        c_close(change.naming)
        change.naming = -1


# -- on the loop's thread ------------------------------------------------------------------------------------------
cdef NameChange change_of_kind(Kind kind):
    cdef NameChange change = NameChange.__new__(NameChange)
    change.data.kind = kind
    return change


cdef class NameChange(Job):
    def __cinit__(self):
        self.data.descriptor = self.data.naming = self.data.known = -1
        no_changes(&self.data.initial)
        self.job.run = run
        self.job.data = &self.data

    def __del__(self):
        if self.data.descriptor >= 0:
            c_close(self.data.descriptor)
        if self.data.naming >= 0:
            c_close(self.data.naming)
        if self.share is not None:
            self.share.give_back()
        if self.opened is not None:
            self.opened.let_go()
        if self.victim is not None:
            self.victim.changing -= 1
        if self.moved is not None:
            self.moved.changing -= 1
        if self.held:
            self.directory.inode.changing -= 1
            if self.old_directory is not None:
                self.old_directory.inode.changing -= 1

    cdef int hold(self, Inode victim, Inode moved) except -1:
        """These, and the directories, are not to be delegated as long as the change is under way; None: there is none, or
        nobody uses it."""
        self.victim, self.moved, self.held = victim, moved, True
        self.directory.inode.changing += 1
        if self.old_directory is not None:
            self.old_directory.inode.changing += 1
        if victim is not None:
            victim.changing += 1
        if moved is not None:
            moved.changing += 1
        return 0

    cdef int start(self) except -1:
        if self.stored is not None:
            self.stored.hold()
            try:
                return self.directory.inode.serial.join(self)
            except Exception:
                self.stored.let_go()
                raise
        if not self.data.across:
            return self.directory.inode.serial.join(self)
        # Of two directories the turns are taken in the order of their keys, by all who need two.
        one, other = self.directory.inode, self.old_directory.inode
        if other.key < one.key:
            one, other = other, one
        eager.start(take_both(one.serial, other.serial), self.turns_taken)
        return 0

    def turns_taken(self, result, error):
        """The turns of both directories have come."""
        self.has_turns = error is None
        try:
            if error is not None:
                raise error
            self.executor.submit(self, self.lane)
        except Exception as failure:
            report(self.turns_taken, failure)
            asyncio.get_running_loop().call_soon(contain, None, self.refuse)

    def refuse(self):
        """No worker takes it: it fails, as if none could act as the caller."""
        self.job.refused = EIO
        try:
            self.finished()
        finally:
            self.train_finished()

    cdef int run_here(self) except -1:
        """Run on the loop's thread, which acts as the caller."""
        run(&self.job)
        return self.settle()

    cdef int finished(self) except -1:
        if self.job.refused:
            self.data.error = self.job.refused
        if self.stored is not None:
            self.stored.let_go()
        try:
            self.settle()
        finally:
            self.over()
        return 0

    cdef int settle(self) except -1:
        """Tell the directories' records what has been done, or that nothing has: as long as nothing but such changes
        were under way, nobody would notice somebody else's."""
        cdef bint failed = self.data.error != 0
        tell(self.directory.inode, &self.data.before, &self.data.before if failed else &self.data.after)
        if self.data.across:
            tell(
                self.old_directory.inode, &self.data.old_before,
                &self.data.old_before if failed else &self.data.old_after,
            )
        return 0

    cdef int train_finished(self) except -1:
        if not self.data.across:
            self.directory.inode.serial.release()
        elif self.has_turns:
            self.has_turns = False
            self.directory.inode.serial.release()
            self.old_directory.inode.serial.release()
        return 0


cdef int tell(Inode inode, statx_t *before, statx_t *after) except -1:
    """Tell a directory's record what it looked like around a change of ours."""
    if before.mask == 0:
        inode.permissions_changed()
        return 0
    inode.changed_between(before, after)
    return 0


cdef void look_up(job_t *job) noexcept nogil:
    """What the thread does for a :class:`Walk`."""
    cdef walk_t *walk = <walk_t *>job.data
    cdef int position
    cdef long descriptor
    for position in range(2):
        if walk.directories[position] < 0:
            continue
        descriptor = c_syscall(
            SYS_openat2, walk.directories[position], walk.paths[position], &NAMING, sizeof(NAMING)
        )
        walk.errors[position] = errno if descriptor < 0 else 0
        if descriptor >= 0:
            if not handle_of(<int>descriptor, &walk.kernels[position], &walk.mounts[position]):
                walk.errors[position] = errno
            c_close(<int>descriptor)


cdef class Walk(Job):
    def __cinit__(self):
        self.data.directories[0] = self.data.directories[1] = -1
        self.job.run = look_up
        self.job.data = &self.data

    cdef int finished(self) except -1:
        return self.over()
