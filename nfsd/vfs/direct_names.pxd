"""C declarations of the file service's direct changes of names."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.direct cimport DirectFiles, kernel_handle_t, when_t
from nfsd.vfs.records cimport Credential, Inode, Node, OpenFile


cdef class DirectNames(DirectFiles):
    """Direct operations, those that make and remove names included."""

    cdef uint64_t change_before     # the directory's change attribute before the last of these

    cdef bint changeable(self, Node directory) except -1
    cdef int changed(self, Node directory, OpenFile opened, statx_t *before, statx_t *after) except -1
    cdef Node create(self, Credential credential, Node directory, const uint8_t *name, size_t size, uint32_t mode, when_t *times, statx_t *status, statx_t *before, statx_t *after)
    cdef Node adopt(self, Node directory, int descriptor, kernel_handle_t *kernel)
    cdef bint remove(self, Credential credential, Node directory, const uint8_t *name, size_t size, statx_t *before, statx_t *after) except -1
    cdef int bury(self, Node directory, Inode inode, Node node, bytes kernel) except -1
