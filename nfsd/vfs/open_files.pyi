from collections import OrderedDict
from collections.abc import Container

from nfsd.backends.interface import Store
from nfsd.vfs.chains import Chains
from nfsd.vfs.nodes import NodeTable
from nfsd.vfs.open_accounts import Bound, Share
from nfsd.vfs.records import Inode, Node, OpenFile
from nfsd.vfs.types import Credential
from nfsd.vfs.unstable import UnstableWrites

OpenKey = tuple[Credential | None, int, bool]
"""Caller (None: the server itself), access (1 read, 2 write, 3 both), whether NFS's own rules had to help."""

class OpenFiles:
    """All of them, and the cache."""

    @property
    def _opens(self) -> OrderedDict[OpenFile, None]: ...
    @property
    def _all_opens(self) -> list[OpenFile]: ...
    @property
    def sweep_number(self) -> int: ...
    def __init__(self, nodes: NodeTable, chains: Chains, unstable: UnstableWrites) -> None: ...
    def new(self, node: Node, descriptor: int, access: int, credential: Credential | None, share: Share) -> OpenFile:
        """An open file for a descriptor, which is taken over together with its place in ``share``."""

    def new_in_store(
        self, node: Node, store: Store, access: int, credential: Credential | None, share: Share, stored: object
    ) -> OpenFile:
        """The same in a store, which has given this when the file was opened."""

    def remember(self, opened: OpenFile, key: OpenKey) -> None:
        """Put an open file in the cache, in place of an older one of this key."""

    def cached(self, inode: Inode, key: OpenKey) -> OpenFile | None:
        """The cached open file of a key, if it is still good."""

    def forget(self, opened: OpenFile) -> None:
        """Out of the cache; its descriptor closes with its last holder, and not before its unstable writes have been
        synchronised."""

    def let_go(self, share: Share, bound: Bound) -> bool:
        """Close one that nobody holds, so that a place within a bound becomes free."""

    def forget_all(self, inode: Inode) -> None:
        """Nothing of this file stays in the cache."""

    def forget_removed(self, node: Node) -> None:
        """A file lost its last name: nothing of ours must keep its space, except what a holder still has open."""

    def forget_removed_inode(self, inode: Inode) -> None:
        """As ``forget_removed``, but for the nodes."""

    def forget_gone(self, served: Container[int]) -> None:
        """Nothing stays in the cache of exports whose ids are not ``served``."""

    def sweep(self) -> None:
        """Let go of what has not been used for some seconds."""

    def close(self) -> None:
        """Nothing stays in the cache."""

    def shut(self) -> None:
        """Close every descriptor, even if somebody still holds it."""
