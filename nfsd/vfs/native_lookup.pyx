# distutils: extra_compile_args = -O2
"""LOOKUP for native programs: of what the kernel has in memory at once, of other names after a worker has looked.

Owns :class:`NativeLookup`; imports the records, the handles and :mod:`nfsd.vfs.native_files`, whose rules hold here.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EACCES, EAGAIN, EMFILE, ENFILE, EXDEV, errno
from libc.stdint cimport uint64_t
from libc.string cimport memcpy, strcpy

from nfsd.vfs.syscalls import (
    O_PATH as _O_PATH,
    RESOLVE_CACHED as _RESOLVE_CACHED,
    RESOLVE_COMPONENT as _RESOLVE_COMPONENT,
)
from nfsd.backends.interface import Found
from nfsd.vfs.attributes import statx_buffer
from nfsd.vfs.types import FileType

from nfsd.vfs.attributes cimport status_in, type_in
from nfsd.vfs.stored_walks cimport StoredWalk, put_key
from nfsd.vfs.stored_files cimport key_t
from nfsd.vfs.native_files cimport NAME_MAX, no, stat_of
from nfsd.vfs.nodes cimport NodeTable
from nfsd.vfs.identity cimport OWN
from nfsd.vfs.kernel cimport AT_EMPTY_PATH, SYS_name_to_handle_at, SYS_openat2, c_close, c_syscall, how_t, kernel_handle_t
from rpcrdma.declined cimport DATA, FAILED, MAY_WAIT

cdef object DIR = FileType.DIR
cdef how_t CACHED
CACHED.flags, CACHED.mode, CACHED.resolve = _O_PATH, 0, _RESOLVE_COMPONENT | _RESOLVE_CACHED


cdef bint component(char *path, const uint8_t *name, size_t size) noexcept nogil:
    """Make a C string, in NAME_MAX + 2 octets, of a name that is one of an entry in its directory; whether it is. What is
    too long for every file system is cut, but stays too long."""
    cdef size_t at
    if size == 0 or (name[0] == c"." and (size == 1 or (size == 2 and name[1] == c"."))):
        return False
    for at in range(size):
        if name[at] == 0 or name[at] == c"/":
            return False
        if at <= NAME_MAX:
            path[at] = name[at]
    path[min(size, <size_t>(NAME_MAX + 1))] = 0
    return True


cdef int reach(
    Node directory, const char *path, int *descriptor, kernel_handle_t *kernel, int *mount
) noexcept nogil:
    """Find the file of a name without waiting; 0 or an errno. On a disk there is a descriptor of it then."""
    cdef int file = directory.fd
    kernel.size = sizeof(kernel.octets)
    if directory.inline:
        return 0 if c_syscall(SYS_name_to_handle_at, file, path, kernel, mount, 0) == 0 else errno
    file = descriptor[0] = <int>c_syscall(SYS_openat2, file, path, &CACHED, sizeof(CACHED))
    if file < 0 or c_syscall(SYS_name_to_handle_at, file, b"", kernel, mount, AT_EMPTY_PATH) != 0:
        return errno
    return 0


cdef bytes key_of(Node directory, kernel_handle_t *kernel):
    """What the inode of a kernel handle on the file system of a directory is known by."""
    cdef Py_ssize_t before = len(directory.key_prefix)
    cdef bytes key = PyBytes_FromStringAndSize(NULL, before + 1 + kernel.size)
    cdef char *at = PyBytes_AS_STRING(key)
    memcpy(at, PyBytes_AS_STRING(directory.key_prefix), before)
    at[before] = <char>kernel.kind
    memcpy(at + before + 1, kernel.octets, kernel.size)
    return key


cdef class NativeLookup(NativeFiles):
    cdef int pause(self) except -1:
        # What these refer to would stay open.
        self.needs = self.walked = None
        return NativeFiles.pause(self)

    cdef Node lookup(
        self, Credential credential, Node directory, const uint8_t *name, size_t size, statx_t *status, int *error,
        bint looked=False
    ):
        """The node of a name, with a fresh ``struct statx``. None: ``error`` is what the kernel says of it, or 0 when this
        declines, for want of what it ``needs`` if that is set. ``looked``: the directory has just been looked at; then a
        caller that the kernel has let search it before, with the same permissions, need not be switched to."""
        cdef char path[NAME_MAX + 2]
        cdef kernel_handle_t kernel
        cdef int mount_id = -1
        cdef int descriptor = -1
        cdef int failed
        cdef bint as_server
        cdef Node node
        error[0] = 0
        self.needs = None
        if directory.type is not DIR or directory.by_place or not component(path, name, size):
            return None
        if directory.stored_names is not None:
            return self.lookup_stored(credential, directory, path, status, error)
        if not directory.inline and not directory.caching:
            self.why = MAY_WAIT
            return None
        as_server = (
            looked and self.tables.switch is not None and self.tables.switch.loop.whose == OWN
            and directory.inode.lets_search(credential, directory.fine)
        )
        if not as_server and not self.become(credential):
            return None
        self.why = FAILED
        failed = reach(directory, path, &descriptor, &kernel, &mount_id)
        if failed == EACCES and as_server:
            # A server without root's capabilities may itself be let to less than its callers.
            as_server = False
            if not self.become(credential):
                return None
            self.why = FAILED
            failed = reach(directory, path, &descriptor, &kernel, &mount_id)
        if failed == EAGAIN and not directory.inline:
            if self.walked is None:
                self.why = DATA
                self.needs = self.to_walk(credential, directory)
                self.needs.data.paths[0] = path
                return None
            failed = self.walked.data.errors[0]
            kernel, mount_id = self.walked.data.kernels[0], self.walked.data.mounts[0]
        elif failed == 0 and looked and not as_server:
            directory.inode.has_let_search(credential, directory.fine)
        if failed and failed != EXDEV and failed != EMFILE and failed != ENFILE:
            error[0] = failed
        node = None
        if not failed and mount_id == directory.mnt_id:
            node = self.tables.nodes.beside(directory, key_of(directory, &kernel))
            if node is None and descriptor >= 0 and stat_of(descriptor, status):
                node, descriptor = self.adopt(directory, descriptor, &kernel, status), -1
            elif node is None and descriptor < 0:
                node = self.reopened(self.handle_of(directory, &kernel))
        if descriptor >= 0:
            c_close(descriptor)
        if node is None or not self.look(node, status):
            return None
        node.used = self.tables.nodes.sweep_number
        return node

    cdef Node lookup_stored(
        self, Credential credential, Node directory, const char *path, statx_t *status, int *error
    ):
        """The same of a name in a store, after a worker has looked."""
        cdef StoredWalk walk
        cdef Node node
        if not isinstance(self.walked, StoredWalk):
            self.why = DATA
            walk = StoredWalk.__new__(StoredWalk)
            walk.executor, walk.lane = self.tables.executor, directory.lane
            walk.one, walk.credential, walk.stored = directory, credential, directory.stored_names
            walk.job.caller, walk.there.stored = credential.identity, walk.stored.body
            strcpy(walk.there.path, path)
            put_key(directory, &walk.there.directory)
            self.needs = walk
            return None
        walk = <StoredWalk>self.walked
        error[0] = walk.there.error
        if error[0]:
            return None
        status[0] = walk.there.status
        node = self.stored_node(directory, &walk.there.file, status)
        if not self.take(node, status):
            return None
        node.used = self.tables.nodes.sweep_number
        return node

    cdef bint look_around(self, Node directory, statx_t *after) except -1:
        """A look at the directory of a LOOKUP, after it."""
        cdef StoredWalk walk
        if not isinstance(self.walked, StoredWalk):
            return self.look(directory, after)
        walk = <StoredWalk>self.walked
        after[0] = walk.there.after
        return after.mask != 0 and self.take(directory, after)

    cdef Node stored_node(self, Node directory, const key_t *key, const statx_t *status):
        """The node of a file in a store."""
        found = Found(PyBytes_FromStringAndSize(<char *>key.octets, key.size), statx_buffer())
        status_in(found.look)[0] = status[0]
        return self.service.stored_node(directory.mount, found)

    cdef Walk to_walk(self, Credential credential, Node directory):
        """A worker's look at a name, which is yet to be put there: then it is in memory."""
        cdef Walk walk = Walk.__new__(Walk)
        walk.executor, walk.lane = self.tables.executor, directory.lane
        walk.one, walk.data.directories[0] = directory, directory.fd
        walk.credential = credential
        walk.job.as_caller = True
        walk.job.caller = credential.identity
        return walk

    cdef Node adopt(self, Node directory, int descriptor, kernel_handle_t *kernel, statx_t *status):
        """The node of a file in a directory, whose O_PATH descriptor is taken over."""
        cdef object mount = directory.mount
        cdef bytes handle = self.handle_of(directory, kernel)
        cdef NodeTable nodes = self.tables.nodes
        cdef Node node = nodes.find(handle)
        if node is None:
            inode = nodes.inode(key_of(directory, kernel))
            node = Node(handle, inode, mount, descriptor, type_in(status), self.tables.close_later)
            nodes.add(node)
        else:
            c_close(descriptor)
        return node

    cdef bytes handle_of(self, Node directory, kernel_handle_t *kernel):
        """The NFS handle of a kernel handle on the file system of a directory."""
        if self.codec is None:
            self.codec = self.tables.known.codec
        return self.codec.beside(directory.handle, kernel.kind, kernel.octets, kernel.size)
