"""C declarations of changes of one file's attributes, here or on a worker."""

from libc.stdint cimport int64_t

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.native_files cimport NO_ID, UTIME_OMIT, changes_t
from nfsd.vfs.executor cimport Job
from nfsd.vfs.records cimport Node, OpenFile

ctypedef struct attribute_change_t:
    int file                    # O_PATH
    int proc                    # /proc/self/fd
    int writing                 # open for writing, if the size is to be set
    int64_t size                # -1: not to be set
    changes_t changes
    bint used                   # a file without names is still one
    bint unequal                # the guard has found another ctime: nothing has been done
    bint touching               # what has failed is the setting of times
    int made                    # how much has been done
    int error                   # errno, or 0
    statx_t before
    statx_t after


cdef class AttributeChange(Job):
    cdef Node node
    cdef OpenFile opened        # to set the size through
    cdef object credential
    cdef object failures        # of fsync, before
    cdef attribute_change_t data

    cdef int run_here(self) except -1
    cdef int settle(self) except -1


cdef inline bint changes_owner(const changes_t *changes) noexcept nogil:
    return changes.uid != NO_ID or changes.gid != NO_ID


cdef inline bint changes_times(const changes_t *changes) noexcept nogil:
    return changes.times[0].nanoseconds != UTIME_OMIT or changes.times[1].nanoseconds != UTIME_OMIT


cdef int apply_changes(int file, int proc, const changes_t *changes, int *made, bint *touching) noexcept nogil
