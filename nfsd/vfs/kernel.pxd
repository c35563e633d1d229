"""System calls of native code: their functions, their numbers and the flags of those that libc does not wrap."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from "unistd.h" nogil:
    long c_syscall "syscall"(long number, ...)
    ssize_t pread(int fd, void *sink, size_t size, long offset)
    ssize_t pwrite(int fd, const void *source, size_t size, long offset)
    ssize_t c_write "write"(int fd, const void *data, size_t size)
    int fsync(int fd)
    int unlinkat(int directory, const char *path, int flags)
    int c_ftruncate "ftruncate"(int fd, long length)
    int c_close "close"(int fd)
    long c_lseek "lseek"(int fd, long offset, int whence)
    const int SEEK_SET
    int getpagesize()

cdef extern from "fcntl.h" nogil:
    int c_openat "openat"(int directory, const char *path, int flags, ...)
    const int O_CLOEXEC
    const int O_DIRECTORY
    const int O_EXCL
    const int O_TMPFILE
    const int O_WRONLY
    int c_fcntl "fcntl"(int fd, int command, ...)
    struct f_owner_ex:
        int type
        int pid
    const int F_GETLEASE
    const int F_OWNER_TID
    const int F_RDLCK
    const int F_SETLEASE
    const int F_SETOWN_EX
    const int F_SETSIG
    const int F_UNLCK
    const int F_WRLCK
    int sync_file_range(int fd, long offset, long size, unsigned int flags)
    const unsigned int SYNC_FILE_RANGE_WAIT_AFTER
    const unsigned int SYNC_FILE_RANGE_WAIT_BEFORE
    const unsigned int SYNC_FILE_RANGE_WRITE

cdef extern from "sys/syscall.h" nogil:
    const long SYS_capget
    const long SYS_capset
    const long SYS_close
    const long SYS_faccessat2
    const long SYS_fanotify_mark
    const long SYS_fchmodat
    const long SYS_fchownat
    const long SYS_fdatasync
    const long SYS_fsync
    const long SYS_getdents64
    const long SYS_getegid
    const long SYS_geteuid
    const long SYS_getgroups
    const long SYS_getxattr
    const long SYS_linkat
    const long SYS_mkdirat
    const long SYS_name_to_handle_at
    const long SYS_open_by_handle_at
    const long SYS_openat
    const long SYS_openat2
    const long SYS_renameat2
    const long SYS_setfsgid
    const long SYS_setfsuid
    const long SYS_setgroups
    const long SYS_setresgid
    const long SYS_setresuid
    const long SYS_readlinkat
    const long SYS_statx
    const long SYS_syncfs
    const long SYS_symlinkat
    const long SYS_utimensat

cdef enum:
    SYS_fchmodat2 = 452         # Linux 6.6; older headers do not know it

cdef extern from "time.h" nogil:
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *now)
    const int CLOCK_REALTIME

cdef struct how_t:              # struct open_how, of openat2(2)
    uint64_t flags
    uint64_t mode
    uint64_t resolve

cdef struct kernel_handle_t:    # struct file_handle, of name_to_handle_at(2)
    uint32_t size
    int kind
    uint8_t octets[128]

cdef enum:
    # Newer than the headers; the same on every architecture.
    SYS_CACHESTAT = 451
    SYS_QUOTACTL_FD = 443
    AT_EMPTY_PATH = 0x1000
    STATX_SIZE = 0x200
    AT_SYMLINK_NOFOLLOW = 0x100
    AT_SYMLINK_FOLLOW = 0x400
    AT_REMOVEDIR = 0x200
    AT_NO_AUTOMOUNT = 0x800
    AT_EACCESS = 0x200
