"""Looking at files: what the kernel says of them now.

Owns nothing.
"""

from __future__ import annotations

import errno
import os

from nfsd.backends.interface import FileStore
from nfsd.vfs.attributes import attributes_of, raw_ctime, raw_nlink
from nfsd.vfs.open_files import OpenFiles
from nfsd.vfs.records import Node
from nfsd.vfs.types import Attributes, Credential

_STALE = os.strerror(errno.ESTALE)


class Looking:
    """Looks, attributes, and whether the kernel would let a caller write."""

    def __init__(self, store: FileStore, open_files: OpenFiles) -> None:
        self._store = store
        self._open_files = open_files

    async def look(self, node: Node) -> bytearray:
        """A fresh ``struct statx`` of the node. Raises ESTALE when the file is gone and nobody has it open."""
        status = await self._store.look(node)
        inode = node.inode
        inode.saw_ctime(raw_ctime(status))
        if raw_nlink(status) == 0 and inode.used_count == 0:
            self._open_files.forget_removed(node)
            raise OSError(errno.ESTALE, _STALE)
        return status

    async def attributes(self, node: Node) -> Attributes:
        """Attributes now. ESTALE when the file is gone."""
        return attributes_of(await self.look(node), node.mount, node.inode.change)

    def seen(self, node: Node, status: bytearray) -> Attributes:
        """The attributes of a node just looked at."""
        node.inode.saw_ctime(raw_ctime(status))
        return attributes_of(status, node.mount, node.inode.change)

    async def may_write(self, credential: Credential | None, node: Node) -> bool:
        """Whether the file's mode or ACL lets the caller write."""
        return await self._may(credential, node, os.W_OK)

    async def may_execute(self, credential: Credential, node: Node) -> bool:
        """Whether they let the caller execute the file."""
        return await self._may(credential, node, os.X_OK)

    async def _may(self, credential: Credential | None, node: Node, asked: int) -> bool:
        try:
            return await self._store.permissions(credential, node, asked) != 0
        except OSError:
            return False
