"""Space and holes of files: fallocate(2), lseek(2), posix_fadvise(2).

Owns nothing. Calls that may take long even in memory (making or freeing much space at once) go to the workers whatever
the file system.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from nfsd.backends.interface import Extents, Made
from nfsd.vfs.attributes import raw_size, statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.records import OpenFile
from nfsd.vfs.syscalls import (
    AT_EMPTY_PATH,
    FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE,
    POSIX_FADV_DONTNEED,
    POSIX_FADV_WILLNEED,
    STATX_MASK,
    SYS_FADVISE64,
    SYS_FALLOCATE,
    SYS_LSEEK,
    SYS_PREAD64,
    SYS_STATX,
)

_NOT_TOLD: Final = (errno.EINVAL, errno.EOPNOTSUPP)
"""Of file systems that do not say where holes are: all is data."""


class LocalSpace:
    """Finding, making and filling holes."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains

    async def allocate(self, opened: OpenFile, offset: int, length: int) -> Made:
        """See :class:`nfsd.backends.interface.SpaceStore`."""
        return await self._fallocate(opened, 0, offset, length)

    async def deallocate(self, opened: OpenFile, offset: int, length: int) -> Made:
        """See :class:`nfsd.backends.interface.SpaceStore`."""
        return await self._fallocate(opened, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length)

    async def _fallocate(self, opened: OpenFile, mode: int, offset: int, length: int) -> Made:
        before, after = statx_buffer(), statx_buffer()
        chain = Chain(opened.credential)
        chain.add(SYS_STATX, opened.fd, b"", AT_EMPTY_PATH, STATX_MASK, before)
        chain.add(SYS_FALLOCATE, opened.fd, mode, offset, length)
        chain.add(SYS_STATX, opened.fd, b"", AT_EMPTY_PATH, STATX_MASK, after)
        await self._chains.run_in_lane(opened.node.mount.lane, chain)
        chain.check()
        return Made(before, after)

    async def extents(self, opened: OpenFile, offset: int) -> Extents:
        """See :class:`nfsd.backends.interface.SpaceStore`."""
        status = statx_buffer()
        chain = Chain()
        chain.add(SYS_STATX, opened.fd, b"", AT_EMPTY_PATH, STATX_MASK, status)
        # The descriptor's position, which this moves, is used by nobody: all reads and writes say where.
        data = chain.add(SYS_LSEEK, opened.fd, offset, os.SEEK_DATA, keep_going=True)
        hole = chain.add(SYS_LSEEK, opened.fd, offset, os.SEEK_HOLE, keep_going=True)
        await self._chains.run(opened.node.mount, chain)
        chain.check()
        size = raw_size(status)
        if data.error in _NOT_TOLD:
            return Extents(size, offset if offset < size else None, None)
        return Extents(size, _found(data), _found(hole))

    async def read(self, opened: OpenFile, offset: int, sink: memoryview) -> int:
        """See :class:`nfsd.backends.interface.SpaceStore`."""
        chain = Chain()
        step = chain.add(SYS_PREAD64, opened.fd, sink, len(sink), offset)
        await self._chains.run(opened.node.mount, chain)
        chain.check()
        return step.result

    async def advise(self, opened: OpenFile, offset: int, length: int, *, needed: bool) -> None:
        """See :class:`nfsd.backends.interface.SpaceStore`."""
        chain = Chain()
        chain.add(SYS_FADVISE64, opened.fd, offset, length, POSIX_FADV_WILLNEED if needed else POSIX_FADV_DONTNEED)
        await self._chains.run_in_lane(opened.node.mount.lane, chain)
        chain.check()


def _found(step: Step) -> int | None:
    """Where lseek has found something; ENXIO: there is nothing from there on."""
    if step.error == errno.ENXIO:
        return None
    if step.error:
        raise OSError(step.error, os.strerror(step.error))
    return step.result
