"""A CephFS file system mounted by Ceph's own client library: inodes and their attributes (contract: ``mounted.pyi``).

Owns the mount. Every method waits for the cluster, so none is for the event loop's thread;
the interpreter is free meanwhile. Files go by keys of 16 octets: the inode's number and the snapshot's that it is of. The
library finds an inode that it has in memory by these, and asks a metadata server for any other.
"""

import errno
import os
import threading

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from nfsd.backends.cephfs.api cimport *
from nfsd.vfs.attributes cimport COUNTED, HAS_BIRTH_TIME, statx_t, statx_timestamp, status_in
from nfsd.vfs.identity cimport identity_t
from nfsd.vfs.records cimport Credential

from nfsd.vfs.attributes import statx_buffer

cdef extern from "sys/sysmacros.h" nogil:
    unsigned int c_major "major"(uint64_t device)
    unsigned int c_minor "minor"(uint64_t device)

cdef extern from "errno.h" nogil:
    int ESTALE
    int ENOENT

cdef enum:
    BASIC = 0x7FF                   # STATX_BASIC_STATS
    TEXT = 4096
    VALUE = 65536

cdef uint64_t SNAPSHOTS = <uint64_t>-1
cdef uint64_t MIXER = 0x9E3779B97F4A7C15

NOT_OF_A_SNAPSHOT = <uint64_t>LIVE
"""CEPH_NOSNAP: in the place of a snapshot's number."""
DIRECTORY_OF_SNAPSHOTS = SNAPSHOTS
"""CEPH_SNAPDIR: a directory's ``.snap``, likewise."""


cdef int check(int64_t result) except -1:
    """Raise OSError for what the library has returned, if that is an error."""
    if result < 0:
        raise OSError(<int>-result, os.strerror(<int>-result))
    return 0


cdef const char *octets_of(bytes key) except NULL:
    """A key as :meth:`Mounted.find` takes it. Raises ESTALE for what is none."""
    if len(key) != 16:
        raise OSError(ESTALE, os.strerror(ESTALE))
    return key


cdef class Caller:
    """As whom a call is made. Its groups are the credential's, which lives as long."""

    def __cinit__(self, Credential credential):
        self.credential = credential
        if credential is None:
            self.who = ceph_userperm_new(0, 0, 0, NULL)
        else:
            self.who = ceph_userperm_new(
                credential.identity.uid, credential.identity.gid, credential.identity.ngroups, credential.identity.groups
            )
        if self.who == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.who != NULL:
            ceph_userperm_destroy(self.who)


cdef inline void set_time(statx_timestamp *into, const timespec *time) noexcept nogil:
    into.seconds, into.nanoseconds = time.tv_sec, <uint32_t>time.tv_nsec


cdef void fill(statx_t *look, const ceph_statx *seen) noexcept nogil:
    """A look from the library's. In a snapshot, files have the numbers of the living ones. No other file of an export may
    have that, so theirs are made of both."""
    memset(look, 0, sizeof(statx_t))
    look.mask = BASIC
    look.blksize = seen.stx_blksize
    look.nlink, look.uid, look.gid, look.mode = seen.stx_nlink, seen.stx_uid, seen.stx_gid, seen.stx_mode
    look.size, look.blocks = seen.stx_size, seen.stx_blocks
    look.ino = seen.stx_ino
    if seen.stx_dev != <uint64_t>LIVE:
        look.ino = (seen.stx_ino ^ (seen.stx_dev + 2) * MIXER) | <uint64_t>1 << 63
    look.rdev_major, look.rdev_minor = c_major(seen.stx_rdev), c_minor(seen.stx_rdev)
    set_time(&look.atime, &seen.stx_atime)
    set_time(&look.ctime, &seen.stx_ctime)
    set_time(&look.mtime, &seen.stx_mtime)
    if seen.stx_mask & CEPH_STATX_BTIME:
        look.mask |= HAS_BIRTH_TIME
        set_time(&look.btime, &seen.stx_btime)
    if seen.stx_mask & CEPH_STATX_VERSION:
        look.mask |= COUNTED
        look.count = seen.stx_version


cdef object look_of(const ceph_statx *seen):
    look = statx_buffer()
    fill(status_in(look), seen)
    return look


cdef bytes key_of(const ceph_statx *seen):
    """The library tells the snapshot's number in the place of the device's."""
    cdef uint64_t numbers[2]
    numbers[0], numbers[1] = seen.stx_ino, seen.stx_dev
    return (<char *>numbers)[:16]


cdef int find_in(ceph_mount_info *mount, const char *key, inode_t **found) noexcept nogil:
    """The inode of a key, which is to be put back; 0 or the negative error."""
    cdef vinodeno_t number
    cdef int result = 0
    memcpy(&number.ino, key, 8)
    memcpy(&number.snapid, key + 8, 8)
    found[0] = ceph_ll_get_inode(mount, number)
    if found[0] == NULL:
        result = ceph_ll_lookup_vino(mount, number, found)
    return -ESTALE if result == -ENOENT else result


cdef int see_as(ceph_mount_info *mount, inode_t *inode, ceph_statx *seen, const UserPerm *who) noexcept nogil:
    """A look, or the negative error."""
    cdef int result = ceph_ll_getattr(mount, inode, seen, CEPH_STATX_ALL_STATS, 0, who)
    return -ESTALE if result == -ENOENT else result


cdef class Mounted:
    """See the module."""

    def __init__(self, bytes name not None):
        self.server = ceph_userperm_new(0, 0, 0, NULL)
        if self.server == NULL:
            raise MemoryError
        check(ceph_create(&self.mount, name))
        ceph_umask(self.mount, 0)  # else 002: callers' own have been taken from modes already

    def __dealloc__(self):
        if self.server != NULL:
            ceph_userperm_destroy(self.server)

    # -- mounting ------------------------------------------------------------------------------------------------
    def read_configuration(self, bytes path not None):
        cdef const char *file = path
        cdef int result
        with nogil:
            result = ceph_conf_read_file(self.mount, file)
        check(result)

    def configure(self, bytes option not None, bytes value not None):
        check(ceph_conf_set(self.mount, option, value))

    def configured(self, bytes option not None):
        cdef char value[512]
        check(ceph_conf_get(self.mount, option, value, sizeof(value)))
        return <bytes>value

    def start(self):
        cdef int result
        with nogil:
            result = ceph_init(self.mount)
        check(result)

    def select(self, bytes file_system not None):
        check(ceph_select_filesystem(self.mount, file_system))

    def take_over(self, bytes name not None):
        cdef const char *uuid = name
        cdef int result
        with nogil:
            result = ceph_start_reclaim(self.mount, uuid, CEPH_RECLAIM_RESET)
            ceph_finish_reclaim(self.mount)
            ceph_set_uuid(self.mount, uuid)
        if result != -ENOENT:
            check(result)

    def begin(self, bytes root not None):
        cdef const char *path = root
        cdef int result
        with nogil:
            result = ceph_mount(self.mount, path)
        check(result)

    def file_system(self):
        return ceph_get_fs_cid(self.mount)

    def end(self, again=None):
        cdef ceph_mount_info *mount = self.mount
        if mount == NULL:
            return True
        if self.users:
            self.end_again = again
            return False
        self.mount = NULL
        with nogil:
            ceph_unmount(mount)  # of what was never mounted: an error, and nothing else
            ceph_release(mount)
        return True

    cdef int left(self) except -1:
        """One who has used it does so no more."""
        self.users -= 1
        if not self.users and self.end_again is not None:
            again, self.end_again = self.end_again, None
            threading.Thread(target=again, daemon=True).start()  # it waits
        return 0

    # -- inodes --------------------------------------------------------------------------------------------------
    cdef inode_t *inode(self, bytes key) except NULL:
        """The inode of a key, which is to be put back."""
        cdef const char *octets = octets_of(key)
        cdef inode_t *found = NULL
        cdef int result
        with nogil:
            result = self.find(octets, &found)
        check(result)
        return found

    cdef int look_at(self, inode_t *inode, ceph_statx *seen) except -1:
        cdef int result
        with nogil:
            result = self.see(inode, seen)
        return check(result)

    # These return the negative error. Whoever has several steps to do does them without the interpreter between them:
    # the library has one lock for all its calls, and nobody should wait for it who holds up the interpreter.
    cdef int find(self, const char *key, inode_t **found) noexcept nogil:
        return find_in(self.mount, key, found)

    cdef int see(self, inode_t *inode, ceph_statx *seen) noexcept nogil:
        return see_as(self.mount, inode, seen, self.server)

    def root(self):
        cdef inode_t *found
        cdef ceph_statx seen
        cdef int result
        with nogil:
            result = ceph_ll_lookup_root(self.mount, &found)
        check(result)
        try:
            self.look_at(found, &seen)
        finally:
            ceph_ll_put(self.mount, found)
        return key_of(&seen), look_of(&seen)

    def look(self, bytes key not None):
        cdef const char *octets = octets_of(key)
        cdef inode_t *inode = NULL
        cdef ceph_statx seen
        cdef int result
        with nogil:
            result = self.find(octets, &inode)
            if result == 0:
                result = self.see(inode, &seen)
                ceph_ll_put(self.mount, inode)
        check(result)
        return look_of(&seen)

    def lookup(self, credential, bytes directory not None, bytes name not None):
        cdef Caller caller = Caller(credential)
        cdef inode_t *inode = self.inode(directory)
        cdef inode_t *found = NULL
        cdef ceph_statx seen
        cdef const char *text = name
        cdef int result
        with nogil:
            result = ceph_ll_lookup(self.mount, inode, text, &found, &seen, CEPH_STATX_ALL_STATS, 0, caller.who)
            ceph_ll_put(self.mount, inode)
            if result == 0:
                ceph_ll_put(self.mount, found)
        check(result)
        return key_of(&seen), look_of(&seen)

    def readlink(self, credential, bytes key not None):
        cdef Caller caller = Caller(credential)
        cdef inode_t *inode = self.inode(key)
        cdef char text[TEXT]
        cdef int result
        with nogil:
            result = ceph_ll_readlink(self.mount, inode, text, TEXT, caller.who)
            ceph_ll_put(self.mount, inode)
        check(result)
        return text[:result]

    def space(self, bytes key not None):
        cdef inode_t *inode = self.inode(key)
        cdef statvfs_t status
        cdef int result
        with nogil:
            result = ceph_ll_statfs(self.mount, inode, &status)
            ceph_ll_put(self.mount, inode)
        check(result)
        return (
            status.f_blocks * status.f_frsize, status.f_bfree * status.f_frsize, status.f_bavail * status.f_frsize,
            status.f_files, status.f_ffree,
        )

    # -- attributes ----------------------------------------------------------------------------------------------
    def set(self, credential, bytes key not None, mode, uid, gid, size, atime, mtime):
        """Those that are not None, in one step. Times: (seconds, nanoseconds), or () for now."""
        cdef Caller caller = Caller(credential)
        cdef ceph_statx wanted
        cdef int mask = 0, result
        cdef inode_t *inode
        memset(&wanted, 0, sizeof(wanted))
        if mode is not None:
            mask |= CEPH_SETATTR_MODE
            wanted.stx_mode = mode
        if uid is not None:
            mask |= CEPH_SETATTR_UID
            wanted.stx_uid = uid
        if gid is not None:
            mask |= CEPH_SETATTR_GID
            wanted.stx_gid = gid
        if size is not None:
            mask |= CEPH_SETATTR_SIZE
            wanted.stx_size = size
        if atime is not None:
            mask |= CEPH_SETATTR_ATIME | (0 if atime[2] else CEPH_SETATTR_ATIME_NOW)
            wanted.stx_atime.tv_sec, wanted.stx_atime.tv_nsec = atime[0], atime[1]
        if mtime is not None:
            mask |= CEPH_SETATTR_MTIME | (0 if mtime[2] else CEPH_SETATTR_MTIME_NOW)
            wanted.stx_mtime.tv_sec, wanted.stx_mtime.tv_nsec = mtime[0], mtime[1]
        inode = self.inode(key)
        with nogil:
            result = ceph_ll_setattr(self.mount, inode, &wanted, mask, caller.who)
            ceph_ll_put(self.mount, inode)
        check(result)

    def get_xattr(self, credential, bytes key not None, bytes name not None):
        cdef Caller caller = Caller(credential)
        cdef inode_t *inode = self.inode(key)
        cdef const char *text = name
        cdef int result
        value = bytearray(VALUE)
        cdef char *sink = value
        with nogil:
            result = ceph_ll_getxattr(self.mount, inode, text, sink, VALUE, caller.who)
            ceph_ll_put(self.mount, inode)
        check(result)
        return bytes(memoryview(value)[:result])

    def list_xattrs(self, credential, bytes key not None):
        cdef Caller caller = Caller(credential)
        cdef inode_t *inode = self.inode(key)
        cdef size_t needed = 0
        cdef int result
        names = bytearray(VALUE)
        cdef char *sink = names
        with nogil:
            result = ceph_ll_listxattr(self.mount, inode, sink, VALUE, &needed, caller.who)
            ceph_ll_put(self.mount, inode)
        check(result)
        return [name for name in bytes(memoryview(names)[:needed]).split(b"\0") if name]

    def set_xattr(self, credential, bytes key not None, bytes name not None, bytes value not None, int flags):
        cdef Caller caller = Caller(credential)
        cdef inode_t *inode = self.inode(key)
        cdef const char *text = name
        cdef const char *octets = value
        cdef size_t size = len(value)
        cdef int result
        with nogil:
            result = ceph_ll_setxattr(self.mount, inode, text, octets, size, flags, caller.who)
            ceph_ll_put(self.mount, inode)
        check(result)

    def remove_xattr(self, credential, bytes key not None, bytes name not None):
        cdef Caller caller = Caller(credential)
        cdef inode_t *inode = self.inode(key)
        cdef const char *text = name
        cdef int result
        with nogil:
            result = ceph_ll_removexattr(self.mount, inode, text, caller.who)
            ceph_ll_put(self.mount, inode)
        check(result)
