"""C declarations of files by which journals are committed."""

ctypedef struct journal_file_t:
    int fd                      # -1: there is none
    bint used                   # since somebody has last looked


cdef class JournalFile:
    cdef journal_file_t file


cdef int fsync_of(int descriptor) noexcept nogil
# Have everything that has been changed in the file system on the disk, of which ``root`` is a directory. Returns an errno, or 0. If
# there is no such file and none can be made, ``unopened`` is why, and nothing has been done. One thread at a time.
cdef int commit_through(journal_file_t *file, int root, int *unopened) noexcept nogil
