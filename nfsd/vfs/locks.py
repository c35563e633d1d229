"""Byte-range locks towards local processes, held for NFS clients.

Owns one descriptor per locked file, for all NFS owners together: descriptors of one process that are locked apart would
exclude each other, and which NFS owner holds what is the business of the state tables. The descriptor is the server's
own, so that a lock outlives the open that asked for it, and is closed when nothing is held any more.

Its place is that of a host whose clients have locks of the file, like that of any descriptor that clients keep open.

Many ranges. The kernel keeps a file's locks in a list and walks it for every change: 0.1 ms with 10,000 ranges, 2 ms
with 60,000. So beyond some number the whole file is held instead, if no local process has a lock there, until few are
left.
"""

from __future__ import annotations

import errno
import os

from nfsd.backends.interface import LockStore
from nfsd.spans import SpanMap
from nfsd.vfs.open_accounts import Share
from nfsd.vfs.opens import Opening
from nfsd.vfs.records import Inode, Node, OpenFile
from nfsd.vfs.shares import Shares
from nfsd.vfs.syscalls import OFFSET_MAX
from nfsd.vfs.types import FileType, LocalLock

_EVERYTHING = OFFSET_MAX + 1
MANY, FEW = 1024, 64
"""With more ranges than MANY the whole file is held, with fewer than FEW each for itself again."""


class HeldLocks:
    """The locked ranges of one file and the descriptor that holds them."""

    __slots__ = ("cover", "cover_at", "hosts", "opened", "ranges")

    def __init__(self, opened: OpenFile) -> None:
        self.opened = opened
        self.ranges: SpanMap[bool] = SpanMap()
        """What is to be held towards local processes, and whether exclusively."""
        self.cover: bool | None = None
        """Whether the whole file is held, exclusively (True) or shared, instead of every range for itself."""
        self.cover_at = MANY
        """With how many ranges that is tried next."""
        self.hosts: set[str] = set()
        """Whose clients hold locks."""


def lock_end(start: int, length: int) -> int:
    """One past the range's last octet; a length of 0 reaches to the end of the file, however it grows. Raises EINVAL
    where the range does not fit the kernel's offsets."""
    end = start + length if length else _EVERYTHING
    if start < 0 or length < 0 or start > OFFSET_MAX or end > _EVERYTHING:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return end


class FileLocks:
    """The three operations on local locks."""

    def __init__(self, store: LockStore, opening: Opening, shares: Shares) -> None:
        self._store = store
        self._opening = opening
        self._shares = shares
        self.locked: dict[bytes, Inode] = {}
        """Inodes with local locks, which must not be forgotten."""

    def close(self) -> None:
        """Give up all of them."""
        for inode in self.locked.values():
            inode.locks = None
        self.locked.clear()

    async def set_local_lock(self, node: Node, start: int, length: int, *, exclusive: bool, host: str = "") -> None:
        """Hold this range towards local processes (replacing what was held there). EAGAIN: one of them holds it.
        EMFILE: the host has as many files open as it may; others wait for locks of the file, so this does not wait."""
        end = lock_end(start, length)
        inode = node.inode
        await inode.lock_serial.acquire()
        try:
            held = await self._held(node, host)
            try:
                if exclusive and not held.opened.writable:
                    raise OSError(errno.EBADF, os.strerror(errno.EBADF))
                if held.cover is not None and exclusive and not held.cover:
                    await self._uncover(held)
                if held.cover is None:
                    await self._store.lock(held.opened, start, length, exclusive=exclusive)
                held.ranges.put(start, end, exclusive)
                if held.cover is None and len(held.ranges) > held.cover_at:
                    await self._cover(held)
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
            if held.cover is None:
                await self._store.unlock(held.opened, start, length)
            held.ranges.cut(start, end)
            if held.cover is not None and len(held.ranges) < FEW:
                await self._uncover(held)
            self._drop_if_unused(inode)
        finally:
            inode.lock_serial.release()

    # -- at whose expense ----------------------------------------------------------------------------------------
    def check_room_for_locks(self, node: Node, host: str) -> None:
        """Raises OSError (EMFILE) if the host may not keep one more descriptor, that of others' locks of the file."""
        held = node.inode.locks
        if held is None or host in held.hosts or held.opened.share.host.key == host:
            return
        if self._shares.is_full(host, node.mount.lane):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def hold_locks(self, node: Node, host: str) -> None:
        """A client of this host has locks of the file now; perhaps it had before."""
        held = node.inode.locks
        if held is not None and host not in held.hosts:
            held.hosts.add(host)
            self._shares.hold(held.opened, host)

    def let_locks(self, node: Node, host: str) -> None:
        """No client of this host has any more."""
        held = node.inode.locks
        if held is not None and host in held.hosts:
            held.hosts.discard(host)
            self._shares.let(held.opened, host)

    async def test_local_lock(self, node: Node, start: int, length: int, *, exclusive: bool) -> LocalLock | None:
        """The local process's lock that would stand in the way, or None."""
        lock_end(start, length)
        inode = node.inode
        await inode.lock_serial.acquire()
        try:
            held = await self._held(node, None)
            try:
                return await self._store.test_lock(held.opened, start, length, exclusive=exclusive)
            finally:
                self._drop_if_unused(inode)
        finally:
            inode.lock_serial.release()

    async def _cover(self, held: HeldLocks) -> None:
        """Hold the whole file, unless a local process has a lock there."""
        exclusive = any(kind for _, _, kind in held.ranges)
        try:
            await self._store.lock(held.opened, 0, 0, exclusive=exclusive)
        except (BlockingIOError, PermissionError):
            held.cover_at = 2 * len(held.ranges)
        else:
            held.cover = exclusive

    async def _uncover(self, held: HeldLocks) -> None:
        """Hold the ranges each for itself: nothing but giving up, which cannot fail for another's lock."""
        at = 0
        for start, end, exclusive in held.ranges:
            if start > at:
                await self._store.unlock(held.opened, at, start - at)
            if exclusive != held.cover:
                await self._store.lock(
                    held.opened, start, 0 if end == _EVERYTHING else end - start, exclusive=exclusive
                )
            at = end
        if at < _EVERYTHING:
            await self._store.unlock(held.opened, at, 0)
        held.cover = None
        held.cover_at = max(MANY, 2 * len(held.ranges))

    async def _held(self, node: Node, host: str | None) -> HeldLocks:
        """The file's lock descriptor, opened on first use: for writing too, or exclusive locks are refused. ``host``:
        at whose expense; None: it is for a look only."""
        inode = node.inode
        if inode.locks is None:
            if node.type is not FileType.REG:
                code = errno.EISDIR if node.type is FileType.DIR else errno.EINVAL
                raise OSError(code, os.strerror(code))
            lane = node.mount.lane
            share = self._shares.at_any_rate("", lane) if host is None else self._shares.at_once(host, lane)
            if share is None:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            try:
                opened = await self._open_for_locks(node, share)
            except BaseException:
                share.give_back()
                raise
            inode.locks = HeldLocks(opened)
            self.locked[node.key] = inode
        return inode.locks

    async def _open_for_locks(self, node: Node, share: Share) -> OpenFile:
        try:
            return await self._opening.private_open(node, 3, share)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ETXTBSY):
                raise
            return await self._opening.private_open(node, 1, share)

    def _drop_if_unused(self, inode: Inode) -> None:
        held = inode.locks
        if held is not None and not held.ranges:
            for host in held.hosts:
                self._shares.let(held.opened, host)
            inode.locks = None
            self.locked.pop(inode.key, None)
