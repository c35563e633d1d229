"""Copies and clones of ranges between files (RFC 7862 sections 15.2 and 15.13).

Owns nothing. The store copies where it can (sharing blocks where the file system does); octets go through this process
only between file systems that do not know each other. A copy goes in pieces, each in the target's turn, so that a long
one does not keep others from the file, and it ends early rather than late.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from functools import partial

from nfsd.backends.interface import CopyStore
from nfsd.vfs.changes import check_readable_open, check_writable_open
from nfsd.vfs.data_changes import DataChanges
from nfsd.vfs.records import OpenFile
from nfsd.vfs.syscalls import OFFSET_MAX
from nfsd.vfs.types import Change

_PIECE = 8 << 20
"""Octets the kernel is asked to copy at once: a fraction of a second on a slow disk."""
_PIECE_BY_HAND = 1 << 20
_SECONDS = 1.0
"""How long a copy goes on: its call holds a slot of the client's session."""
_NOT_BY_KERNEL = frozenset({errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})


class RangeCopy:
    """A copy of a range under way, piece by piece."""

    __slots__ = ("_copy_piece", "_operations", "count", "done", "source", "source_offset", "target", "target_offset")

    def __init__(
        self,
        operations: Copying,
        source: OpenFile,
        source_offset: int,
        target: OpenFile,
        target_offset: int,
        count: int,
    ) -> None:
        self._operations = operations
        self._copy_piece = operations.copy_by_kernel
        self.source, self.source_offset = source, source_offset
        self.target, self.target_offset = target, target_offset
        self.count = count
        """Octets meant."""
        self.done = 0
        """Octets copied so far."""

    async def step(self) -> bool:
        """Copy the next piece. Returns whether there may be more: false when all is done, or the source has ended
        early. Raises OSError; what was copied before counts."""
        if self.done >= self.count:
            return False
        if self.target.node.export.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))  # it has become so
        operations, at = self._operations, self.done
        where = self.source, self.source_offset + at, self.target, self.target_offset + at, self.count - at
        try:
            copied = await self._copy_piece(*where)
        except OSError as error:
            if error.errno not in _NOT_BY_KERNEL or self._copy_piece != operations.copy_by_kernel:
                raise
            self._copy_piece = operations.copy_by_hand
            copied = await self._copy_piece(*where)
        self.done += copied
        return copied > 0 and self.done < self.count


class Copying:
    """Copying and cloning."""

    def __init__(self, store: CopyStore, data_changes: DataChanges) -> None:
        self._store = store
        self._data_changes = data_changes

    def begin_copy(
        self, source: OpenFile, source_offset: int, target: OpenFile, target_offset: int, count: int
    ) -> RangeCopy:
        """A copy of octets in order, not durable (commit the target for that). The caller keeps its counts of both open
        files until it is over. EFBIG past the largest size."""
        check_readable_open(source)
        check_writable_open(target)
        if max(source_offset, target_offset) + count > OFFSET_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return RangeCopy(self, source, source_offset, target, target_offset, count)

    async def copy_for_a_while(self, copying: RangeCopy, step: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Go on with a copy until it is done or has ended early, a second is over, or an error comes after some octets.
        Raises OSError when there are none. ``step``: what makes the steps, if they must take turns."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _SECONDS
        try:
            while await (step or copying.step)() and loop.time() < deadline:
                pass
        except OSError:
            if not copying.done:
                raise  # otherwise what was copied counts; whoever goes on meets the error again

    async def copy_by_kernel(
        self, source: OpenFile, source_offset: int, target: OpenFile, target_offset: int, count: int
    ) -> int:
        """Have the store copy a piece of a range; how long it was. Raises OSError."""
        copy = partial(self._store.copy, source, source_offset, target, target_offset, min(count, _PIECE))
        return (await self._data_changes.make(target, copy))[1]

    async def copy_by_hand(
        self, source: OpenFile, source_offset: int, target: OpenFile, target_offset: int, count: int
    ) -> int:
        """Copy a piece of a range through this process; how long it was. Raises OSError."""
        at, to, count = source_offset, target_offset, min(count, _PIECE_BY_HAND)
        copy = partial(self._store.copy_through, source, at, target, to, count)
        return (await self._data_changes.make(target, copy))[1]

    async def clone_range(
        self, source: OpenFile, source_offset: int, target: OpenFile, target_offset: int, count: int
    ) -> Change:
        """Make a range of the target share the source's blocks, at once and durably; ``count`` 0 reaches to the
        source's end. EOPNOTSUPP where the file system cannot, EXDEV between two, EINVAL for what is not on its blocks,
        past the source's end or overlaps itself."""
        check_readable_open(source)
        check_writable_open(target)
        if max(source_offset, target_offset) + count > OFFSET_MAX:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        clone = partial(self._store.clone, source, source_offset, target, target_offset, count)
        return await self._data_changes.make_durably(target, clone)
