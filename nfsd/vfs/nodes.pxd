"""C declarations of the tables of nodes and inodes."""

from libc.stdint cimport uint8_t, uint64_t

from nfsd.vfs.records cimport Inode, Node

cdef enum:
    ADDED_KEPT = 4096           # of the nodes last added, whose keys are told


cdef class NodeTable:
    cdef public Py_ssize_t limit
    cdef public Py_ssize_t files
    cdef public object places
    cdef public object recent       # an OrderedDict
    cdef Node latest                # what was found last, as long as nothing has left ``recent`` since; or None
    cdef readonly object remembered
    cdef readonly long sweep_number
    cdef Py_ssize_t inode_limit
    cdef dict nodes                 # handle -> the Node's address
    cdef dict inodes                # key -> the Inode's address
    cdef uint64_t added             # nodes so far
    cdef Py_hash_t[ADDED_KEPT] added_keys   # of their inodes' keys, by number

    cdef Node in_use(self, const uint8_t *handle, size_t size)
    cdef Node beside(self, Node directory, bytes key)
    cpdef Node find(self, handle)
    cpdef int add(self, Node node) except -1
    cpdef Inode inode(self, bytes key)
    cpdef int forget_removed(self, Inode inode) except -1
    cpdef int evict(self, Py_ssize_t count) except -1
