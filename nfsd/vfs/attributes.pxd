"""The kernel's ``struct statx`` (statx(2)), for native code."""

from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t

from nfsd.vfs.change cimport ChangeRecord

ctypedef struct statx_timestamp:
    int64_t seconds
    uint32_t nanoseconds
    int32_t reserved

ctypedef struct statx_t:
    uint32_t mask
    uint32_t blksize
    uint64_t attributes
    uint32_t nlink
    uint32_t uid
    uint32_t gid
    uint16_t mode
    uint16_t reserved
    uint64_t ino
    uint64_t size
    uint64_t blocks
    uint64_t attributes_mask
    statx_timestamp atime
    statx_timestamp btime
    statx_timestamp ctime
    statx_timestamp mtime
    uint32_t rdev_major
    uint32_t rdev_minor
    uint32_t dev_major
    uint32_t dev_minor
    uint64_t mnt_id
    uint64_t spare[12]
    uint64_t count              # of changes, as the file's store counts them, if the mask says so; else of the kernel's

cdef enum:
    ATTRIBUTE_MOUNT_ROOT = 0x2000
    HAS_BIRTH_TIME = 0x800
    COUNTED = 0x40000000        # STATX_CHANGE_COOKIE, which the kernel does not give to processes


cdef object type_in(statx_t *status)
cdef int fill_status(statx_t *status, object attributes) except -1
cdef int set_status(statx_t *status, object attributes, object mount) except -1
cdef object attributes_in(statx_t *status, mount, ChangeRecord record, bint changed)
cdef statx_t *status_in(object buffer) except NULL


cdef inline bint same_permissions(statx_t *one, statx_t *other) noexcept nogil:
    """Whether nobody, a write that clears set-user-id included, has changed mode or owner between two looks."""
    return one.mode == other.mode and one.uid == other.uid and one.gid == other.gid
