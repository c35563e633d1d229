# distutils: extra_compile_args = -O2
"""The file by which the journal of a file system is committed (contract: ``journal_files.pyi``).

Owns :class:`JournalFile`; imports nothing but system calls. Where all changes are in one journal, an fsync(2) of the latest
one has the earlier ones on the disk, too. The latest one is made for that, of the times of a file without a name. The file is kept for
the next commit: to make a new one each time, and to remove it, takes more CPU than the fsync and is more to be written.

A file system with such a file cannot be remounted read-only, so it is closed when there has been no commit for a while.
"""

from libc.errno cimport EINTR, errno

from nfsd.vfs.kernel cimport O_CLOEXEC, O_EXCL, O_TMPFILE, O_WRONLY, SYS_utimensat, c_close, c_openat, c_syscall, fsync


cdef int fsync_of(int descriptor) noexcept nogil:
    cdef int error = EINTR
    while error == EINTR:
        error = errno if fsync(descriptor) != 0 else 0
    return error


cdef void let_go(journal_file_t *file) noexcept nogil:
    c_close(file.fd)
    file.fd = -1


cdef int commit_through(journal_file_t *file, int root, int *unopened) noexcept nogil:
    cdef int error
    file.used = True
    if file.fd >= 0 and c_syscall(SYS_utimensat, file.fd, NULL, NULL, 0) != 0:
        let_go(file)
    if file.fd < 0:
        file.fd = c_openat(root, b".", O_TMPFILE | O_WRONLY | O_EXCL | O_CLOEXEC, 0)
        if file.fd < 0:
            unopened[0] = errno
            return 0
    error = fsync_of(file.fd)
    if error != 0:
        let_go(file)
    return error


cdef class JournalFile:
    def __cinit__(self):
        self.file.fd = -1

    def rested(self):
        if self.file.used:
            self.file.used = False
            return -1
        return self.taken()

    def taken(self):
        cdef int descriptor = self.file.fd
        self.file.fd = -1
        return descriptor
