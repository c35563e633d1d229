"""Disk quotas, as the kernel keeps them (quotactl(2)): how much more a file may grow.

Owns nothing. A file's blocks are charged to its owner and its group, and whichever has less left decides.
"""

from __future__ import annotations

import os
import struct
from typing import Final

from nfsd.vfs.executor import Chain
from nfsd.vfs.inspect import InspectOperations
from nfsd.vfs.records import Node
from nfsd.vfs.syscalls import SYS_QUOTACTL_FD
from nfsd.vfs.types import Quota

_USER, _GROUP = 0, 1
_GETQUOTA: Final = 0x800007
_dqblk = struct.Struct("<8QI4x")
_LIMIT_UNIT: Final = 1024
_GETSTATE: Final = 0x5808
"""Q_XGETQSTATV, which is not only for XFS any more."""
_STATE_SIZE: Final = 512
_STATE_VERSION: Final = 1
_state = struct.Struct("<2xH")
_ENFORCED: Final = {_USER: 1 << 1, _GROUP: 1 << 3}


def _command(kind: int) -> int:
    return _GETQUOTA << 8 | kind


class QuotaOperations(InspectOperations):
    """Reading quotas. Keeping them is the kernel's: whoever is beyond gets EDQUOT."""

    async def quota_kinds(self, node: Node) -> tuple[int, ...]:
        """The quotas the file system the node is on enforces (those it merely counts bound nothing)."""
        mount = node.mount
        if mount.quotas is None:
            state = bytearray(_STATE_SIZE)
            state[0] = _STATE_VERSION
            chain = Chain()
            step = chain.add(SYS_QUOTACTL_FD, mount.fd, _GETSTATE << 8, 0, state)
            await self.run(mount, chain)
            flags = _state.unpack_from(state)[0] if step.error == 0 else 0
            mount.quotas = tuple(kind for kind, enforced in _ENFORCED.items() if flags & enforced)
        return mount.quotas

    async def supports_quotas(self, node: Node) -> bool:
        """Whether :meth:`quota` has something to say."""
        return bool(await self.quota_kinds(node))

    async def quota(self, node: Node, uid: int, gid: int) -> Quota:
        """What this user and group have left together on the file system the node is on, and what they have used.
        Never more than there is at all."""
        available = (await self.status(node)).available_bytes
        best = Quota(available, available, 0)
        for kind in await self.quota_kinds(node):
            buffer = bytearray(_dqblk.size)
            chain = Chain()
            step = chain.add(SYS_QUOTACTL_FD, node.mount.fd, _command(kind), (uid, gid)[kind], buffer)
            await self.run(node.mount, chain)
            if step.error:
                raise OSError(step.error, os.strerror(step.error))
            hard, soft, used, *_ = _dqblk.unpack(buffer)
            left = min(available, max(0, hard * _LIMIT_UNIT - used)) if hard else available
            warned = min(left, max(0, soft * _LIMIT_UNIT - used)) if soft else left
            # RFC 8881 section 5.8.2.30: of several sets a file belongs to, the one with the smallest quota.
            if kind == _USER or left < best.available_hard:
                best = Quota(left, min(warned, best.available_soft), used)
            else:
                best = best._replace(available_soft=min(warned, best.available_soft))
        return best
