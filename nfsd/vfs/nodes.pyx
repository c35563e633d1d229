"""Nodes: the files the server knows at the moment, and what it remembers of each (contract: ``nodes.pyi``).

Owns the tables that find nodes and inodes (:mod:`nfsd.vfs.records`). Both live as long as anyone refers to them; the
tables only keep the recently used ones from going, so that a descriptor is open exactly as long as its Node exists.

The tables lead to records without holding them: to their addresses, which a record takes out of its table when it goes.
(A WeakValueDictionary does the same in Python, for more than opening the file costs.)

An unused node goes within seconds (:meth:`NodeTable.sweep`): a descriptor keeps a removed file's space allocated and
its file system from being unmounted. Use is noted in the node and the order of the table put right when the sweep comes
by, since a call that only notes a number costs nothing.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem
from cpython.long cimport PyLong_AsVoidPtr, PyLong_FromVoidPtr
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t
from libc.string cimport memcmp

from nfsd.vfs.records cimport Inode, Node

import time
from collections import OrderedDict

IDLE_SWEEPS = 2
SWEPT_AT_ONCE = 8192

cdef enum:
    SPARED = 16             # records in use that an eviction passes over

cdef long _idle_sweeps = IDLE_SWEEPS
cdef Py_ssize_t _swept_at_once = SWEPT_AT_ONCE


cdef class NodeTable:
    def __init__(self, Py_ssize_t limit, Py_ssize_t inode_limit):
        self.limit = limit
        self.inode_limit = inode_limit
        self.nodes = {}
        self.recent = OrderedDict()
        self.inodes = {}
        self.remembered = OrderedDict()
        self.sweep_number = 0
        self.places = None
        self.files = limit

    def __len__(self):
        return len(self.nodes)

    cdef Node in_use(self, const uint8_t *handle, size_t size):
        """The node of a handle that has been used of late; None if there is none. Clients often go on with the file of
        the call before: to see that takes less than to look for it."""
        cdef Node node = self.latest
        cdef PyObject *found
        if node is not None and <size_t>len(node.handle) == size and memcmp(<char *>node.handle, handle, size) == 0:
            node.used = self.sweep_number
            return node
        found = PyDict_GetItem(<dict>self.recent, PyBytes_FromStringAndSize(<char *>handle, size))
        if found == NULL:
            return None
        self.latest = node = <Node>found
        node.used = self.sweep_number
        return node

    cdef Node beside(self, Node directory, bytes key):
        """The node that has an inode of this key on the mount of a directory: found without its handle, whose MAC takes longer
        to make. None: there is none, or the last one of the inode is another mount's."""
        cdef PyObject *found = PyDict_GetItem(self.inodes, key)
        cdef Inode inode
        cdef Node node
        if found == NULL:
            return None
        inode = <Inode>PyLong_AsVoidPtr(<object>found)
        node = None if inode.first == NULL else <Node>inode.first
        if node is None or node.mount is not directory.mount:
            return None
        return self.find(node.handle)  # it may have been disowned

    cpdef Node find(self, handle):
        cdef Node node = self.recent.get(handle)
        cdef PyObject *found
        if node is None:
            found = PyDict_GetItem(self.nodes, handle)
            if found == NULL:
                return None
            node = <Node>PyLong_AsVoidPtr(<object>found)
            self.recent[node.handle] = node
        node.used = self.sweep_number
        return node

    cpdef int add(self, Node node) except -1:
        cdef Py_ssize_t most
        node.used = self.sweep_number
        node.table = self.nodes
        self.latest = None
        self.nodes[node.handle] = PyLong_FromVoidPtr(<void *>node)
        self.recent[node.handle] = node
        self.added_keys[self.added % ADDED_KEPT] = hash(node.key)
        self.added += 1
        most = self.limit
        if self.places is not None:
            most = min(most, self.files - self.places.in_use)
        if len(self.nodes) > most:
            self.evict(min(2, len(self.nodes) - most))  # what goes may be in use, and stay open
        return 0

    cpdef Inode inode(self, bytes key):
        cdef PyObject *found = PyDict_GetItem(self.inodes, key)
        cdef Inode inode
        if found == NULL:
            inode = Inode(key)
            inode.table = self.inodes
            self.inodes[key] = PyLong_FromVoidPtr(<void *>inode)
            self.remembered[key] = inode
            if len(self.remembered) > self.inode_limit:
                self.forget_inodes()
            return inode
        inode = <Inode>PyLong_AsVoidPtr(<object>found)
        if key in self.remembered:
            self.remembered.move_to_end(key)
        else:
            self.remembered[key] = inode
        return inode

    def known_inode(self, bytes key):
        cdef PyObject *found = PyDict_GetItem(self.inodes, key)
        return None if found == NULL else <Inode>PyLong_AsVoidPtr(<object>found)

    def forget_inodes(self):
        """Down to the limit, but never one whose change attribute is not settled (see ``change``)."""
        cdef Inode inode
        now = time.time_ns()
        while len(self.remembered) > self.inode_limit:
            key, inode = self.remembered.popitem(False)
            if not inode.change.settled(now):
                self.remembered[key] = inode
                return

    def forget(self, Node node not None):
        self.latest = None
        self.recent.pop(node.handle, None)

    cpdef int forget_removed(self, Inode inode) except -1:
        cdef Node node
        self.latest = None
        for node in inode.in_exports():
            self.recent.pop(node.handle, None)
        return 0

    def forget_inode(self, Inode inode not None):
        self.remembered.pop(inode.key, None)

    def all(self):
        cdef list found = []
        cdef PyObject *address
        for handle in list(self.nodes):
            address = PyDict_GetItem(self.nodes, handle)  # the collector may have run since
            if address != NULL:
                found.append(<Node>PyLong_AsVoidPtr(<object>address))
        return found

    def disown(self, Node node not None):
        self.latest = None
        self.recent.pop(node.handle, None)
        found = self.nodes.get(node.handle)
        if found is not None and PyLong_AsVoidPtr(found) == <void *>node:
            del self.nodes[node.handle]

    cpdef int evict(self, Py_ssize_t count) except -1:
        cdef Py_ssize_t spared = 0
        cdef Node node
        self.latest = None
        while count > 0 and self.recent:
            handle, node = self.recent.popitem(False)
            if node.used >= self.sweep_number and spared < SPARED:
                # Once for each use: with more in use than are kept, most steps here would be in vain.
                node.used = self.sweep_number - 1
                self.recent[handle] = node
                spared += 1
            else:
                count -= 1
        return 0

    def sweep(self):
        cdef Py_ssize_t left
        cdef Node node
        self.latest = None
        self.sweep_number += 1
        for left in range(min(len(self.recent), _swept_at_once)):
            handle, node = self.recent.popitem(False)
            if node.used >= self.sweep_number - _idle_sweeps:
                self.recent[handle] = node

    def clear(self):
        self.latest = None
        self.recent.clear()
        self.remembered.clear()
        return self.all()
