"""Disk quotas, as the kernel keeps them (quotactl(2)).

Owns the threads that ask, of which there are few: each becomes the owner it asks about, and ends
(:mod:`nfsd.vfs.owner_quotas`).
"""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from typing import Final

from nfsd.vfs.mounts import Mount
from nfsd.vfs.owner_quotas import ask
from nfsd.vfs.types import OwnerQuota

_dqblk = struct.Struct("<8QI4x")
_LIMIT_UNIT: Final = 1024
_ASKING: Final = 4
"""Threads of one export that may wait for its disk at a time."""


class LocalQuotas:
    """Reading them."""

    def __init__(self) -> None:
        self._asking: dict[int, asyncio.Semaphore] = {}
        """By lane."""

    async def quotas(
        self, mount: Mount, uid: int, gid: int, kinds: tuple[int, ...]
    ) -> list[tuple[int, OwnerQuota | None]]:
        """See :class:`nfsd.backends.interface.QuotaStore`. The kernel is asked as this user and group."""
        if not kinds:
            return []
        found = await self._ask(mount, uid, gid, kinds)
        return [(error, None if error else _parse(block)) for error, block in found]

    async def _ask(self, mount: Mount, uid: int, gid: int, kinds: tuple[int, ...]) -> list[tuple[int, bytes]]:
        """Have a thread of its own ask, and end."""
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


def _parse(block: bytes) -> OwnerQuota:
    """A ``struct if_dqblk``."""
    hard, soft, used, hard_files, soft_files, used_files, octets_deadline, files_deadline, _ = _dqblk.unpack(block)
    return OwnerQuota(
        hard * _LIMIT_UNIT, soft * _LIMIT_UNIT, used, hard_files, soft_files, used_files, octets_deadline,
        files_deadline,
    )  # fmt: skip
