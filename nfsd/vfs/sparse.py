"""Space and holes: SEEK, ALLOCATE, DEALLOCATE, READ_PLUS, IO_ADVISE (RFC 7862 sections 15.1, 15.4, 15.5, 15.10, 15.11).

Owns nothing. Changes of one file's data take turns with its WRITEs (:mod:`nfsd.vfs.serial`). Calls that may take long
even in memory (making or freeing much space at once) go to the workers whatever the file system.
"""

from __future__ import annotations

import errno
import os

from nfsd.vfs.attributes import raw_size, statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.data_changes import DataChanges, check_readable_open, check_writable_open
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.looking import Looking
from nfsd.vfs.records import OpenFile
from nfsd.vfs.stable import StableStorage
from nfsd.vfs.syscalls import (
    AT_EMPTY_PATH,
    FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE,
    OFFSET_MAX,
    POSIX_FADV_DONTNEED,
    POSIX_FADV_WILLNEED,
    STATX_MASK,
    SYS_FADVISE64,
    SYS_FALLOCATE,
    SYS_LSEEK,
    SYS_PREAD64,
    SYS_STATX,
)
from nfsd.vfs.types import Change, Extent

MAX_EXTENTS = 64
"""Parts of a file described in one answer."""
_PREFETCH = 16 << 20
"""Octets one hint brings into memory."""


class Space:
    """Finding, making and filling holes."""

    def __init__(self, chains: Chains, looking: Looking, data_changes: DataChanges, stable: StableStorage) -> None:
        self._chains = chains
        self._looking = looking
        self._data_changes = data_changes
        self._stable = stable

    async def _fallocate(self, opened: OpenFile, mode: int, offset: int, length: int) -> Change:
        check_writable_open(opened)
        before, after = statx_buffer(), statx_buffer()
        chain = Chain(opened.credential)
        chain.add(SYS_STATX, opened.fd, b"", AT_EMPTY_PATH, STATX_MASK, before)
        chain.add(SYS_FALLOCATE, opened.fd, mode, offset, length)
        chain.add(SYS_STATX, opened.fd, b"", AT_EMPTY_PATH, STATX_MASK, after)
        failures = opened.node.inode.sync.failures
        change = await self._data_changes.make(opened, chain, before, after)
        if not opened.node.export.asynchronous:
            await self._stable.sync_open(opened.node, opened, failures)
        return change

    async def allocate(self, opened: OpenFile, offset: int, length: int) -> Change:
        """Reserve space for a range, durably; the file grows to its end. EINVAL for an empty range, EFBIG past the
        largest size, EOPNOTSUPP, ENOSPC."""
        if offset + length > OFFSET_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return await self._fallocate(opened, 0, offset, length)

    async def deallocate(self, opened: OpenFile, offset: int, length: int) -> Change:
        """Make a range read as zeros and free its space, durably; the size stays. EINVAL for an empty range,
        EOPNOTSUPP."""
        if offset > OFFSET_MAX:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if offset + length > OFFSET_MAX:
            # "To the end" is legal however far that is; the file system's largest offset is not ours to know.
            size = raw_size(await self._looking.look(opened.node))
            length = max(size - offset, 1)
        return await self._fallocate(opened, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length)

    async def seek(self, opened: OpenFile, offset: int, *, hole: bool) -> tuple[int, bool]:
        """The next hole (or data) from ``offset`` on. Returns where it is and whether that is the end of the file: the
        hole behind every file, or no data any more. ENXIO from the end of the file on."""
        check_readable_open(opened)
        status = statx_buffer()
        chain = Chain()
        chain.add(SYS_STATX, opened.fd, b"", AT_EMPTY_PATH, STATX_MASK, status)
        found = self._add_seek(chain, opened, min(offset, OFFSET_MAX), os.SEEK_HOLE if hole else os.SEEK_DATA)
        await self._chains.run(opened.node.mount, chain)
        chain.check()
        size = raw_size(status)
        if offset >= size:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        if found.error == errno.ENXIO:
            return size, True
        if found.error:
            raise OSError(found.error, os.strerror(found.error))
        return min(found.result, size), found.result >= size

    @staticmethod
    def _add_seek(chain: Chain, opened: OpenFile, offset: int, whence: int) -> Step:
        # The descriptor's position, which this moves, is used by nobody: all reads and writes say where.
        return chain.add(SYS_LSEEK, opened.fd, offset, whence, keep_going=True)

    async def read_extents(
        self, opened: OpenFile, offset: int, sink: memoryview, *, whole_holes: bool = False
    ) -> tuple[list[Extent], bool]:
        """The file from ``offset`` on as data and holes, contiguous, as far as ``sink`` is long; the data is in parts
        of it, and zeros that were written count as a hole. ``whole_holes``: a hole at the end is told whole. Returns
        them and whether the end of the file was reached; the list may end early."""
        check_readable_open(opened)
        extents: list[Extent] = []
        end = min(offset + len(sink), OFFSET_MAX)
        position = offset
        while True:
            status = statx_buffer()
            chain = Chain()
            chain.add(SYS_STATX, opened.fd, b"", AT_EMPTY_PATH, STATX_MASK, status)
            data = self._add_seek(chain, opened, min(position, OFFSET_MAX), os.SEEK_DATA)
            hole = self._add_seek(chain, opened, min(position, OFFSET_MAX), os.SEEK_HOLE)
            await self._chains.run(opened.node.mount, chain)
            chain.check()
            size = raw_size(status)
            if position >= min(end, size) or len(extents) == MAX_EXTENTS:
                return extents, position >= size
            start = size if data.error == errno.ENXIO else max(data.result, position)
            if start > position:
                # A file that shrinks or fills between two looks is described as it was at the one or the other.
                stop = min(start, size) if whole_holes else min(start, size, end)
                extents.append(Extent(position, stop - position, None))
                position = stop
                continue
            stop = min(hole.result if hole.result > position else size, end, size)
            part = sink[position - offset : stop - offset]
            got = await self._read_some(opened, position, part)
            if got == 0:
                return extents, True  # cut off meanwhile
            part = part[:got]
            zeros = not part[0] and not part[-1] and part.tobytes() == bytes(got)
            extents.append(Extent(position, got, None if zeros else part))
            position += got

    async def _read_some(self, opened: OpenFile, offset: int, sink: memoryview) -> int:
        chain = Chain()
        step = chain.add(SYS_PREAD64, opened.fd, sink, len(sink), offset)
        await self._chains.run(opened.node.mount, chain)
        chain.check()
        return step.result

    async def prefetch(self, opened: OpenFile, offset: int, length: int) -> None:
        """Begin to bring a range into memory (0: to the end of the file), as far as that is cheap."""
        await self._advise(opened, offset, min(length or _PREFETCH, _PREFETCH), POSIX_FADV_WILLNEED)

    async def drop(self, opened: OpenFile, offset: int, length: int) -> None:
        """Let go of the memory that a range (0: to the end of the file) takes in the kernel, of what is on the disk."""
        await self._advise(opened, offset, length, POSIX_FADV_DONTNEED)

    async def _advise(self, opened: OpenFile, offset: int, length: int, advice: int) -> None:
        if offset >= OFFSET_MAX:
            return
        chain = Chain()
        chain.add(SYS_FADVISE64, opened.fd, offset, min(length, OFFSET_MAX - offset), advice)
        await self._chains.run_in_lane(opened.node.mount.lane, chain)
        chain.check()
