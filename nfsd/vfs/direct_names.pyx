"""Direct CREATE and REMOVE of the file service: names in directories of file systems in memory.

Owns :class:`DirectNames`; imports the records and :mod:`nfsd.vfs.direct`, whose rules hold here. Each operation leaves
behind what the one of the same name in :class:`~nfsd.vfs.service.FileService` does, in the tables as on the disk.

An operation that fails changes nothing and is declined. After a success nothing fails but what a local process undoes at
the same moment (the new name leads elsewhere): declined too, since nothing is left of what was done.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EMFILE, ENFILE, errno
from libc.string cimport memcmp

from nfsd.vfs.syscalls import O_PATH as _O_PATH, RESOLVE_COMPONENT as _RESOLVE_COMPONENT
from nfsd.vfs.creation import CREATION_FLAGS as _CREATION_FLAGS
from nfsd.vfs.types import FileType

from nfsd.vfs.kernel cimport (
    AT_EMPTY_PATH, SYS_name_to_handle_at, SYS_openat2, SYS_utimensat, c_close, c_syscall, unlinkat,
)
from nfsd.vfs.direct cimport NAME_MAX, component, ctime_of, how_t, no, stat_of, synchronise
from nfsd.vfs.records cimport closed_at_once
from rpcrdma.declined cimport BUSY, FAILED, MAY_WAIT, OPEN, RARE, RECALL

cdef object DIR = FileType.DIR
cdef object REG = FileType.REG
cdef how_t CREATION
CREATION.flags, CREATION.mode, CREATION.resolve = _CREATION_FLAGS, 0, _RESOLVE_COMPONENT
cdef how_t NAMING
NAMING.flags, NAMING.mode, NAMING.resolve = _O_PATH, 0, _RESOLVE_COMPONENT


cdef inline bint handle_in(int directory, const char *path, int flags, kernel_handle_t *kernel, int *mount) noexcept nogil:
    kernel.size = sizeof(kernel.octets)
    return c_syscall(SYS_name_to_handle_at, directory, path, kernel, mount, flags) == 0


cdef class DirectNames(DirectFiles):
    cdef bint changeable(self, Node directory) except -1:
        """Whether names in the directory can be changed without waiting."""
        if not directory.inline:
            return no(self, MAY_WAIT)
        if directory.inode.serial.busy or directory.inode.sync.running:
            return no(self, BUSY)
        return (
            directory.type is DIR and self.service.places is None and not directory.export.read_only
        ) or no(self, RARE)

    cdef int changed(self, Node directory, OpenFile opened, statx_t *before, statx_t *after) except -1:
        """The directory has been changed by an operation of ours."""
        if not stat_of(directory.fd, after):
            raise OSError(errno, "statx of a directory just changed")
        directory.inode.wrote(ctime_of(before), ctime_of(after))
        self.observe(directory, before, False)
        self.change_before = directory.inode.change.value
        self.observe(directory, after, True)
        if opened is not None:
            synchronise(opened.fd)
        return 0

    cdef Node create(
        self, Credential credential, Node directory, const uint8_t *name, size_t size, uint32_t mode, when_t *times,
        statx_t *status, statx_t *before, statx_t *after
    ):
        """The node of a new regular file and its status; None declines, also when there is one of this name. ``times``:
        its atime and mtime, or NULL."""
        cdef char path[NAME_MAX + 1]
        cdef how_t how = CREATION
        cdef kernel_handle_t kernel, same
        cdef int mount = -1
        cdef long descriptor, naming
        cdef OpenFile held_open = None
        cdef OpenFile opened
        cdef bint durable
        cdef Node node
        if not component(path, name, size) or not self.changeable(directory):
            return None
        durable = not directory.export.asynchronous
        self.why = OPEN
        if durable:
            held_open = self.to_sync(directory)
            if held_open is None:
                return None
        if not stat_of(directory.fd, before) or not self.become(credential):
            return None
        how.mode = mode
        self.why = FAILED
        descriptor = c_syscall(SYS_openat2, directory.fd, path, &how, sizeof(how))
        if descriptor < 0:
            return None
        if not handle_in(<int>descriptor, b"", AT_EMPTY_PATH, &same, &mount):
            naming = -1
        else:
            naming = c_syscall(SYS_openat2, directory.fd, path, &NAMING, sizeof(NAMING))
            if naming < 0 and (errno == EMFILE or errno == ENFILE):
                # The last descriptor: the file can do without being open.
                c_close(<int>descriptor)
                descriptor = -1
                naming = c_syscall(SYS_openat2, directory.fd, path, &NAMING, sizeof(NAMING))
                self.nodes.evict(1 + len(self.nodes) // 8)
        if (
            naming < 0
            or not handle_in(<int>naming, b"", AT_EMPTY_PATH, &kernel, &mount)
            or not stat_of(<int>naming, status)
            or kernel.size != same.size
            or kernel.kind != same.kind
            or memcmp(kernel.octets, same.octets, same.size) != 0
        ):
            if descriptor >= 0:
                c_close(<int>descriptor)
            if naming >= 0:
                c_close(<int>naming)
            return None
        if times != NULL and (
            c_syscall(SYS_utimensat, naming, b"", times, AT_EMPTY_PATH) != 0 or not stat_of(<int>naming, status)
        ):
            # Something forbids it: as if nothing had been done, for the general path to say so.
            unlinkat(directory.fd, path, 0)
            if descriptor >= 0:
                c_close(<int>descriptor)
            c_close(<int>naming)
            return None
        node = self.adopt(directory, <int>naming, &kernel)
        node.inode.saw_ctime(ctime_of(status))
        self.observe(node, status, False)
        share = self.service.shares.at_once(credential.host, node.mount.lane) if descriptor >= 0 else None
        if descriptor >= 0 and share is None:
            # It must not stay open: whoever writes to it opens it again, when there is a place.
            try:
                if durable:
                    synchronise(<int>descriptor)
            finally:
                c_close(<int>descriptor)
        elif descriptor >= 0:
            opened = self.service.new_open(node, descriptor, 3, credential, share)
            opened.epoch = node.inode.epoch
            # Its creator may write whatever its mode.
            self.service.remember_open(opened, (credential, 3, True))
            if durable:
                synchronise(opened.fd)
        self.changed(directory, held_open, before, after)
        return node

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

    cdef bint remove(
        self, Credential credential, Node directory, const uint8_t *name, size_t size, statx_t *before, statx_t *after
    ) except -1:
        """Remove a name that is no directory's."""
        cdef char path[NAME_MAX + 1]
        cdef kernel_handle_t kernel
        cdef int mount = -1, held
        cdef long opened = -1
        cdef OpenFile held_open = None
        cdef Inode inode
        cdef Node node = None
        cdef statx_t victim
        cdef bytes named
        if not component(path, name, size) or not self.changeable(directory):
            return False
        if not directory.export.asynchronous:
            held_open = self.to_sync(directory)
            if held_open is None:
                return no(self, OPEN)
        if not self.become(credential):
            return False
        self.why = FAILED
        if not handle_in(directory.fd, path, 0, &kernel, &mount) or mount != directory.mnt_id:
            return False
        named = PyBytes_FromStringAndSize(<char *>&kernel.kind, 4 + kernel.size)
        inode = self.nodes.known_inode(directory.mount.key_prefix + named[:1] + named[4:])
        if inode is not None:
            if inode.delegated:
                return no(self, RECALL)
            node = self.nodes.find(self.handle_of(directory.mount, named))
        if node is None:
            # To be held until it is known what is left of it, and where its space can be freed.
            opened = c_syscall(SYS_openat2, directory.fd, path, &NAMING, sizeof(NAMING))
            if opened < 0:
                return False
        held = node.fd if node is not None else <int>opened
        if not stat_of(directory.fd, before) or unlinkat(directory.fd, path, 0) != 0:
            if opened >= 0:
                c_close(<int>opened)
            return False
        if inode is not None and stat_of(held, &victim) and victim.nlink == 0:
            self.bury(directory, inode, node, named)
        if opened >= 0 and not closed_at_once(<int>opened):
            self.service.close_later(opened, directory.mount.lane)
        self.changed(directory, held_open, before, after)
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
