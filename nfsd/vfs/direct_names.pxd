"""C declarations of the file service's direct changes of names."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.direct cimport DirectFiles, kernel_handle_t, when_t
from nfsd.vfs.name_changes cimport NameChange
from nfsd.vfs.records cimport Credential, Inode, Node, OpenFile
from rpcrdma.rpc.work cimport Errand


cdef class DirectNames(DirectFiles):
    """Direct operations, those that make and remove names included."""

    cdef uint64_t change_before     # the directory's change attribute before the last of these

    cdef bint changeable(self, Node directory) except -1
    cdef NameChange change_of(self, Credential credential, Node directory, const uint8_t *name, size_t size)
    cdef bint changed(self, NameChange change) except -1
    cdef NameChange to_create(self, Credential credential, Node directory, const uint8_t *name, size_t size, uint32_t mode, when_t *times)
    cdef NameChange here(self, NameChange change)
    cdef Node created(self, NameChange change)
    cdef bint settled(self, NameChange change) except -1
    cdef Errand to_settle(self, NameChange change)
    cdef Node adopt(self, Node directory, int descriptor, kernel_handle_t *kernel)
    cdef NameChange to_remove(self, Credential credential, Node directory, const uint8_t *name, size_t size)
    cdef bint named(self, NameChange change, int *mount) except -1
    cdef bint removed(self, NameChange change) except -1
    cdef int bury(self, Node directory, Inode inode, Node node, bytes kernel) except -1
