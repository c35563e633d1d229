"""C declarations of names in CephFS, for workers and for the client's methods."""

from libc.stdint cimport uint64_t

from nfsd.backends.cephfs.api cimport UserPerm, ceph_mount_info
from nfsd.backends.cephfs.mounted cimport Mounted
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.stored_files cimport StoredDirectories, key_t, stored_names_t

ctypedef struct names_t:
    stored_names_t body         # stands first
    ceph_mount_info *mount
    UserPerm *server


cdef class Directories(StoredDirectories):
    """All names of a mount."""

    cdef names_t names
    cdef Mounted mounted


cdef int make_name(
    const names_t *names, UserPerm *who, const key_t *directory, const char *name, unsigned int mode, uint64_t device,
    const char *text, key_t *key, statx_t *status, statx_t *before, statx_t *after
) noexcept nogil
cdef int remove_name(
    const names_t *names, UserPerm *who, const key_t *directory, const char *name, bint a_directory, key_t *key,
    statx_t *status, statx_t *before, statx_t *after
) noexcept nogil
