"""C declarations of the mount, for what is done in it."""

from libc.stdint cimport int64_t

from nfsd.backends.cephfs.api cimport UserPerm, ceph_mount_info, ceph_statx, inode_t
from nfsd.vfs.records cimport Credential


cdef int check(int64_t result) except -1
cdef object look_of(const ceph_statx *seen)
cdef bytes key_of(const ceph_statx *seen)


cdef class Caller:
    cdef UserPerm *who
    cdef Credential credential


cdef class Mounted:
    """A file system."""

    cdef ceph_mount_info *mount

    cdef inode_t *inode(self, bytes key) except NULL
    cdef int look_at(self, inode_t *inode, ceph_statx *seen) except -1
