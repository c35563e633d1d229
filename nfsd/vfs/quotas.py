"""Disk quotas, as the kernel keeps them (quotactl(2)): how much more a file may grow.

Owns the threads that ask, of which there are few: each becomes the owner it asks about, and ends
(:mod:`nfsd.vfs.owner_quotas`). A file's blocks are charged to its owner and its group, and whichever has less left
decides.
"""

from __future__ import annotations

import asyncio
import errno
import os
import struct
import threading
from typing import Final

from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain
from nfsd.vfs.file_systems import FileSystems
from nfsd.vfs.mounts import Mount
from nfsd.vfs.owner_quotas import ask
from nfsd.vfs.records import Node
from nfsd.vfs.syscalls import SYS_QUOTACTL_FD
from nfsd.vfs.types import OwnerQuota, Quota

_USER, _GROUP = 0, 1
_dqblk = struct.Struct("<8QI4x")
_LIMIT_UNIT: Final = 1024
_GETSTATE: Final = 0x5808
"""Q_XGETQSTATV, which is not only for XFS any more."""
_STATE_SIZE: Final = 512
_STATE_VERSION: Final = 1
_state = struct.Struct("<2xH")
_ENFORCED: Final = {_USER: 1 << 1, _GROUP: 1 << 3}
_ASKING: Final = 4
"""Threads of one export that may wait for its disk at a time."""


class Quotas:
    """Reading quotas. Keeping them is the kernel's: whoever is beyond gets EDQUOT."""

    def __init__(self, chains: Chains, file_systems: FileSystems) -> None:
        self._chains = chains
        self._file_systems = file_systems
        self._asking: dict[int, asyncio.Semaphore] = {}
        """By lane."""

    async def quota_kinds(self, node: Node) -> tuple[int, ...]:
        """The quotas the file system the node is on enforces (those it merely counts bound nothing)."""
        mount = node.mount
        if mount.quotas is None:
            state = bytearray(_STATE_SIZE)
            state[0] = _STATE_VERSION
            chain = Chain()
            step = chain.add(SYS_QUOTACTL_FD, mount.fd, _GETSTATE << 8, 0, state)
            await self._chains.run(mount, chain)
            flags = _state.unpack_from(state)[0] if step.error == 0 else 0
            mount.quotas = tuple(kind for kind, enforced in _ENFORCED.items() if flags & enforced)
        return mount.quotas

    async def supports_quotas(self, node: Node) -> bool:
        """Whether :meth:`quota` has something to say."""
        return bool(await self.quota_kinds(node))

    async def quota(self, node: Node, uid: int, gid: int) -> Quota:
        """What this user and group have left together on the file system the node is on, and what they have used.
        Never more than there is at all."""
        available = (await self._file_systems.status(node)).available_bytes
        best = Quota(available, available, 0)
        kinds = await self.quota_kinds(node)
        for kind, (error, block) in zip(kinds, await self._ask(node.mount, uid, gid, kinds), strict=True):
            if error in (errno.EPERM, errno.EACCES):
                continue  # a server that cannot act as others knows of its own quotas only
            if error:
                raise OSError(error, os.strerror(error))
            hard, soft, used, *_ = _dqblk.unpack(block)
            left = min(available, max(0, hard * _LIMIT_UNIT - used)) if hard else available
            warned = min(left, max(0, soft * _LIMIT_UNIT - used)) if soft else left
            # RFC 8881 section 5.8.2.30: of several sets a file belongs to, the one with the smallest quota.
            if kind == _USER or left < best.available_hard:
                best = Quota(left, min(warned, best.available_soft), used)
            else:
                best = best._replace(available_soft=min(warned, best.available_soft))
        return best

    async def owner_quota(self, node: Node, kind: int, uid: int, gid: int) -> OwnerQuota | None:
        """A user's quota (``kind`` 0) or a group's (1) on the file system the node is on; the kernel is asked as this
        user and group. None: the file system enforces none. Raises OSError."""
        if kind not in await self.quota_kinds(node):
            return None
        [(error, block)] = await self._ask(node.mount, uid, gid, (kind,))
        if error == errno.ESRCH:
            return None  # this one has none
        if error:
            raise OSError(error, os.strerror(error))
        hard, soft, used, hard_files, soft_files, used_files, octets_deadline, files_deadline, _ = _dqblk.unpack(block)
        return OwnerQuota(
            hard * _LIMIT_UNIT, soft * _LIMIT_UNIT, used, hard_files, soft_files, used_files, octets_deadline,
            files_deadline,
        )  # fmt: skip

    async def _ask(self, mount: Mount, uid: int, gid: int, kinds: tuple[int, ...]) -> list[tuple[int, bytes]]:
        """Have a thread of its own ask, and end."""
        if not kinds:
            return []
        turns = self._asking.setdefault(mount.lane, asyncio.Semaphore(_ASKING))
        await turns.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[tuple[int, bytes]]] = loop.create_future()

        def over(found: list[tuple[int, bytes]]) -> None:
            # Not who waits does this: it may have been cancelled, and the thread still wait for the disk.
            turns.release()
            if not answer.done():
                answer.set_result(found)

        def run() -> None:
            found = ask(descriptor, uid, gid, kinds)
            os.close(descriptor)
            if not loop.is_closed():
                loop.call_soon_threadsafe(over, found)

        try:
            descriptor = os.dup(mount.fd)
            threading.Thread(target=run, name="quotas", daemon=True).start()
        except BaseException:
            turns.release()
            raise
        return await answer
