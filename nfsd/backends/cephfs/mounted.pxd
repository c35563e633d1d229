"""C declarations of the mount, for what is done in it."""

from libc.stdint cimport int64_t, uint64_t

from nfsd.backends.cephfs.api cimport UserPerm, ceph_mount_info, ceph_statx, inode_t
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.records cimport Credential


cdef extern from *:
    """
    #define CEPHFS_LIVE ((uint64_t)-2)
    """
    const uint64_t LIVE "CEPHFS_LIVE"   # CEPH_NOSNAP


cdef int check(int64_t result) except -1
cdef void fill(statx_t *look, const ceph_statx *seen) noexcept nogil
cdef int find_in(ceph_mount_info *mount, const char *key, inode_t **found) noexcept nogil
cdef int see_as(ceph_mount_info *mount, inode_t *inode, ceph_statx *seen, const UserPerm *who) noexcept nogil
cdef object look_of(const ceph_statx *seen)
cdef bytes key_of(const ceph_statx *seen)
cdef const char *octets_of(bytes key) except NULL


cdef class Caller:
    cdef UserPerm *who
    cdef Credential credential


cdef class Mounted:
    """A file system."""

    cdef ceph_mount_info *mount

    cdef UserPerm *server
    """As whom the server itself calls."""
    cdef int users
    """Calls of workers, and others that whoever ends it does not know of."""
    cdef object end_again
    """For the last of them to have called."""

    cdef int left(self) except -1
    cdef inode_t *inode(self, bytes key) except NULL
    cdef int look_at(self, inode_t *inode, ceph_statx *seen) except -1
    cdef int find(self, const char *key, inode_t **found) noexcept nogil
    cdef int see(self, inode_t *inode, ceph_statx *seen) noexcept nogil
