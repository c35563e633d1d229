"""C declarations of changes of a directory's names, here or on a worker."""

from libc.stdint cimport uint32_t

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.direct cimport NAME_MAX, kernel_handle_t, when_t
from nfsd.vfs.executor cimport Job
from nfsd.vfs.records cimport Inode, Node, OpenFile

ctypedef struct name_change_t:
    int directory
    char path[NAME_MAX + 1]
    bint removes
    bint certain                # the name leads to ``kernel``: that has just been looked at
    uint32_t mode               # of a file to be made
    bint timed
    when_t times[2]             # its atime and mtime
    kernel_handle_t kernel      # of the file
    int descriptor              # of a new file, open for reading and writing; -1
    int naming                  # O_PATH; -1
    bint short_of_descriptors
    int error                   # errno, or 0; then nothing has been done, or nothing is left of it
    statx_t before              # of the directory
    statx_t after
    statx_t status              # of the file


cdef class NameChange(Job):
    cdef Node directory
    cdef name_change_t data
    cdef object credential
    cdef object share           # a place for the new file's descriptor; None: it does not stay open
    cdef OpenFile to_sync       # the directory, where that waits for nothing
    cdef Inode victim           # of a file to be removed, if it is known
    cdef Node made

    cdef int run_here(self) except -1
    cdef int settle(self) except -1
