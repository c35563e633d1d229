"""Descriptors kept per file, caller and access.

Owns the open files, and the cache of them, in which something closes when others want its place
(:mod:`nfsd.vfs.shares`). An open file is reused as long as the file's ctime proves that nobody changed its permissions
since it was opened: the server's own writes move ctime too, and are known (:meth:`Inode.wrote`); any other move makes
the kernel be asked again. Holders of a count keep their descriptor whatever happens to the permissions, as local
processes do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from weakref import WeakSet

from nfsd.vfs.chains import Chains
from nfsd.vfs.nodes import IDLE_SWEEPS, SWEPT_AT_ONCE, NodeTable
from nfsd.vfs.open_accounts import Bound, Share, idle_within
from nfsd.vfs.records import Inode, Node, OpenFile
from nfsd.vfs.types import Credential
from nfsd.vfs.unstable import UnstableWrites

OpenKey = tuple[Credential | None, int, bool]
"""Caller (None: the server itself), access (1 read, 2 write, 3 both), whether NFS's own rules had to help."""


class OpenFiles:
    """All of them, and the cache."""

    def __init__(self, nodes: NodeTable, chains: Chains, unstable: UnstableWrites) -> None:
        self._nodes = nodes
        self._chains = chains
        self._unstable = unstable
        self._opens: OrderedDict[OpenFile, None] = OrderedDict()
        self._all_opens: WeakSet[OpenFile] = WeakSet()
        self.sweep_number = 0

    def new(self, node: Node, descriptor: int, access: int, credential: Credential | None, share: Share) -> OpenFile:
        """An open file for a descriptor, which is taken over together with its place in ``share``."""
        opened = OpenFile(node, descriptor, access, credential, self._chains.close_later, share)
        self._all_opens.add(opened)
        return opened

    def remember(self, opened: OpenFile, key: OpenKey) -> None:
        """Put an open file in the cache, in place of an older one of this key."""
        inode = opened.node.inode
        older = inode.opens.get(key)
        if older is not None:
            self.forget(older)
        inode.opens[key] = opened
        opened.cached = key
        opened.used = self.sweep_number
        self._opens[opened] = None
        opened.share.remember(opened)

    def cached(self, inode: Inode, key: OpenKey) -> OpenFile | None:
        """The cached open file of a key, if it is still good."""
        opened = inode.opens.get(key)
        if opened is None:
            return None
        if opened.epoch != inode.epoch:
            self.forget(opened)
            return None
        opened.used = self.sweep_number
        return opened

    def forget(self, opened: OpenFile) -> None:
        """Out of the cache; its descriptor closes with its last holder, and not before its unstable writes have been
        synchronised."""
        if opened.cached is not None:
            opened.node.inode.opens.pop(opened.cached, None)
            opened.cached = None
            self._opens.pop(opened, None)
            opened.share.forget(opened)
            if opened.unstable and opened.count == 0:
                opened.share.leaves(opened)
                self._unstable.forgotten(opened)

    def let_go(self, share: Share, bound: Bound) -> bool:
        """Close one that nobody holds, so that a place within a bound becomes free."""
        found = idle_within(share, bound, self._opens)
        if found is None:
            return False
        found.share.leaves(found)
        self.forget(found)
        return True

    def forget_all(self, inode: Inode) -> None:
        """Nothing of this file stays in the cache."""
        for opened in list(inode.opens.values()):
            self.forget(opened)

    def forget_removed(self, node: Node) -> None:
        """A file lost its last name: nothing of ours must keep its space, except what a holder still has open."""
        self.forget_removed_inode(node.inode)
        self._nodes.forget(node)

    def forget_removed_inode(self, inode: Inode) -> None:
        """As ``forget_removed``, but for the nodes."""
        self._unstable.drop(inode)
        self.forget_all(inode)
        self._nodes.forget_inode(inode)

    def forget_gone(self, served: Container[int]) -> None:
        """Nothing stays in the cache of exports whose ids are not ``served``."""
        for opened in list(self._opens):
            if opened.node.export.id not in served:
                self.forget(opened)

    def sweep(self) -> None:
        """Let go of what has not been used for some seconds."""
        self.sweep_number += 1
        oldest = self.sweep_number - IDLE_SWEEPS
        for _ in range(min(len(self._opens), SWEPT_AT_ONCE)):
            opened = next(iter(self._opens))
            if opened.used >= oldest:
                self._opens.move_to_end(opened)
            else:
                self.forget(opened)

    def close(self) -> None:
        """Nothing stays in the cache."""
        while self._opens:
            self.forget(next(iter(self._opens)))

    def shut(self) -> None:
        """Close every descriptor, even if somebody still holds it."""
        for opened in list(self._all_opens):
            opened.shut()
