from collections import OrderedDict

from nfsd.vfs.records import Inode, Node
from nfsd.vfs.shares import Shares

IDLE_SWEEPS: int
"""A node or open file not used during this many sweeps is let go."""
SWEPT_AT_ONCE: int
"""Records a sweep looks at, at most: 2 ms. With more of them in use, the unused ones go a few sweeps later."""

class NodeTable:
    """Finds nodes by handle and inodes by key; keeps at most ``limit`` nodes, as far as more are not in use. Implemented
    in ``nodes.pyx``."""

    limit: int
    files: int
    """Descriptors for nodes and for what has a place in ``places``, as far as more are not in use."""
    places: Shares | None
    recent: OrderedDict[bytes, Node]
    """What is kept, in the order in which the sweep comes by."""
    remembered: OrderedDict[bytes, Inode]
    sweep_number: int
    def __init__(self, limit: int, inode_limit: int) -> None: ...
    def __len__(self) -> int:
        """How many nodes anybody holds."""
    def find(self, handle: bytes) -> Node | None:
        """The node of a handle, if it is known. (A known handle has been authenticated before.)"""
    def add(self, node: Node) -> None:
        """A new node."""
    def inode(self, key: bytes) -> Inode:
        """The inode of a key, made if it is not known."""
    def known_inode(self, key: bytes) -> Inode | None:
        """The inode of a key if it is known."""
    def forget(self, node: Node) -> None:
        """Do not keep the node: its file was removed. Holders still find it by its handle."""
    def forget_removed(self, inode: Inode) -> None:
        """The same of a removed file's nodes in all exports."""
    def forget_inode(self, inode: Inode) -> None:
        """Nor remember the inode of a removed file, whose handle leads nowhere ever again."""
    def all(self) -> list[Node]:
        """Every node anybody holds."""
    def disown(self, node: Node) -> None:
        """Not to be found by its handle any more; holders keep it."""
    def evict(self, count: int) -> None:
        """Let go of ``count`` nodes, rather of those not used since the last sweep (descriptors ran out)."""
    def sweep(self) -> None:
        """Let go of what has not been used for a while. Called every few seconds."""
    def clear(self) -> list[Node]:
        """Let go of everything. Returns the nodes that somebody still holds."""
