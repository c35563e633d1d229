"""Copies and clones of ranges: copy_file_range(2), FICLONERANGE.

Owns nothing. The kernel copies where it can, sharing blocks where the file system does.
"""

from __future__ import annotations

import errno
import os

from nfsd.backends.interface import Made
from nfsd.vfs.attributes import statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain
from nfsd.vfs.records import OpenFile
from nfsd.vfs.syscalls import (
    AT_EMPTY_PATH,
    FICLONERANGE,
    STATX_MASK,
    SYS_COPY_FILE_RANGE,
    SYS_IOCTL,
    SYS_PREAD64,
    SYS_PWRITE64,
    SYS_STATX,
    clone_range,
    offset_buffer,
)


class LocalCopies:
    """Copying and cloning."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains

    async def copy(self, source: OpenFile, at: int, target: OpenFile, to: int, count: int) -> Made:
        """See :class:`nfsd.backends.interface.CopyStore`."""
        chain, before, after = _begin(target)
        step = chain.add(SYS_COPY_FILE_RANGE, source.fd, offset_buffer(at), target.fd, offset_buffer(to), count, 0)
        await self._finish(target, chain, after)
        chain.check()
        return Made(before, after, step.result)

    async def copy_through(self, source: OpenFile, at: int, target: OpenFile, to: int, count: int) -> Made:
        """See :class:`nfsd.backends.interface.CopyStore`."""
        buffer = bytearray(count)
        chain, before, after = _begin(target)
        got = chain.add(SYS_PREAD64, source.fd, buffer, len(buffer), at)
        step = chain.add(SYS_PWRITE64, target.fd, buffer, got, to)
        await self._finish(target, chain, after)
        chain.check()
        return Made(before, after, step.result)

    async def clone(self, source: OpenFile, at: int, target: OpenFile, to: int, count: int) -> Made:
        """See :class:`nfsd.backends.interface.CopyStore`."""
        chain, before, after = _begin(target)
        step = chain.add(SYS_IOCTL, target.fd, FICLONERANGE, clone_range(source.fd, at, count, to))
        await self._finish(target, chain, after)
        if step.error == errno.ENOTTY:  # a file system that does not know the call at all
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        chain.check()
        return Made(before, after)

    async def _finish(self, target: OpenFile, chain: Chain, after: bytearray) -> None:
        chain.add(SYS_STATX, target.fd, b"", AT_EMPTY_PATH, STATX_MASK, after)
        await self._chains.run_in_lane(target.node.mount.lane, chain)


def _begin(target: OpenFile) -> tuple[Chain, bytearray, bytearray]:
    """As the caller, as for WRITE: quotas and the clearing of set-user-id bits go by who writes."""
    before, after = statx_buffer(), statx_buffer()
    chain = Chain(target.credential)
    chain.add(SYS_STATX, target.fd, b"", AT_EMPTY_PATH, STATX_MASK, before)
    return chain, before, after
