# distutils: extra_compile_args = -O2
"""The hot records of the file service: caller, inode, node, open file (contract: ``records.pyi``).

Owns their fields and the rules that concern one record alone; the tables are in :mod:`nfsd.vfs.nodes` and
:mod:`nfsd.vfs.opens`, in Python. Both they and native operations work on these very records: nothing is mirrored.
"""

from cpython.dict cimport PyDict_GetItem
from cpython.long cimport PyLong_AsVoidPtr, PyLong_FromVoidPtr
from cpython.object cimport PyObject
from libc.stdlib cimport free, malloc

from nfsd.vfs.attributes cimport same_permissions, statx_t
from nfsd.vfs.kernel cimport CLOCK_REALTIME, c_close, clock_gettime, timespec
from nfsd.vfs.change cimport SETTLE, ChangeRecord
from nfsd.vfs.identity cimport is_somebody
from nfsd.vfs.serial cimport Serial

from nfsd.vfs.syncing import GroupSync

cdef extern from "sys/stat.h" nogil:
    cdef struct stat_t "stat":
        unsigned long st_nlink
        long st_blocks
    int c_fstat "fstat"(int fd, stat_t *status)

cdef enum:
    ELSEWHERE = -2
    SOON_FREED = 2048       # blocks of 512 octets: what the last close frees meanwhile takes some 50 microseconds
    SEARCHERS_KEPT = 64     # callers, of each directory

NO_DESCRIPTOR = ELSEWHERE


cdef int leave(dict table, bytes name, void *record) except -1:
    """A record goes: its table must not lead to it any more (but may to a newer one of the same name)."""
    cdef PyObject *found
    if table is not None:
        found = PyDict_GetItem(table, name)
        if found != NULL and PyLong_AsVoidPtr(<object>found) == record:
            del table[name]
    return 0


cpdef bint closed_at_once(int fd) noexcept:
    cdef stat_t status
    if c_fstat(fd, &status) != 0 or (status.st_nlink == 0 and status.st_blocks > SOON_FREED):
        return False
    c_close(fd)
    return True


cdef bint frees_little(statx_t *status) noexcept nogil:
    """Of a file that has lost its last name, as it has just been looked at."""
    return status.nlink == 0 and status.blocks <= SOON_FREED


cdef inline bint closed_here(Inode inode, int fd) noexcept:
    """As :func:`closed_at_once`, of a file's descriptor, without asking again."""
    if not inode.slight:
        return closed_at_once(fd)
    c_close(fd)
    return True


cdef class Credential:
    """Whom an operation runs as. Immutable, hashable."""

    def __init__(self, unsigned int uid, unsigned int gid, gids=(), str host not None="", unsigned int umask=0):
        cdef Py_ssize_t position
        if self.identity.groups != NULL:
            raise TypeError("credentials do not change")
        self.gids = tuple(gids)
        self.host = host
        self.umask = umask
        self.identity.uid = uid
        self.identity.gid = gid
        self.identity.ngroups = <int>len(self.gids)
        self.identity.groups = <unsigned int *>malloc(max(1, self.identity.ngroups) * sizeof(unsigned int))
        if self.identity.groups == NULL:
            raise MemoryError
        for position in range(self.identity.ngroups):
            self.identity.groups[position] = self.gids[position]
        if not is_somebody(&self.identity):
            raise ValueError("nobody has this id")
        self.hash = hash((uid, gid, self.gids))

    def __dealloc__(self):
        free(self.identity.groups)

    @property
    def uid(self):
        return self.identity.uid

    @property
    def gid(self):
        return self.identity.gid

    def __hash__(self):
        return self.hash

    def __eq__(self, other):
        if self is other:
            return True
        if not isinstance(other, Credential):
            return NotImplemented
        return (
            self.identity.uid == (<Credential>other).identity.uid
            and self.identity.gid == (<Credential>other).identity.gid
            and self.gids == (<Credential>other).gids
        )

    def __repr__(self):
        return f"Credential(uid={self.uid}, gid={self.gid}, gids={self.gids})"


cdef class Inode:
    """One file, whatever the export and the name."""

    def __init__(self, bytes key not None):
        self.key = key
        self.serial = Serial()
        self.change = ChangeRecord()
        self.epoch = 0
        self.ctime = -1
        self.opens = {}
        self.unstable = []
        self.used_count = 0
        self.sync = GroupSync()
        self.accesses = {}
        self.lease = None
        self.delegated = 0
        self.holder = None
        self.lock_serial = Serial()
        self.locks = None

    cpdef void saw_ctime(self, long long ctime) noexcept:
        # While our own writes are under way it is theirs, as far as anybody knows: they tell, one after the other, when
        # they are over, and somebody else's change shows as a gap between two of them.
        if ctime != self.ctime and not self.serial.moving():
            self.ctime = ctime
            self.epoch += 1

    cpdef void wrote(self, long long before, long long after) noexcept:
        if before != self.ctime:
            self.epoch += 1
        self.ctime = after

    cdef void changed_between(self, statx_t *before, statx_t *after) noexcept:
        """As :meth:`wrote`, of a change between these two looks, which may show somebody else's: where ctime does not
        tell of it, mode and owner do. Of what has failed as well: as long as nothing but changes of ours were under way,
        nobody would notice another."""
        self.wrote(
            before.ctime.seconds * 1000000000 + before.ctime.nanoseconds,
            after.ctime.seconds * 1000000000 + after.ctime.nanoseconds,
        )
        if not same_permissions(before, after):
            self.epoch += 1

    cdef list in_exports(self):
        """Its nodes, one of each export in which anybody holds it."""
        cdef list found = []
        cdef void *node = self.first
        while node != NULL:
            found.append(<Node>node)
            node = (<Node>node).next
        return found

    def permissions_changed(self):
        self.epoch += 1

    # A directory is looked at before a name is looked up in it, so that its ctime and epoch are those of now.
    cdef long long permissions(self, bint fine) noexcept:
        """What is another number whenever the directory's permissions may be others, as of the look just taken. Where two
        changes can have the same ctime, that is a ctime at which nothing more can change."""
        return <long long>self.epoch if fine else self.ctime

    cdef bint lets_search(self, Credential who, bint fine) except -1:
        """Whether the kernel would let this caller look names up in the directory, because it has."""
        cdef PyObject *found
        if self.searchers is None or self.serial.moving():
            return False
        found = PyDict_GetItem(self.searchers, who)
        return found != NULL and <long long>(<object>found) == self.permissions(fine)

    cdef int has_let_search(self, Credential who, bint fine) except -1:
        """The kernel has just let this caller look a name up."""
        cdef timespec clock
        if self.serial.moving():
            return 0
        if not fine:
            clock_gettime(CLOCK_REALTIME, &clock)
            if clock.tv_sec * 1000000000 + clock.tv_nsec - self.ctime <= SETTLE:
                return 0
        if self.searchers is None or len(self.searchers) >= SEARCHERS_KEPT:
            self.searchers = {}
        self.searchers[who] = self.permissions(fine)
        return 0

    def __del__(self):
        leave(self.table, self.key, <void *>self)


cdef class Node:
    """One file of one export. Its descriptor names it; it is not open for anything."""

    def __init__(self, bytes handle not None, Inode inode not None, mount, int fd, type_, close):
        self._close = close
        self.fd = fd
        self.handle = handle
        self.mount = mount
        self.export = mount.export
        self.inode = inode
        self.next, inode.first = inode.first, <void *>self
        self.key = inode.key
        self.type = type_
        self.used = 0
        self.inline = mount.inline
        self.caching = mount.caching
        self.fine = mount.fine
        self.by_place = mount.by_place
        self.lane = mount.lane
        self.stored_names = mount.stored_names
        self.key_prefix = mount.key_prefix
        self.write_back = mount.write_back
        self.mnt_id = mount.mnt_id
        self.device_major, self.device_minor = mount.device
        self.fsid[0], self.fsid[1] = mount.fsid

    def shut(self):
        cdef int fd = self.fd
        if fd >= 0:
            self.fd = -1
            if not self.inline or not closed_here(self.inode, fd):
                self._close(fd, self.lane)

    def __del__(self):
        if self.inode is not None:
            self.part()
        leave(self.table, self.handle, <void *>self)
        self.shut()

    cdef void part(self) noexcept:
        """Its inode does not lead to it any more."""
        cdef void **link = &self.inode.first
        while link[0] != NULL and link[0] != <void *>self:
            link = &(<Node>link[0]).next
        if link[0] != NULL:
            link[0] = self.next


cdef class OpenFile:
    """A descriptor open under one credential for one access; shared, counted."""

    def __init__(self, Node node not None, int fd, int access, credential, close, share, stored=None):
        self._close = close
        self.share = share
        self.fd = fd
        self.node = node
        self.readable = access & 1
        self.writable = (access & 2) != 0
        self.credential = credential
        self.stored = stored
        self.count = 0
        self.epoch = -1
        self.used = 0
        self.cached = None
        self.unstable = False
        self.leaving = False
        self.holders = None

    cdef void keep(self) noexcept:
        """One more count."""
        if self.count == 0:
            self.node.inode.used_count += 1
        self.count += 1

    cdef void let_go(self) noexcept:
        """One less."""
        self.count -= 1
        if self.count == 0:
            self.node.inode.used_count -= 1

    def retain(self):
        self.keep()
        return self

    def release(self):
        self.let_go()

    def shut(self):
        cdef int fd = self.fd
        if fd >= 0 or fd == ELSEWHERE:
            self.fd = -1
            freed = self.share.left if self.leaving else self.share.give_back
            if fd < 0 or not self.node.inline or not closed_here(self.node.inode, fd):
                self._close(fd, self.node.lane, freed)
            else:
                freed()

    def __del__(self):
        if self.registry is not None:
            self.registry.pop(PyLong_FromVoidPtr(<void *>self), None)
        self.shut()
