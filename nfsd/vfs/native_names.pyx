# distutils: extra_compile_args = -O2
"""Changes of names for native programs: files made, removed, renamed and linked, in memory and on disks.

Owns :class:`NativeNames`; imports the records, the changes themselves (:mod:`nfsd.vfs.name_changes`) and
:mod:`nfsd.vfs.native_files`, whose rules hold here. Each operation leaves behind what the one of the same name in
:class:`~nfsd.vfs.service.FileService` does, in the tables as on the disk.

A change is prepared (``to_...``: in memory it is made then), made, and taken note of (:meth:`NativeNames.settled`). What
the kernel refuses is in its ``data.error``; nothing has been done then.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EMFILE, ENFILE, errno
from libc.stdint cimport uint32_t, uint64_t

from nfsd.backends.interface import Found
from nfsd.vfs.attributes import statx_buffer
from nfsd.vfs.syscalls import (
    O_PATH as _O_PATH,
    RESOLVE_CACHED as _RESOLVE_CACHED,
    RESOLVE_COMPONENT as _RESOLVE_COMPONENT,
)
from nfsd.vfs.types import FileType

from nfsd.vfs.attribute_changes cimport changes_owner, changes_times
from nfsd.vfs.attributes cimport status_in, type_in
from nfsd.vfs.kernel cimport AT_EMPTY_PATH, SYS_name_to_handle_at, SYS_openat2, c_close, c_syscall, how_t
from nfsd.vfs.native_files cimport NO_ID, NativeFiles, ctime_of, no
from nfsd.vfs.native_lookup cimport component, key_of
from nfsd.vfs.flushes cimport Sync, change_of
from nfsd.vfs.name_changes cimport (
    ADD_NAME, MAKE_DIRECTORY, MAKE_FILE, MAKE_LINK, REMOVE_DIRECTORY, REMOVE_NAME, RENAME, NameChange, Walk, change_of_kind,
    name_change_t, name_t,
)
from nfsd.vfs.records cimport OpenFile, closed_at_once, frees_little, given_to_others
from nfsd.vfs.stored_walks cimport put_key
from rpcrdma.declined cimport BUSY, DATA, FAILED, MAY_WAIT, RARE, RECALL, TURN

cdef uint64_t RESOLVE_CACHED = _RESOLVE_CACHED
cdef object DIR = FileType.DIR
cdef object REG = FileType.REG
cdef how_t NAMING
NAMING.flags, NAMING.mode, NAMING.resolve = _O_PATH, 0, _RESOLVE_COMPONENT


cdef inline bint handle_in(int directory, const char *path, int flags, name_t *name, int *mount) noexcept nogil:
    name.kernel.size = sizeof(name.kernel.octets)
    return c_syscall(SYS_name_to_handle_at, directory, path, &name.kernel, mount, flags) == 0


cdef inline bint sets_more(changes_t *initial) noexcept:
    """Whether a new file is to have more than its creation gives it."""
    return initial.mode >= 0 or changes_owner(initial) or changes_times(initial)


cdef inline bint is_delegated(Inode victim, Inode moved, object asker) noexcept:
    return (victim is not None and given_to_others(victim, asker)) or (moved is not None and given_to_others(moved, asker))


cdef inline bint relied_on(Node directory, object asker) noexcept:
    return directory is not None and given_to_others(directory.inode, asker)


cdef class NativeNames(NativeAttributes):
    cdef int pause(self) except -1:
        self.delegated = None
        return NativeAttributes.pause(self)

    cdef bint changeable(self, Node directory) except -1:
        """Whether names in the directory can be changed: in memory without waiting, on a disk by a worker."""
        self.needs = None
        if not directory.inline and not directory.caching and directory.stored_names is None:
            return no(self, MAY_WAIT)
        if directory.inline and directory.inode.serial.busy:
            return no(self, BUSY)
        return (
            directory.type is DIR and not directory.by_place and not directory.export.read_only
        ) or no(self, RARE)

    cdef NameChange change_of(self, Kind kind, Credential credential, Node directory, const uint8_t *name, size_t size):
        """A change of this name, to be prepared further; None declines."""
        cdef NameChange change
        if not self.changeable(directory):
            return None
        change = change_of_kind(kind)
        if not component(change.data.name.path, name, size):
            return None
        change.executor, change.lane = self.tables.executor, directory.lane
        change.directory, change.data.name.directory = directory, directory.fd
        change.data.certain = directory.inline
        change.data.proc = self.tables.proc_fd
        change.credential = credential
        change.job.caller = credential.identity
        change.stored = directory.stored_names
        if change.stored is None:
            change.job.as_caller = True
            return change
        if kind != MAKE_FILE and kind != REMOVE_NAME and kind != REMOVE_DIRECTORY:
            self.why = RARE
            return None
        change.data.stored = change.stored.body
        put_key(directory, &change.data.directory_key)
        return change

    cdef bint is_gone(self, Node directory) except -1:
        """Whether it is the directory that does not exist any more, where a name does not. A store has told."""
        cdef statx_t status
        return directory.stored_names is None and not self.look(directory, &status)

    cdef NameChange here(self, NameChange change):
        """Run what is in memory; None declines."""
        if change.directory.inline:
            if not self.become(<Credential>change.credential):
                return None
            change.run_here()
        return change

    # -- what has been done --------------------------------------------------------------------------------------
    cdef bint settled(self, NameChange change) except -1:
        """Take note of what has been done; False: nothing has."""
        cdef name_change_t *data = &change.data
        self.why = FAILED
        if data.short_of_descriptors or data.error == EMFILE or data.error == ENFILE:
            self.tables.nodes.evict(1 + len(self.tables.nodes) // 8)
        if data.error:
            return False
        if data.across:
            self.observe(change.old_directory, &data.old_before, False)
            change.old_change_before = change.old_directory.inode.change.value
            self.observe(change.old_directory, &data.old_after, not data.nothing)
            change.old_change_after = change.old_directory.inode.change.value
        self.observe(change.directory, &data.before, False)
        change.change_before = change.directory.inode.change.value
        self.observe(change.directory, &data.after, not data.nothing)
        change.change_after = change.directory.inode.change.value
        if data.kind < REMOVE_NAME:
            self.created(change)
        elif data.kind == ADD_NAME:
            self.observe(change.made, &data.status, True)
        else:
            self.removed(change)
        return True

    cdef Sync to_settle(self, NameChange change):
        """What has been done on a disk is to be on stable storage."""
        cdef Node made = change.made
        cdef Sync sync
        if change.data.across:
            sync = change_of(self.service, change.directory, change.credential)
            sync.behind = change.old_directory
        elif made is None or self.made_whole(change):
            sync = change_of(self.service, change.directory, change.credential)
        else:
            sync = change_of(self.service, made, change.credential)
            sync.behind = change.directory
        return sync

    cdef bint made_whole(self, NameChange change) except -1:
        """Whether the new file is on the disk as soon as its directory is: nothing has been set after its creation."""
        cdef changes_t *initial = &change.data.initial
        if change.stored is not None:
            return True
        if change.data.kind == ADD_NAME:
            return change.made.type is not REG
        if change.data.size != 0 or sets_more(initial):
            return False
        if change.data.kind == MAKE_LINK:
            return change.directory.mount.links_with_name
        return change.directory.mount.creates_whole

    # -- files made ----------------------------------------------------------------------------------------------
    cdef NameChange to_make(
        self, Kind kind, Credential credential, Node directory, const uint8_t *name, size_t size, changes_t *wanted,
        int64_t length, uint32_t umask=0, bint opens=False
    ):
        """The creation of a regular file or a directory, as yet to be run; None declines. ``length``: of a file;
        ``umask``: to be taken from the mode (RFC 8275), as the caller's is; ``opens``: the file is going to be opened, and
        stays open."""
        cdef NameChange change = self.change_of(kind, credential, directory, name, size)
        if change is None:
            return None
        if kind == MAKE_FILE and change.stored is None:
            change.share = self.tables.shares.at_once(credential.host, directory.lane)
            if change.share is None and (opens or not directory.inline):
                self.why = TURN
                return None  # who waits for a place does so before the turn, which others wait for
            change.data.size = length
            change.data.opens, change.data.access = opens, -1
        change.data.mode = 0 if wanted.mode < 0 else wanted.mode
        umask |= credential.umask
        change.data.umask = umask
        self.set_initial(change, wanted)
        # What makes it takes no set-user-id or set-group-id bits, and a change of owner clears them.
        if wanted.mode >= 0 and (
            wanted.mode & 0o6000 or change.data.initial.uid != NO_ID or change.data.initial.gid != NO_ID
        ):
            change.data.initial.mode = wanted.mode & ~umask
        if change.stored is not None and (opens or length > 0 or sets_more(&change.data.initial)):
            self.why = RARE
            return None
        return self.here(change) if self.undelegated(change, None, None) else None

    cdef NameChange to_symlink(
        self, Credential credential, Node directory, const uint8_t *name, size_t size, bytes text, changes_t *wanted
    ):
        """The creation of a symbolic link, as yet to be run; None declines. ``text`` has neither NULs nor no octets."""
        cdef NameChange change = self.change_of(MAKE_LINK, credential, directory, name, size)
        if change is None:
            return None
        change.text, change.data.text = text, PyBytes_AS_STRING(text)
        self.set_initial(change, wanted)
        return self.here(change) if self.undelegated(change, None, None) else None

    cdef int set_initial(self, NameChange change, changes_t *wanted) except -1:
        """Owner and times of a new file. Only root gives files away: what others send is what they are anyway, or is
        left out."""
        cdef changes_t *initial = &change.data.initial
        initial.times[0], initial.times[1] = wanted.times[0], wanted.times[1]
        if (<Credential>change.credential).identity.uid == 0:
            initial.uid, initial.gid = wanted.uid, wanted.gid
        return 0

    cdef int created(self, NameChange change) except -1:
        """The node of the new file."""
        cdef name_change_t *data = &change.data
        cdef Credential credential = change.credential
        cdef OpenFile opened
        cdef Node node
        if change.stored is None:
            node = self.adopt(change.directory, data.naming, &data.name.kernel, &data.status)
            data.naming = -1
        else:
            node = self.stored_node(change.directory, &data.file_key, &data.status)
        node.inode.saw_ctime(ctime_of(&data.status))
        self.observe(node, &data.status, False)
        change.made = node
        if data.opens and data.access >= 0:
            node.inode.accesses[credential] = (node.inode.epoch, data.access)
        if data.descriptor >= 0 and change.share is not None:
            opened = self.tables.open_files.new(node, data.descriptor, 3, credential, change.share)
            data.descriptor, change.share = -1, None
            opened.epoch = node.inode.epoch
            # Its creator may write whatever its mode.
            self.tables.open_files.remember(opened, (credential, 3, True))
            if data.opens and self.tables.shares.take(opened, credential.host):
                change.opened = opened
        # Without a share it must not stay open: whoever writes to it opens it again, when there is a place.
        return 0

    # -- names removed and moved ---------------------------------------------------------------------------------
    cdef NameChange to_remove(self, Kind kind, Credential credential, Node directory, const uint8_t *name, size_t size):
        """The removal of a name, as yet to be run; None declines."""
        cdef NameChange change = self.change_of(kind, credential, directory, name, size)
        if change is None or not self.free_to_change(change):
            return None
        return self.here(change)

    cdef NameChange to_rename(
        self, Credential credential, Node old_directory, const uint8_t *old, size_t old_size, Node directory,
        const uint8_t *name, size_t size
    ):
        """A rename, within one mount, as yet to be run; None declines."""
        cdef NameChange change = self.change_of(RENAME, credential, directory, name, size)
        cdef name_change_t *data
        if change is None or not self.changeable(old_directory):
            return None
        data = &change.data
        if not component(data.old.path, old, old_size):
            return None
        change.old_directory, data.old.directory = old_directory, old_directory.fd
        data.across = old_directory.inode is not directory.inode
        if not self.free_to_change(change):
            return None
        return self.here(change)

    cdef NameChange to_link(self, Credential credential, Node node, Node directory, const uint8_t *name, size_t size):
        """A further name, within one mount, as yet to be run; None declines."""
        cdef NameChange change = self.change_of(ADD_NAME, credential, directory, name, size)
        if change is None:
            return None
        change.data.file = node.fd
        change.made = node
        if not self.undelegated(change, None, node.inode):
            return None
        return self.here(change)

    cdef bint free_to_change(self, NameChange change) except -1:
        """Find out what files the names lead to, and whether nobody has a delegation of them. On a disk the server looks
        as itself, which spares two changes of identity, and what comes of it concerns nobody but the server: a delegation is
        recalled only for those that may look themselves."""
        cdef bint as_caller = change.directory.inline
        cdef Inode victim, moved
        if change.stored is not None:
            return self.undelegated(change, None, None)  # others change it unseen: nothing there is delegated
        while True:
            if not as_caller:
                NativeFiles.pause(self)
            elif not self.become(<Credential>change.credential):
                return False
            if not self.named(change, &change.data.name) or (
                change.data.kind == RENAME and not self.named(change, &change.data.old)
            ):
                self.needs = self.walk(change)
                return False
            victim = self.inode_of(change, &change.data.name)
            moved = self.inode_of(change, &change.data.old) if change.data.kind == RENAME else None
            if as_caller or not is_delegated(victim, moved, self.asker):
                return self.undelegated(change, victim, moved)
            as_caller = True
            if change.data.naming >= 0:
                c_close(change.data.naming)
                change.data.naming = -1

    cdef bint undelegated(self, NameChange change, Inode victim, Inode moved) except -1:
        """Whether nobody but who asks has a delegation of these, or of the directories; none is given as long as the change
        is under way."""
        if (
            is_delegated(victim, moved, self.asker) or relied_on(change.directory, self.asker)
            or relied_on(change.old_directory, self.asker)
        ):
            self.delegated = (change.directory, change.old_directory, victim, moved)
            return no(self, RECALL)
        change.hold(victim, moved)
        return True

    cdef bint named(self, NameChange change, name_t *name) except -1:
        """Find out without waiting what file the name leads to, if any; whoever may not know is told so by the change
        itself. What loses the name is held in ``naming`` until it is known what is left of it, and where its space can be
        freed. False: this cannot be found out; ``why`` is DATA if the disk has to be asked."""
        cdef how_t how = NAMING
        cdef int mount = -1
        cdef int descriptor = -1
        cdef bint loses = name == &change.data.name
        if not change.data.certain:
            how.resolve |= RESOLVE_CACHED
        name.there = not change.data.certain or handle_in(name.directory, name.path, 0, name, &mount)
        if change.data.certain and name.there and loses and mount == change.directory.mnt_id:
            change.loser = self.node_of(change, name)
            if change.loser is not None:
                change.data.known = change.loser.fd
                return True
        if name.there and (loses or not change.data.certain):
            descriptor = <int>c_syscall(SYS_openat2, name.directory, name.path, &how, sizeof(how))
            if descriptor < 0 and errno == EAGAIN:
                if self.walked is None:
                    return no(self, DATA)
                # As it was a moment ago; the change looks again.
                name.there, mount = self.walked.data.errors[not loses] == 0, self.walked.data.mounts[not loses]
                name.kernel = self.walked.data.kernels[not loses]
                name.there = name.there and mount == change.directory.mnt_id
                return True
            if descriptor < 0 and (errno == EMFILE or errno == ENFILE):
                return no(self, FAILED)
            name.there = descriptor >= 0
        if not change.data.certain and descriptor >= 0:
            name.there = handle_in(descriptor, b"", AT_EMPTY_PATH, name, &mount)
        if mount != change.directory.mnt_id:
            name.there = False  # it is mounted on: the kernel refuses
        if descriptor >= 0 and loses:
            change.data.naming = descriptor
        elif descriptor >= 0:
            c_close(descriptor)
        return True

    cdef Walk walk(self, NameChange change):
        """A worker's look at the change's names, to be waited for; None: that would be of no use."""
        cdef name_change_t *data = &change.data
        cdef Walk walk
        if self.why != DATA:
            return None
        walk = self.to_walk(<Credential>change.credential, change.directory)
        walk.data.paths[0] = data.name.path
        if data.kind == RENAME:
            walk.other, walk.data.directories[1] = change.old_directory, data.old.directory
            walk.data.paths[1] = data.old.path
        return walk

    cdef Node node_of(self, NameChange change, name_t *name):
        """The node that a name leads to, if it is known: its descriptor holds what loses the name, and need not be opened
        for that."""
        cdef Node node = self.tables.nodes.beside(change.directory, key_of(change.directory, &name.kernel))
        return None if node is None or node.fd < 0 else node

    cdef Inode inode_of(self, NameChange change, name_t *name):
        """The inode that a name leads to. While a worker makes the change, the file may come into use, and must then be
        found not to be delegated; what is changed at once concerns only one that is in use already."""
        cdef bytes key
        if not name.there:
            return None
        key = key_of(change.directory, &name.kernel)
        return self.tables.nodes.known_inode(key) if change.directory.inline else self.tables.nodes.inode(key)

    cdef int removed(self, NameChange change) except -1:
        """Let go of what has been removed, or replaced."""
        cdef name_change_t *data = &change.data
        cdef Inode victim = change.victim
        cdef int naming = data.naming
        cdef bint slight = frees_little(&data.status)
        if change.stored is not None:
            found = Found(PyBytes_FromStringAndSize(<char *>data.file_key.octets, data.file_key.size), statx_buffer())
            status_in(found.look)[0] = data.status
            self.service.bury_stored(change.directory.mount, found)
            return 0
        data.naming = data.known = -1
        if victim is not None and not data.nothing and (data.status.nlink == 0 or type_in(&data.status) is DIR):
            # Whoever has a descriptor beyond this may still write: only what is closed now is known to free little.
            victim.slight = slight
            try:
                self.bury(victim)
                change.loser = None
            finally:
                victim.slight = False
        change.loser = None
        if naming >= 0 and not (change.directory.inline and closed_at_once(naming)):
            self.tables.close_later(naming, change.directory.lane)
        return 0

    cdef int bury(self, Inode inode) except -1:
        """Let go of a file that has lost its last name, so that its space is freed."""
        self.tables.open_files.forget_removed_inode(inode)
        return self.tables.nodes.forget_removed(inode)
