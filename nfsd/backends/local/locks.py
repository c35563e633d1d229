"""Byte-range locks towards local processes: open file description locks (fcntl(2), F_OFD_SETLK).

Owns nothing.
"""

from __future__ import annotations

from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain
from nfsd.vfs.records import OpenFile
from nfsd.vfs.syscalls import F_OFD_GETLK, F_OFD_SETLK, F_RDLCK, F_UNLCK, F_WRLCK, SYS_FCNTL, flock, parse_flock
from nfsd.vfs.types import LocalLock


class LocalLocks:
    """Taking, giving up, and looking."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains

    async def lock(self, opened: OpenFile, start: int, length: int, *, exclusive: bool) -> None:
        """See :class:`nfsd.backends.interface.LockStore`."""
        await self._fcntl(opened, F_OFD_SETLK, flock(F_WRLCK if exclusive else F_RDLCK, start, length))

    async def unlock(self, opened: OpenFile, start: int, length: int) -> None:
        """See :class:`nfsd.backends.interface.LockStore`."""
        await self._fcntl(opened, F_OFD_SETLK, flock(F_UNLCK, start, length))

    async def test_lock(self, opened: OpenFile, start: int, length: int, *, exclusive: bool) -> LocalLock | None:
        """See :class:`nfsd.backends.interface.LockStore`."""
        argument = flock(F_WRLCK if exclusive else F_RDLCK, start, length)
        await self._fcntl(opened, F_OFD_GETLK, argument)
        kind, found_start, found_length, pid = parse_flock(argument)
        return None if kind == F_UNLCK else LocalLock(kind == F_WRLCK, found_start, found_length, pid)

    async def _fcntl(self, opened: OpenFile, command: int, argument: bytearray) -> None:
        mount, chain = opened.node.mount, Chain()
        chain.add(SYS_FCNTL, opened.fd, command, argument)
        if mount.inline or mount.caching:
            self._chains.executor.run_inline(chain)
        else:
            await self._chains.run_in_lane(mount.lane, chain)
        chain.check()
