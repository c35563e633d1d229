"""Space and holes: SEEK, ALLOCATE, DEALLOCATE, READ_PLUS, IO_ADVISE (RFC 7862 sections 15.1, 15.4, 15.5, 15.10, 15.11).

Owns nothing. Changes of one file's data take turns with its WRITEs (:mod:`nfsd.vfs.serial`).
"""

from __future__ import annotations

import errno
import os
from functools import partial

from nfsd.backends.interface import SpaceStore
from nfsd.vfs.attributes import raw_size
from nfsd.vfs.changes import check_readable_open, check_writable_open
from nfsd.vfs.data_changes import DataChanges
from nfsd.vfs.looking import Looking
from nfsd.vfs.records import OpenFile
from nfsd.vfs.syscalls import OFFSET_MAX
from nfsd.vfs.types import Change, Extent

MAX_EXTENTS = 64
"""Parts of a file described in one answer."""
_PREFETCH = 16 << 20
"""Octets one hint brings into memory."""


class Space:
    """Finding, making and filling holes."""

    def __init__(self, store: SpaceStore, looking: Looking, data_changes: DataChanges) -> None:
        self._store = store
        self._looking = looking
        self._data_changes = data_changes

    async def allocate(self, opened: OpenFile, offset: int, length: int) -> Change:
        """Reserve space for a range, durably; the file grows to its end. EINVAL for an empty range, EFBIG past the
        largest size, EOPNOTSUPP, ENOSPC."""
        if offset + length > OFFSET_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        check_writable_open(opened)
        return await self._data_changes.make_durably(opened, partial(self._store.allocate, opened, offset, length))

    async def deallocate(self, opened: OpenFile, offset: int, length: int) -> Change:
        """Make a range read as zeros and free its space, durably; the size stays. EINVAL for an empty range,
        EOPNOTSUPP."""
        if offset > OFFSET_MAX:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if offset + length > OFFSET_MAX:
            # "To the end" is legal however far that is; the file system's largest offset is not ours to know.
            size = raw_size(await self._looking.look(opened.node))
            length = max(size - offset, 1)
        check_writable_open(opened)
        return await self._data_changes.make_durably(opened, partial(self._store.deallocate, opened, offset, length))

    async def seek(self, opened: OpenFile, offset: int, *, hole: bool) -> tuple[int, bool]:
        """The next hole (or data) from ``offset`` on. Returns where it is and whether that is the end of the file: the
        hole behind every file, or no data any more. ENXIO from the end of the file on."""
        check_readable_open(opened)
        seen = await self._store.extents(opened, min(offset, OFFSET_MAX))
        if offset >= seen.size:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        found = seen.hole if hole else seen.data
        if found is None:
            return seen.size, True
        return min(found, seen.size), found >= seen.size

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
            seen = await self._store.extents(opened, min(position, OFFSET_MAX))
            size = seen.size
            if position >= min(end, size) or len(extents) == MAX_EXTENTS:
                return extents, position >= size
            start = size if seen.data is None else max(seen.data, position)
            if start > position:
                # A file that shrinks or fills between two looks is described as it was at the one or the other.
                stop = min(start, size) if whole_holes else min(start, size, end)
                extents.append(Extent(position, stop - position, None))
                position = stop
                continue
            stop = min(seen.hole if seen.hole is not None and seen.hole > position else size, end, size)
            part = sink[position - offset : stop - offset]
            got = await self._store.read(opened, position, part)
            if got == 0:
                return extents, True  # cut off meanwhile
            part = part[:got]
            zeros = not part[0] and not part[-1] and part.tobytes() == bytes(got)
            extents.append(Extent(position, got, None if zeros else part))
            position += got

    async def prefetch(self, opened: OpenFile, offset: int, length: int) -> None:
        """Begin to bring a range into memory (0: to the end of the file), as far as that is cheap."""
        await self._advise(opened, offset, min(length or _PREFETCH, _PREFETCH), needed=True)

    async def drop(self, opened: OpenFile, offset: int, length: int) -> None:
        """Let go of the memory that a range (0: to the end of the file) takes in the kernel, of what is on the disk."""
        await self._advise(opened, offset, length, needed=False)

    async def _advise(self, opened: OpenFile, offset: int, length: int, *, needed: bool) -> None:
        if offset < OFFSET_MAX:
            await self._store.advise(opened, offset, min(length, OFFSET_MAX - offset), needed=needed)
