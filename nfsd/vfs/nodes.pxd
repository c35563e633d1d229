"""C declarations of the tables of nodes and inodes."""

from nfsd.vfs.records cimport Inode, Node


cdef class NodeTable:
    cdef public Py_ssize_t limit
    cdef public Py_ssize_t files
    cdef public object places
    cdef public object recent       # an OrderedDict
    cdef readonly object remembered
    cdef readonly long sweep_number
    cdef Py_ssize_t inode_limit
    cdef dict nodes                 # handle -> the Node's address
    cdef dict inodes                # key -> the Inode's address

    cpdef Node find(self, handle)
    cpdef int add(self, Node node) except -1
    cpdef Inode inode(self, bytes key)
    cpdef int evict(self, Py_ssize_t count) except -1
