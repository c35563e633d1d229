"""Byte-range locks towards local processes: open file description locks (fcntl(2), F_OFD_SETLK).

Owns one descriptor per locked file, for all NFS owners together: descriptors of one process that are locked apart would
exclude each other, and which NFS owner holds what is the business of the state tables. The descriptor is the server's
own, so that a lock outlives the open that asked for it, and is closed when nothing is held any more.
"""

from __future__ import annotations

import errno
import os

from nfsd.vfs.executor import Chain
from nfsd.vfs.opens import OpenOperations
from nfsd.vfs.records import Inode, Node, OpenFile
from nfsd.vfs.syscalls import (
    F_OFD_GETLK,
    F_OFD_SETLK,
    F_RDLCK,
    F_UNLCK,
    F_WRLCK,
    OFFSET_MAX,
    SYS_FCNTL,
    flock,
    parse_flock,
)
from nfsd.vfs.types import FileType, LocalLock

_EVERYTHING = OFFSET_MAX + 1


class Ranges:
    """A set of octets as sorted, disjoint, non-adjacent ranges [start, end)."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __iter__(self) -> object:
        return iter(self._ranges)

    def remove(self, start: int, end: int) -> None:
        """Take a range out."""
        kept = []
        for low, high in self._ranges:
            if low < start:
                kept.append((low, min(high, start)))
            if high > end:
                kept.append((max(low, end), high))
        self._ranges = kept

    def add(self, start: int, end: int) -> None:
        """Put a range in."""
        for low, high in self._ranges:
            if low <= end and start <= high:
                start, end = min(start, low), max(end, high)
        self.remove(start, end)
        self._ranges = sorted([*self._ranges, (start, end)])


class HeldLocks:
    """The locked ranges of one file and the descriptor that holds them."""

    __slots__ = ("opened", "ranges")

    def __init__(self, opened: OpenFile) -> None:
        self.opened = opened
        self.ranges = Ranges()


def lock_end(start: int, length: int) -> int:
    """One past the range's last octet; a length of 0 reaches to the end of the file, however it grows. Raises EINVAL
    where the range does not fit the kernel's offsets."""
    end = start + length if length else _EVERYTHING
    if start < 0 or length < 0 or start > OFFSET_MAX or end > _EVERYTHING:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return end


class LockOperations(OpenOperations):
    """The three operations on local locks."""

    async def set_local_lock(self, node: Node, start: int, length: int, *, exclusive: bool) -> None:
        """Hold this range towards local processes (replacing what was held there). EAGAIN: one of them holds it."""
        end = lock_end(start, length)
        inode = node.inode
        await inode.lock_serial.acquire()
        try:
            held = await self._held(node)
            try:
                if exclusive and not held.opened.writable:
                    raise OSError(errno.EBADF, os.strerror(errno.EBADF))
                kind = F_WRLCK if exclusive else F_RDLCK
                await self._fcntl(node, held.opened, F_OFD_SETLK, flock(kind, start, length))
                held.ranges.add(start, end)
            finally:
                self._drop_if_unused(inode)
        except BlockingIOError:
            raise
        except PermissionError as error:
            # fcntl(2): a conflicting lock is EACCES or EAGAIN.
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
        finally:
            inode.lock_serial.release()

    async def clear_local_lock(self, node: Node, start: int, length: int) -> None:
        """Give the range up towards local processes."""
        end = lock_end(start, length)
        inode = node.inode
        await inode.lock_serial.acquire()
        try:
            held = inode.locks
            if held is None:
                return
            await self._fcntl(node, held.opened, F_OFD_SETLK, flock(F_UNLCK, start, length))
            held.ranges.remove(start, end)
            self._drop_if_unused(inode)
        finally:
            inode.lock_serial.release()

    async def test_local_lock(self, node: Node, start: int, length: int, *, exclusive: bool) -> LocalLock | None:
        """The local process's lock that would stand in the way, or None."""
        lock_end(start, length)
        inode = node.inode
        await inode.lock_serial.acquire()
        try:
            held = await self._held(node)
            argument = flock(F_WRLCK if exclusive else F_RDLCK, start, length)
            try:
                await self._fcntl(node, held.opened, F_OFD_GETLK, argument)
            finally:
                self._drop_if_unused(inode)
        finally:
            inode.lock_serial.release()
        kind, found_start, found_length, pid = parse_flock(argument)
        if kind == F_UNLCK:
            return None
        return LocalLock(kind == F_WRLCK, found_start, found_length, pid)

    async def _held(self, node: Node) -> HeldLocks:
        """The file's lock descriptor, opened on first use: for writing too, or exclusive locks are refused."""
        inode = node.inode
        if inode.locks is None:
            if node.type is not FileType.REG:
                code = errno.EISDIR if node.type is FileType.DIR else errno.EINVAL
                raise OSError(code, os.strerror(code))
            try:
                opened = await self.private_open(node, 3)
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ETXTBSY):
                    raise
                opened = await self.private_open(node, 1)
            inode.locks = HeldLocks(opened)
            self.locked[node.key] = inode
        return inode.locks

    def _drop_if_unused(self, inode: Inode) -> None:
        if inode.locks is not None and not inode.locks.ranges:
            inode.locks = None
            self.locked.pop(inode.key, None)

    async def _fcntl(self, node: Node, opened: OpenFile, command: int, argument: bytearray) -> None:
        chain = Chain()
        chain.add(SYS_FCNTL, opened.fd, command, argument)
        if node.mount.inline or node.mount.caching:
            self.executor.run_inline(chain)
        else:
            await self.run_in_lane(node.mount.lane, chain)
        chain.check()
