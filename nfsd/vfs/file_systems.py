"""File systems: what files there can have, space, names and times (RFC 1813 sections 3.3.18 to 3.3.20).

Owns nothing. What files can have is asked once for each mount, which remembers it for native code too.
"""

from __future__ import annotations

from nfsd.backends.interface import Features, FileSystemStore
from nfsd.vfs.looking import Looking
from nfsd.vfs.records import Node
from nfsd.vfs.types import FileSystemStatus, PathLimits


class FileSystems:
    """FSSTAT and PATHCONF."""

    def __init__(self, store: FileSystemStore, looking: Looking) -> None:
        self._store = store
        self._looking = looking

    async def features(self, node: Node) -> Features:
        """What files can have on the file system the node is on."""
        mount = node.mount
        if mount.features is None:
            mount.features = await self._store.features(mount)
        return mount.features

    async def supports_xattrs(self, node: Node) -> bool:
        """Whether the file system the node is on keeps extended attributes for users."""
        return (await self.features(node)).xattrs

    async def supports_acls(self, node: Node) -> bool:
        """Whether the file system the node is on keeps POSIX ACLs (if not for its symbolic links)."""
        return (await self.features(node)).acls

    async def supports_labels(self, node: Node) -> bool:
        """Whether files of the node's export have security labels for clients (RFC 7862 section 9)."""
        return node.export.security_labels and (await self.features(node)).labels

    async def supports_quotas(self, node: Node) -> bool:
        """Whether the file system the node is on enforces quotas."""
        return bool((await self.features(node)).quotas)

    async def status(self, node: Node) -> FileSystemStatus:
        """Space of the file system the node is on."""
        return await self._store.status(node)

    async def limits(self, node: Node) -> PathLimits:
        """What names and times can be on the file system the node is on."""
        limits = await self._store.limits(node, await self._looking.look(node))
        return limits._replace(xattrs=await self.supports_xattrs(node))
