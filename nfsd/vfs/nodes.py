"""Nodes: the files the server knows at the moment, and what it remembers of each.

Owns the descriptors that name files (O_PATH) and the tables that find them. A :class:`Node` is one file seen through
one export; an :class:`Inode` is what is the same for every export and name of it: its queue, its change attribute, its
open files and locks. Both live as long as anyone refers to them; the tables only keep the recently used ones from
going, so that a descriptor is open exactly as long as its Node exists.

An unused node goes within seconds (:meth:`NodeTable.sweep`): a descriptor keeps a removed file's space allocated and
its file system from being unmounted.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from nfsd.exports import Export
from nfsd.vfs.change import ChangeRecord
from nfsd.vfs.serial import GroupSync, Serial
from nfsd.vfs.types import Credential, FileType

if TYPE_CHECKING:
    from nfsd.vfs.locks import HeldLocks
    from nfsd.vfs.mounts import Mount
    from nfsd.vfs.opens import OpenEntry, OpenKey

IDLE_SWEEPS = 2
"""A node or open file not used during this many sweeps is let go."""


class Inode:
    """One file, whatever the export and the name."""

    __slots__ = (
        "__weakref__",
        "accesses",
        "change",
        "ctime",
        "epoch",
        "key",
        "lock_serial",
        "locks",
        "opens",
        "serial",
        "sync",
        "used_count",
    )

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.serial = Serial()
        self.change = ChangeRecord()
        self.epoch = 0
        """Grows when the file's permissions may have changed; an open file of an earlier epoch is not reused."""
        self.ctime = -1
        """The ctime (ns) at which ``epoch`` was right."""
        self.opens: dict[OpenKey, OpenEntry] = {}
        self.used_count = 0
        """Open files somebody holds: a removed file that is still open stays accessible."""
        self.sync = GroupSync()
        self.accesses: dict[Credential, tuple[int, int]] = {}
        """What each caller may do: (epoch, ACCESS3_* bits)."""
        self.lock_serial = Serial()
        self.locks: HeldLocks | None = None

    def saw_ctime(self, ctime: int) -> None:
        """A look at the file: a ctime we did not cause means that its permissions may be other ones."""
        if ctime != self.ctime:
            self.ctime = ctime
            self.epoch += 1

    def wrote(self, before: int, after: int) -> None:
        """Our own change of data moved ctime from ``before`` to ``after``; permissions are what they were before."""
        self.saw_ctime(before)
        self.ctime = after


class Node:
    """One file of one export. Its descriptor names it; it is not open for anything."""

    __slots__ = ("__weakref__", "_close", "export", "fd", "handle", "inode", "key", "mount", "type", "used")

    def __init__(
        self,
        handle: bytes,
        inode: Inode,
        mount: Mount,
        fd: int,
        type_: FileType,
        close: Callable[[int, int], None],
    ) -> None:
        self._close = close
        self.fd = fd
        self.handle = handle
        """The NFS file handle: at most 64 octets, authenticated, the same over restarts and renames."""
        self.mount = mount
        self.export: Export = mount.export
        self.inode = inode
        self.key = inode.key
        """Identity of the file for state tables: the same for all names and exports of it; hashable, comparable."""
        self.type = type_
        self.used = 0

    def shut(self) -> None:
        """Close the descriptor: the node is of no more use."""
        if self.fd >= 0:
            self._close(self.fd, self.mount.lane)
            self.fd = -1

    def __del__(self) -> None:
        self.shut()


class NodeTable:
    """Finds nodes by handle and inodes by key; keeps at most ``limit`` unreferenced nodes."""

    def __init__(self, limit: int, inode_limit: int) -> None:
        self._limit = limit
        self._inode_limit = inode_limit
        self._nodes: WeakValueDictionary[bytes, Node] = WeakValueDictionary()
        self._recent: OrderedDict[bytes, Node] = OrderedDict()
        self._inodes: WeakValueDictionary[bytes, Inode] = WeakValueDictionary()
        self._remembered: OrderedDict[bytes, Inode] = OrderedDict()
        self._sweep_number = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def find(self, handle: bytes) -> Node | None:
        """The node of a handle, if it is known. (A known handle has been authenticated before.)"""
        node = self._recent.get(handle)
        if node is None:
            node = self._nodes.get(handle)
            if node is None:
                return None
            self._recent[handle] = node
        else:
            self._recent.move_to_end(handle)
        node.used = self._sweep_number
        return node

    def add(self, node: Node) -> None:
        """A new node."""
        node.used = self._sweep_number
        self._nodes[node.handle] = node
        self._recent[node.handle] = node
        if len(self._recent) > self._limit:
            self._recent.popitem(last=False)

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
        self._recent.pop(node.handle, None)

    def evict(self, count: int) -> None:
        """Let go of the ``count`` least recently used nodes (descriptors ran out)."""
        for _ in range(min(count, len(self._recent))):
            self._recent.popitem(last=False)

    def sweep(self) -> None:
        """Let go of what has not been used for a while. Called every few seconds."""
        self._sweep_number += 1
        oldest = self._sweep_number - IDLE_SWEEPS
        while self._recent:
            handle, node = next(iter(self._recent.items()))
            if node.used >= oldest:
                return
            del self._recent[handle]

    def clear(self) -> list[Node]:
        """Let go of everything. Returns the nodes that somebody still holds."""
        self._recent.clear()
        self._remembered.clear()
        return list(self._nodes.values())
