"""Nodes: the files the server knows at the moment, and what it remembers of each.

Owns the tables that find nodes and inodes (:mod:`nfsd.vfs.records`). Both live as long as anyone refers to them; the
tables only keep the recently used ones from going, so that a descriptor is open exactly as long as its Node exists.

An unused node goes within seconds (:meth:`NodeTable.sweep`): a descriptor keeps a removed file's space allocated and
its file system from being unmounted. Use is noted in the node and the order of the table put right when the sweep comes
by, since a call that only notes a number costs nothing.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from weakref import WeakValueDictionary

from nfsd.vfs.records import Inode, Node

IDLE_SWEEPS = 2
"""A node or open file not used during this many sweeps is let go."""
SWEPT_AT_ONCE = 8192
"""Records a sweep looks at, at most: 2 ms. With more of them in use, the unused ones go a few sweeps later."""


_SPARED = 16


class NodeTable:
    """Finds nodes by handle and inodes by key; keeps at most ``limit`` unreferenced nodes."""

    def __init__(self, limit: int, inode_limit: int) -> None:
        self.limit = limit
        self._inode_limit = inode_limit
        self._nodes: WeakValueDictionary[bytes, Node] = WeakValueDictionary()
        self.recent: OrderedDict[bytes, Node] = OrderedDict()
        """What is kept, in the order in which the sweep comes by."""
        self._inodes: WeakValueDictionary[bytes, Inode] = WeakValueDictionary()
        self._remembered: OrderedDict[bytes, Inode] = OrderedDict()
        self.sweep_number = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def find(self, handle: bytes) -> Node | None:
        """The node of a handle, if it is known. (A known handle has been authenticated before.)"""
        node = self.recent.get(handle)
        if node is None:
            node = self._nodes.get(handle)
            if node is None:
                return None
            self.recent[handle] = node
        node.used = self.sweep_number
        return node

    def add(self, node: Node) -> None:
        """A new node."""
        node.used = self.sweep_number
        self._nodes[node.handle] = node
        self.recent[node.handle] = node
        if len(self.recent) > self.limit:
            self.evict(1)

    def inode(self, key: bytes) -> Inode:
        """The inode of a key, made if it is not known."""
        inode = self._inodes.get(key)
        if inode is None:
            inode = Inode(key)
            self._inodes[key] = inode
            self._remembered[key] = inode
            if len(self._remembered) > self._inode_limit:
                self._forget_inodes()
        elif key in self._remembered:
            self._remembered.move_to_end(key)
        else:
            self._remembered[key] = inode
        return inode

    def known_inode(self, key: bytes) -> Inode | None:
        """The inode of a key if it is known."""
        return self._inodes.get(key)

    def _forget_inodes(self) -> None:
        """Down to the limit, but never one whose change attribute is not settled (see ``change``)."""
        now = time.time_ns()
        while len(self._remembered) > self._inode_limit:
            key, inode = self._remembered.popitem(last=False)
            if not inode.change.settled(now):
                self._remembered[key] = inode
                return

    def forget(self, node: Node) -> None:
        """Do not keep the node: its file was removed. Holders still find it by its handle."""
        self.recent.pop(node.handle, None)

    def forget_inode(self, inode: Inode) -> None:
        """Nor remember the inode of a removed file, whose handle leads nowhere ever again."""
        self._remembered.pop(inode.key, None)

    def all(self) -> list[Node]:
        """Every node anybody holds."""
        return list(self._nodes.values())

    def disown(self, node: Node) -> None:
        """Not to be found by its handle any more; holders keep it."""
        self.recent.pop(node.handle, None)
        self._nodes.pop(node.handle, None)

    def evict(self, count: int) -> None:
        """Let go of ``count`` nodes, rather of those not used since the last sweep (descriptors ran out)."""
        spared = 0
        while self.recent and count > 0:
            handle, node = self.recent.popitem(last=False)
            if node.used >= self.sweep_number and spared < _SPARED:
                # Once for each use: with more in use than are kept, most steps here would be in vain.
                node.used = self.sweep_number - 1
                self.recent[handle] = node
                spared += 1
            else:
                count -= 1

    def sweep(self) -> None:
        """Let go of what has not been used for a while. Called every few seconds."""
        self.sweep_number += 1
        oldest = self.sweep_number - IDLE_SWEEPS
        for _ in range(min(len(self.recent), SWEPT_AT_ONCE)):
            handle, node = self.recent.popitem(last=False)
            if node.used >= oldest:
                self.recent[handle] = node

    def clear(self) -> list[Node]:
        """Let go of everything. Returns the nodes that somebody still holds."""
        self.recent.clear()
        self._remembered.clear()
        return self.all()
