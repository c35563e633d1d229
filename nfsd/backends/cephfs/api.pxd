"""Ceph's client library, its low-level half: files by their inodes, each call as somebody (cephfs/libcephfs.h)."""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from posix.time cimport timespec

from nfsd.vfs.stored_files cimport iovec

cdef extern from "sys/statvfs.h" nogil:
    cdef struct statvfs_t "statvfs":
        unsigned long f_bsize
        unsigned long f_frsize
        unsigned long f_blocks
        unsigned long f_bfree
        unsigned long f_bavail
        unsigned long f_files
        unsigned long f_ffree
        unsigned long f_favail
        unsigned long f_namemax

cdef extern from "dirent.h" nogil:
    cdef struct dirent_t "dirent":
        unsigned long d_ino
        long d_off
        char d_name[256]

cdef extern from "fcntl.h" nogil:
    cdef struct flock_t "flock":
        short l_type
        short l_whence
        long l_start
        long l_len
        int l_pid

cdef extern from "cephfs/libcephfs.h" nogil:
    cdef struct ceph_mount_info:
        pass
    cdef struct UserPerm:
        pass
    cdef struct inode_t "Inode":
        pass
    cdef struct Fh:
        pass
    cdef struct ceph_dir_result:
        pass
    cdef struct inodeno_t:
        uint64_t val
    cdef struct snapid_t "_snapid_t":
        uint64_t val
    cdef struct vinodeno_t:
        inodeno_t ino
        snapid_t snapid
    cdef struct ceph_statx:
        uint32_t stx_mask
        uint32_t stx_blksize
        uint32_t stx_nlink
        uint32_t stx_uid
        uint32_t stx_gid
        uint16_t stx_mode
        uint64_t stx_ino
        uint64_t stx_size
        uint64_t stx_blocks
        uint64_t stx_dev
        uint64_t stx_rdev
        timespec stx_atime
        timespec stx_ctime
        timespec stx_mtime
        timespec stx_btime
        uint64_t stx_version

    cdef unsigned int CEPH_STATX_ALL_STATS
    cdef unsigned int CEPH_STATX_BTIME
    cdef unsigned int CEPH_STATX_VERSION
    cdef int CEPH_SETATTR_MODE
    cdef int CEPH_SETATTR_UID
    cdef int CEPH_SETATTR_GID
    cdef int CEPH_SETATTR_MTIME
    cdef int CEPH_SETATTR_ATIME
    cdef int CEPH_SETATTR_SIZE
    cdef int CEPH_SETATTR_MTIME_NOW
    cdef int CEPH_SETATTR_ATIME_NOW
    cdef unsigned int CEPH_RECLAIM_RESET

    int ceph_create(ceph_mount_info **mount, const char *id)
    int ceph_conf_read_file(ceph_mount_info *mount, const char *path)
    int ceph_conf_set(ceph_mount_info *mount, const char *option, const char *value)
    int ceph_conf_get(ceph_mount_info *mount, const char *option, char *value, size_t size)
    int ceph_init(ceph_mount_info *mount)
    int ceph_select_filesystem(ceph_mount_info *mount, const char *name)
    int ceph_mount(ceph_mount_info *mount, const char *root)
    int64_t ceph_get_fs_cid(ceph_mount_info *mount)
    unsigned int ceph_umask(ceph_mount_info *mount, unsigned int mask)
    int ceph_unmount(ceph_mount_info *mount)
    int ceph_release(ceph_mount_info *mount)
    void ceph_set_uuid(ceph_mount_info *mount, const char *uuid)
    int ceph_start_reclaim(ceph_mount_info *mount, const char *uuid, unsigned int flags)
    void ceph_finish_reclaim(ceph_mount_info *mount)

    UserPerm *ceph_userperm_new(unsigned int uid, unsigned int gid, int count, unsigned int *groups)
    void ceph_userperm_destroy(UserPerm *who)

    inode_t *ceph_ll_get_inode(ceph_mount_info *mount, vinodeno_t number)
    int ceph_ll_lookup_vino(ceph_mount_info *mount, vinodeno_t number, inode_t **found)
    int ceph_ll_lookup_root(ceph_mount_info *mount, inode_t **found)
    int ceph_ll_put(ceph_mount_info *mount, inode_t *inode)
    int ceph_ll_lookup(
        ceph_mount_info *mount, inode_t *directory, const char *name, inode_t **found, ceph_statx *status,
        unsigned int want, unsigned int flags, const UserPerm *who,
    )
    int ceph_ll_getattr(
        ceph_mount_info *mount, inode_t *inode, ceph_statx *status, unsigned int want, unsigned int flags,
        const UserPerm *who,
    )
    int ceph_ll_setattr(ceph_mount_info *mount, inode_t *inode, ceph_statx *status, int mask, const UserPerm *who)
    int ceph_ll_open(ceph_mount_info *mount, inode_t *inode, int flags, Fh **file, const UserPerm *who)
    int ceph_ll_close(ceph_mount_info *mount, Fh *file)
    int ceph_ll_read(ceph_mount_info *mount, Fh *file, int64_t offset, uint64_t size, char *sink)
    int64_t ceph_ll_writev(ceph_mount_info *mount, Fh *file, const iovec *parts, int count, int64_t offset)
    int ceph_ll_fsync(ceph_mount_info *mount, Fh *file, int data_only)
    int ceph_ll_sync_inode(ceph_mount_info *mount, inode_t *inode, int data_only)
    int ceph_ll_fallocate(ceph_mount_info *mount, Fh *file, int mode, int64_t offset, int64_t size)
    int ceph_ll_getxattr(
        ceph_mount_info *mount, inode_t *inode, const char *name, void *value, size_t size, const UserPerm *who
    )
    int ceph_ll_setxattr(
        ceph_mount_info *mount, inode_t *inode, const char *name, const void *value, size_t size, int flags,
        const UserPerm *who,
    )
    int ceph_ll_listxattr(
        ceph_mount_info *mount, inode_t *inode, char *names, size_t size, size_t *needed, const UserPerm *who
    )
    int ceph_ll_removexattr(ceph_mount_info *mount, inode_t *inode, const char *name, const UserPerm *who)
    int ceph_ll_mknod(
        ceph_mount_info *mount, inode_t *directory, const char *name, unsigned int mode, uint64_t rdev, inode_t **made,
        ceph_statx *status, unsigned int want, unsigned int flags, const UserPerm *who,
    )
    int ceph_ll_mkdir(
        ceph_mount_info *mount, inode_t *directory, const char *name, unsigned int mode, inode_t **made,
        ceph_statx *status, unsigned int want, unsigned int flags, const UserPerm *who,
    )
    int ceph_ll_symlink(
        ceph_mount_info *mount, inode_t *directory, const char *name, const char *text, inode_t **made,
        ceph_statx *status, unsigned int want, unsigned int flags, const UserPerm *who,
    )
    int ceph_ll_link(
        ceph_mount_info *mount, inode_t *inode, inode_t *directory, const char *name, const UserPerm *who
    )
    int ceph_ll_unlink(ceph_mount_info *mount, inode_t *directory, const char *name, const UserPerm *who)
    int ceph_ll_rmdir(ceph_mount_info *mount, inode_t *directory, const char *name, const UserPerm *who)
    int ceph_ll_rename(
        ceph_mount_info *mount, inode_t *directory, const char *name, inode_t *target, const char *new_name,
        const UserPerm *who,
    )
    int ceph_ll_readlink(ceph_mount_info *mount, inode_t *inode, char *sink, size_t size, const UserPerm *who)
    int ceph_ll_opendir(ceph_mount_info *mount, inode_t *inode, ceph_dir_result **found, const UserPerm *who)
    int ceph_ll_releasedir(ceph_mount_info *mount, ceph_dir_result *directory)
    void ceph_seekdir(ceph_mount_info *mount, ceph_dir_result *directory, int64_t offset)
    int ceph_readdirplus_r(
        ceph_mount_info *mount, ceph_dir_result *directory, dirent_t *entry, ceph_statx *status, unsigned int want,
        unsigned int flags, inode_t **found,
    )
    int ceph_ll_statfs(ceph_mount_info *mount, inode_t *inode, statvfs_t *status)
    int ceph_ll_getlk(ceph_mount_info *mount, Fh *file, flock_t *lock, uint64_t owner)
    int ceph_ll_setlk(ceph_mount_info *mount, Fh *file, flock_t *lock, uint64_t owner, int sleep)
