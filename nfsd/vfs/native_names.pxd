"""C declarations of the file service's native changes of names."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.native_files cimport changes_t
from nfsd.vfs.native_attributes cimport NativeAttributes
from nfsd.vfs.flushes cimport Sync
from nfsd.vfs.name_changes cimport Kind, NameChange, Walk, name_t
from nfsd.vfs.records cimport Credential, Inode, Node


cdef class NativeNames(NativeAttributes):
    """Native operations, those that make, remove and rename files included."""

    cdef tuple delegated        # the files of the change that has just been declined because of delegations; or None

    cdef bint changeable(self, Node directory) except -1
    cdef NameChange change_of(self, Kind kind, Credential credential, Node directory, const uint8_t *name, size_t size)
    cdef bint is_gone(self, Node directory) except -1
    cdef NameChange here(self, NameChange change)
    cdef bint settled(self, NameChange change) except -1
    cdef Sync to_settle(self, NameChange change)
    cdef bint made_whole(self, NameChange change) except -1
    cdef NameChange to_make(
        self, Kind kind, Credential credential, Node directory, const uint8_t *name, size_t size, changes_t *wanted,
        int64_t length, uint32_t umask=*, bint opens=*
    )
    cdef NameChange to_symlink(
        self, Credential credential, Node directory, const uint8_t *name, size_t size, bytes text, changes_t *wanted
    )
    cdef NameChange to_remove(self, Kind kind, Credential credential, Node directory, const uint8_t *name, size_t size)
    cdef NameChange to_rename(
        self, Credential credential, Node old_directory, const uint8_t *old, size_t old_size, Node directory,
        const uint8_t *name, size_t size
    )
    cdef NameChange to_link(self, Credential credential, Node node, Node directory, const uint8_t *name, size_t size)
    cdef int set_initial(self, NameChange change, changes_t *wanted) except -1
    cdef int created(self, NameChange change) except -1
    cdef bint free_to_change(self, NameChange change) except -1
    cdef bint undelegated(self, NameChange change, Inode victim, Inode moved) except -1
    cdef bint named(self, NameChange change, name_t *name) except -1
    cdef Walk walk(self, NameChange change)
    cdef Node node_of(self, NameChange change, name_t *name)
    cdef Inode inode_of(self, NameChange change, name_t *name)
    cdef int removed(self, NameChange change) except -1
    cdef int bury(self, Inode inode) except -1
