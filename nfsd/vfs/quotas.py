"""Disk quotas: how much more a file may grow.

Owns nothing. A file's blocks are charged to its owner and its group, and whichever has less left decides.
"""

from __future__ import annotations

import errno
import os

from nfsd.backends.interface import QuotaStore
from nfsd.vfs.file_systems import FileSystems
from nfsd.vfs.records import Node
from nfsd.vfs.types import OwnerQuota, Quota

_USER = 0


class Quotas:
    """Reading quotas. Keeping them is the store's: whoever is beyond gets EDQUOT."""

    def __init__(self, store: QuotaStore, file_systems: FileSystems) -> None:
        self._store = store
        self._file_systems = file_systems

    async def quota(self, node: Node, uid: int, gid: int) -> Quota:
        """What this user and group have left together on the file system the node is on, and what they have used.
        Never more than there is at all."""
        available = (await self._file_systems.status(node)).available_bytes
        best = Quota(available, available, 0)
        kinds = (await self._file_systems.features(node)).quotas
        for kind, (error, found) in zip(kinds, await self._store.quotas(node.mount, uid, gid, kinds), strict=True):
            if error in (errno.EPERM, errno.EACCES):
                continue  # a server that cannot act as others knows of its own quotas only
            if error or found is None:
                raise OSError(error, os.strerror(error))
            left = min(available, max(0, found.hard - found.used)) if found.hard else available
            warned = min(left, max(0, found.soft - found.used)) if found.soft else left
            # RFC 8881 section 5.8.2.30: of several sets a file belongs to, the one with the smallest quota.
            if kind == _USER or left < best.available_hard:
                best = Quota(left, min(warned, best.available_soft), found.used)
            else:
                best = best._replace(available_soft=min(warned, best.available_soft))
        return best

    async def owner_quota(self, node: Node, kind: int, uid: int, gid: int) -> OwnerQuota | None:
        """A user's quota (``kind`` 0) or a group's (1) on the file system the node is on. None: the file system
        enforces none, or this one has none. Raises OSError."""
        if kind not in (await self._file_systems.features(node)).quotas:
            return None
        [(error, found)] = await self._store.quotas(node.mount, uid, gid, (kind,))
        if error and error != errno.ESRCH:
            raise OSError(error, os.strerror(error))
        return found
