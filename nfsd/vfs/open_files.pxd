"""C declarations of the open files and their cache."""

from nfsd.vfs.records cimport Inode, Node, OpenFile


cdef class OpenFiles:
    cdef object _nodes
    cdef object _chains
    cdef object _unstable
    cdef readonly object _opens         # an OrderedDict
    cdef dict registry                  # addresses of all open files
    cdef readonly long sweep_number

    cdef OpenFile registered(self, OpenFile opened)

    cpdef OpenFile new(self, Node node, int descriptor, int access, credential, share)
    cpdef int remember(self, OpenFile opened, tuple key) except -1
    cpdef OpenFile cached(self, Inode inode, tuple key)
    cpdef int forget(self, OpenFile opened) except -1
    cpdef int forget_all(self, Inode inode) except -1
    cpdef int forget_removed_inode(self, Inode inode) except -1
