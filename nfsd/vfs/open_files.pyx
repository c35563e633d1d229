"""Descriptors kept per file, caller and access (contract: ``open_files.pyi``).

Owns the open files, and the cache of them, in which something closes when others want its place
(:mod:`nfsd.vfs.shares`). An open file is reused as long as the file's ctime proves that nobody changed its permissions
since it was opened: the server's own writes move ctime too, and are known (:meth:`Inode.wrote`); any other move makes
the kernel be asked again. Holders of a count keep their descriptor whatever happens to the permissions, as local
processes do.
"""

import collections
import typing

from cpython.long cimport PyLong_AsVoidPtr, PyLong_FromVoidPtr

from nfsd.vfs.open_accounts cimport Share
from nfsd.vfs.records cimport Inode, Node, OpenFile

from nfsd.vfs.nodes import IDLE_SWEEPS as _IDLE_SWEEPS, SWEPT_AT_ONCE as _SWEPT_AT_ONCE
from nfsd.vfs.open_accounts import idle_within
from nfsd.vfs.records import NO_DESCRIPTOR as _NO_DESCRIPTOR, Credential

OpenKey = tuple[typing.Optional[Credential], int, bool]
cdef long IDLE_SWEEPS = _IDLE_SWEEPS
cdef long SWEPT_AT_ONCE = _SWEPT_AT_ONCE
cdef int NO_DESCRIPTOR = _NO_DESCRIPTOR


cdef class OpenFiles:
    def __init__(self, nodes, chains, unstable):
        self._nodes = nodes
        self._chains = chains
        self._unstable = unstable
        self._opens = collections.OrderedDict()
        self.registry = {}
        self.sweep_number = 0

    @property
    def _all_opens(self):
        cdef list found = []
        for address in list(self.registry):
            if address in self.registry:  # the collector may have run since
                found.append(<OpenFile>PyLong_AsVoidPtr(address))
        return found

    cdef OpenFile registered(self, OpenFile opened):
        opened.registry = self.registry
        self.registry[PyLong_FromVoidPtr(<void *>opened)] = None
        return opened

    cpdef OpenFile new(self, Node node, int descriptor, int access, credential, share):
        return self.registered(OpenFile(node, descriptor, access, credential, self._chains.close_later, share))

    def new_in_store(self, Node node not None, store, int access, credential, share, stored):
        def close(descriptor, lane, freed):
            store.data.closed(node, stored)
            freed()

        return self.registered(OpenFile(node, NO_DESCRIPTOR, access, credential, close, share, stored))

    cpdef int remember(self, OpenFile opened, tuple key) except -1:
        cdef Inode inode = opened.node.inode
        cdef OpenFile older = inode.opens.get(key)
        if older is not None:
            self.forget(older)
        inode.opens[key] = opened
        opened.cached = key
        opened.used = self.sweep_number
        self._opens[opened] = None
        (<Share>opened.share).remember(opened)
        return 0

    cpdef OpenFile cached(self, Inode inode, tuple key):
        cdef OpenFile opened = inode.opens.get(key)
        if opened is None:
            return None
        if opened.epoch != <long long>inode.epoch:
            self.forget(opened)
            return None
        opened.used = self.sweep_number
        return opened

    cpdef int forget(self, OpenFile opened) except -1:
        cdef Share share
        if opened.cached is not None:
            opened.node.inode.opens.pop(opened.cached, None)
            opened.cached = None
            self._opens.pop(opened, None)
            share = opened.share
            share.forget(opened)
            if opened.unstable and opened.count == 0:
                share.leaves(opened)
                self._unstable.forgotten(opened)
        return 0

    def let_go(self, Share share not None, bound):
        cdef OpenFile found = idle_within(share, bound, self._opens)
        if found is None:
            return False
        (<Share>found.share).leaves(found)
        self.forget(found)
        return True

    cpdef int forget_all(self, Inode inode) except -1:
        for opened in list(inode.opens.values()):
            self.forget(opened)
        return 0

    def forget_removed(self, Node node not None):
        self.forget_removed_inode(node.inode)
        self._nodes.forget(node)

    cpdef int forget_removed_inode(self, Inode inode) except -1:
        if inode.unstable:
            self._unstable.drop(inode)
        self.forget_all(inode)
        self._nodes.forget_inode(inode)
        return 0

    def forget_gone(self, served):
        for opened in list(self._opens):
            if opened.node.export.id not in served:
                self.forget(opened)

    def sweep(self):
        cdef OpenFile opened
        self.sweep_number += 1
        oldest = self.sweep_number - IDLE_SWEEPS
        for _ in range(min(len(self._opens), SWEPT_AT_ONCE)):
            opened = next(iter(self._opens))
            if opened.used >= oldest:
                self._opens.move_to_end(opened)
            else:
                self.forget(opened)

    def close(self):
        while self._opens:
            self.forget(next(iter(self._opens)))

    def shut(self):
        for opened in self._all_opens:
            opened.shut()
