"""Direct CREATE and REMOVE of the file service: names in directories, in memory and on disks.

Owns :class:`DirectNames`; imports the records, the changes themselves (:mod:`nfsd.vfs.name_changes`) and
:mod:`nfsd.vfs.direct`, whose rules hold here. Each operation leaves behind what the one of the same name in
:class:`~nfsd.vfs.service.FileService` does, in the tables as on the disk. An operation that fails is declined.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize

from nfsd.vfs.syscalls import (
    O_PATH as _O_PATH,
    RESOLVE_CACHED as _RESOLVE_CACHED,
    RESOLVE_COMPONENT as _RESOLVE_COMPONENT,
)
from nfsd.vfs.types import FileType

from nfsd.vfs.kernel cimport AT_EMPTY_PATH, SYS_name_to_handle_at, SYS_openat2, c_close, c_syscall
from nfsd.vfs.direct cimport NAME_MAX, component, ctime_of, how_t, no, stat_of, synchronise
from nfsd.vfs.name_changes cimport NameChange, name_change_t
from nfsd.vfs.records cimport closed_at_once
from rpcrdma.declined cimport BUSY, FAILED, MAY_WAIT, OPEN, RARE, RECALL, TURN
from rpcrdma.rpc.work cimport Errand

cdef uint64_t RESOLVE_CACHED = _RESOLVE_CACHED
cdef object DIR = FileType.DIR
cdef object REG = FileType.REG
cdef how_t NAMING
NAMING.flags, NAMING.mode, NAMING.resolve = _O_PATH, 0, _RESOLVE_COMPONENT


cdef inline bint handle_in(int directory, const char *path, int flags, kernel_handle_t *kernel, int *mount) noexcept nogil:
    kernel.size = sizeof(kernel.octets)
    return c_syscall(SYS_name_to_handle_at, directory, path, kernel, mount, flags) == 0


cdef class DirectNames(DirectFiles):
    cdef bint changeable(self, Node directory) except -1:
        """Whether names in the directory can be changed: in memory without waiting, on a disk by a worker."""
        if not directory.inline and not directory.caching:
            return no(self, MAY_WAIT)
        if directory.inline and (directory.inode.serial.busy or directory.inode.sync.running):
            return no(self, BUSY)
        return (
            directory.type is DIR and not directory.mount.by_place and not directory.export.read_only
        ) or no(self, RARE)

    cdef NameChange change_of(self, Credential credential, Node directory, const uint8_t *name, size_t size):
        """A change of this name, to be prepared further; None declines."""
        cdef NameChange change
        cdef OpenFile to_sync = None
        if not self.changeable(directory):
            return None
        if directory.inline and not directory.export.asynchronous:
            to_sync = self.to_sync(directory)
            if to_sync is None:
                self.why = OPEN
                return None
        change = NameChange.__new__(NameChange)
        if not component(change.data.path, name, size):
            return None
        change.executor, change.lane = self.executor, directory.mount.lane
        change.directory, change.data.directory = directory, directory.fd
        change.to_sync = to_sync
        change.credential = credential
        change.job.as_caller = True
        change.job.caller = credential.identity
        return change

    cdef bint changed(self, NameChange change) except -1:
        """Take note of what has been done to the directory; False: nothing has. In memory it is synchronised at once."""
        cdef Node directory = change.directory
        self.why = FAILED
        if change.data.short_of_descriptors:
            self.nodes.evict(1 + len(self.nodes) // 8)
        if change.data.error:
            return False
        self.observe(directory, &change.data.before, False)
        self.change_before = directory.inode.change.value
        self.observe(directory, &change.data.after, True)
        if change.to_sync is not None:
            synchronise(change.to_sync.fd)
        return True

    cdef NameChange to_create(
        self, Credential credential, Node directory, const uint8_t *name, size_t size, uint32_t mode, when_t *times
    ):
        """The creation of a regular file, as yet to be run; None declines. ``times``: its atime and mtime, or NULL."""
        cdef NameChange change = self.change_of(credential, directory, name, size)
        if change is None:
            return None
        change.share = self.service.shares.at_once(credential.host, directory.mount.lane)
        if change.share is None and not directory.inline:
            self.why = TURN
            return None  # who waits for a place does so before the turn, which others wait for
        change.data.mode = mode
        if times != NULL:
            change.data.timed = True
            change.data.times[0], change.data.times[1] = times[0], times[1]
        return self.here(change)

    cdef NameChange here(self, NameChange change):
        """Run what is in memory; None declines."""
        if change.directory.inline:
            if not self.become(<Credential>change.credential):
                return None
            change.run_here()
        return change

    cdef Node created(self, NameChange change):
        """The node of the new file; None: there is none."""
        cdef name_change_t *data = &change.data
        cdef bint durable = change.to_sync is not None
        cdef Credential credential = change.credential
        cdef OpenFile opened
        cdef Node node
        if not self.changed(change):
            return None
        node, data.naming = self.adopt(change.directory, data.naming, &data.kernel), -1
        node.inode.saw_ctime(ctime_of(&data.status))
        self.observe(node, &data.status, False)
        change.made = node
        if data.descriptor >= 0 and change.share is not None:
            opened = self.service.new_open(node, data.descriptor, 3, credential, change.share)
            data.descriptor, change.share = -1, None
            opened.epoch = node.inode.epoch
            # Its creator may write whatever its mode.
            self.service.remember_open(opened, (credential, 3, True))
            if durable:
                synchronise(opened.fd)
        elif data.descriptor >= 0 and durable:
            # It must not stay open: whoever writes to it opens it again, when there is a place.
            synchronise(data.descriptor)
        return node

    cdef bint settled(self, NameChange change) except -1:
        """Take note of what has been made or removed; False: nothing has."""
        return self.removed(change) if change.data.removes else self.created(change) is not None

    cdef Errand to_settle(self, NameChange change):
        """What has been made or removed on a disk is to be on stable storage."""
        return Errand(self.service.settle_names(change.made, change.directory, change.credential))

    cdef Node adopt(self, Node directory, int descriptor, kernel_handle_t *kernel):
        """The node of a new file, whose O_PATH descriptor is taken over."""
        cdef object mount = directory.mount
        cdef bytes name = PyBytes_FromStringAndSize(<char *>&kernel.kind, 4 + kernel.size)
        cdef bytes handle = self.handle_of(mount, name)
        cdef Node node = self.nodes.find(handle)
        if node is None:
            inode = self.nodes.inode(mount.key_prefix + name[:1] + name[4:])
            node = Node(handle, inode, mount, descriptor, REG, self.service.close_later)
            self.nodes.add(node)
        else:
            c_close(descriptor)
        return node

    cdef NameChange to_remove(self, Credential credential, Node directory, const uint8_t *name, size_t size):
        """The removal of a name that is no directory's, as yet to be run; None declines."""
        cdef NameChange change = self.change_of(credential, directory, name, size)
        cdef int mount = -1
        if change is None or not self.become(credential):
            return None
        change.data.removes = True
        self.why = FAILED
        if not self.named(change, &mount) or mount != directory.mnt_id:
            return None
        named = PyBytes_FromStringAndSize(<char *>&change.data.kernel.kind, 4 + change.data.kernel.size)
        inode = self.nodes.known_inode(directory.mount.key_prefix + named[:1] + named[4:])
        if inode is not None:
            if inode.delegated:
                self.why = RECALL
                return None
            change.victim = inode
            change.victim.changing += 1
            change.made = self.nodes.find(self.handle_of(directory.mount, named))
        if change.data.naming < 0:
            # To be held until it is known what is left of it, and where its space can be freed.
            change.data.naming = <int>c_syscall(SYS_openat2, directory.fd, change.data.path, &NAMING, sizeof(NAMING))
            if change.data.naming < 0:
                return None
        return self.here(change)

    cdef bint named(self, NameChange change, int *mount) except -1:
        """Find out what file the name leads to, without waiting."""
        cdef how_t how = NAMING
        if change.directory.inline:
            change.data.certain = True
            return handle_in(change.directory.fd, change.data.path, 0, &change.data.kernel, mount)
        how.resolve |= RESOLVE_CACHED
        change.data.naming = <int>c_syscall(SYS_openat2, change.directory.fd, change.data.path, &how, sizeof(how))
        return change.data.naming >= 0 and handle_in(
            change.data.naming, b"", AT_EMPTY_PATH, &change.data.kernel, mount
        )

    cdef bint removed(self, NameChange change) except -1:
        """Let go of what has been removed; False: nothing has."""
        cdef name_change_t *data = &change.data
        cdef int naming = data.naming
        if not self.changed(change):
            return False
        if change.victim is not None and data.status.nlink == 0:
            self.bury(
                change.directory, change.victim, change.made,
                PyBytes_FromStringAndSize(<char *>&data.kernel.kind, 4 + data.kernel.size),
            )
        change.made = None
        data.naming = -1
        if not closed_at_once(naming):
            self.service.close_later(naming, change.directory.mount.lane)
        return True

    cdef int bury(self, Node directory, Inode inode, Node node, bytes kernel) except -1:
        """Let go of a file that has lost its last name, so that its space is freed."""
        cdef object own = directory.export, fs_id = directory.mount.fs_id
        cdef int kind
        self.service.forget_opens(inode)
        self.nodes.forget_inode(inode)
        if node is not None:
            self.nodes.forget(node)
        self.handles.pop((own.id, fs_id, kernel), None)
        for export in self.exports.exports:
            if export is not own:
                kind = int.from_bytes(kernel[:4], "little", signed=True)
                other = self.nodes.find(self.service.codec.encode(export.id, fs_id, kind, kernel[4:]))
                if other is not None:
                    self.nodes.forget(other)
        return 0
