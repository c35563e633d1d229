"""READ, WRITE and COMMIT: the data of regular files (RFC 1813 sections 3.3.6, 3.3.7 and 3.3.21).

Owns no descriptor. Writes to one file take turns, so that the attributes around each are its own; the wait for the disk
comes after the turn, so that many writers share one fsync.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from nfsd.vfs.attributes import attributes_of, changed_between, raw_size, raw_uid, statx_buffer
from nfsd.vfs.executor import Chain
from nfsd.vfs.iovec import iovec
from nfsd.vfs.mounts import Mount
from nfsd.vfs.opens import OpenOperations
from nfsd.vfs.records import Node, OpenFile
from nfsd.vfs.resident import resident
from nfsd.vfs.syscalls import (
    AT_EMPTY_PATH,
    OFFSET_MAX,
    RWF_NOWAIT,
    STATX_MASK,
    SYS_PREAD64,
    SYS_PREADV2,
    SYS_PWRITE64,
    SYS_STATX,
)
from nfsd.vfs.types import Change, Credential, Stability
from rpcrdma.turns import BULK, is_crowded


def for_workers(size: int) -> bool:
    """Whether to copy so many octets is a worker's, even where no disk is waited for: there are other clients, and the
    loop should not keep them waiting."""
    return size >= BULK and is_crowded()


class DataOperations(OpenOperations):
    """Reading, writing, committing."""

    async def read(self, opened: OpenFile, offset: int, sink: memoryview) -> tuple[int, bool]:
        """Fill ``sink`` from ``offset``. Returns octets read and whether the end of file was reached."""
        if not opened.readable:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if offset > OFFSET_MAX:
            return 0, True
        sink = sink[: OFFSET_MAX - offset]
        mount = opened.node.mount
        status = statx_buffer()
        if mount.caching and not for_workers(len(sink)) and resident(opened.fd, offset, len(sink)):
            chain = Chain()
            step = chain.add(SYS_PREADV2, opened.fd, iovec(sink), 1, offset, 0, RWF_NOWAIT, keep_going=True)
            chain.add(SYS_STATX, opened.fd, b"", AT_EMPTY_PATH, STATX_MASK, status)
            self.executor.run_inline(chain)
            chain.check()
            got = max(step.result, 0)
            # Nothing read may mean "not in memory" as well as "past the end": the size decides.
            eof = offset + got >= raw_size(status)
            if got == len(sink) or (step.error == 0 and eof):
                return got, eof
            more, eof = await self._read_waiting(opened, offset + got, sink[got:], status)
            return got + more, eof
        return await self._read_waiting(opened, offset, sink, status)

    async def _read_waiting(
        self, opened: OpenFile, offset: int, sink: memoryview, status: bytearray
    ) -> tuple[int, bool]:
        chain = Chain()
        step = chain.add(SYS_PREAD64, opened.fd, sink, len(sink), offset)
        chain.add(SYS_STATX, opened.fd, b"", AT_EMPTY_PATH, STATX_MASK, status)
        await self._run_bulk(opened.node.mount, chain, len(sink))
        chain.check()
        return step.result, step.result < len(sink) or offset + step.result >= raw_size(status)

    async def _run_bulk(self, mount: Mount, chain: Chain, size: int) -> None:
        """Run a chain that moves so many octets, on a worker if other clients would have to wait for it."""
        if for_workers(size):
            await self.run_in_lane(mount.lane, chain)
        else:
            await self.run(mount, chain)

    async def write(
        self, opened: OpenFile, offset: int, source: memoryview, stability: Stability
    ) -> tuple[int, Stability, Change]:
        """Write. Returns octets written (all, or fewer when the disk filled up after some), the stability reached,
        and attributes around it. EFBIG past the file system's largest size."""
        if not opened.writable:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if offset + len(source) > OFFSET_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        node = opened.node
        inode = node.inode
        before, after = statx_buffer(), statx_buffer()
        # As the caller: blocks reserved for root, quotas and the clearing of set-user-id bits go by who writes.
        chain = Chain(opened.credential)
        chain.add(SYS_STATX, opened.fd, b"", AT_EMPTY_PATH, STATX_MASK, before)
        if len(source):
            step = chain.add(SYS_PWRITE64, opened.fd, source, len(source), offset)
            chain.add(SYS_STATX, opened.fd, b"", AT_EMPTY_PATH, STATX_MASK, after)
        else:
            step = None  # pwrite of nothing changes nothing
            after = before
        if not opened.unstable:
            await self.unstable.make_room(inode)
        await inode.serial.acquire()
        failures = inode.sync.failures
        try:
            try:
                await self._run_bulk(node.mount, chain, len(source))
            finally:
                if step is not None:
                    self.unstable.add(opened)  # what has failed, too: some of it may have been written
            chain.check()
            changed_between(inode, before, after)
            change = Change(
                attributes_of(before, node.mount, inode.change),
                attributes_of(after, node.mount, inode.change, changed=step is not None),
            )
        finally:
            inode.serial.release()
        if stability is not Stability.UNSTABLE and not node.export.asynchronous:
            await self.sync_open(node, opened, failures)
        return (0 if step is None else step.result), stability, change

    async def commit(
        self, credential: Credential, node: Node, offset: int, count: int, held: Callable[[], bool] | None = None
    ) -> Change:
        """Put the file's data and attributes on stable storage; waiting calls share one fsync. EIO, ENOSPC, EDQUOT of
        earlier write-back are reported here, once per opener, and change the write verifier. EACCES for who may not
        write the file, EROFS on a read-only export: to keep the disk busy with somebody else's data is no reader's
        business. ``held``: whether the caller has the file open for writing, whatever its permissions are now."""
        if node.export.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        status = await self.look(node)
        if not await self._may_commit(credential, node, raw_uid(status)) and not (held is not None and held()):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        before = attributes_of(status, node.mount, node.inode.change)
        # The whole file whatever the range: fsync knows no ranges, and most clients commit whole files.
        await self.sync(node, credential)
        return Change(before, await self.attributes(node))

    async def may_commit(self, credential: Credential, node: Node) -> bool:
        """Whether this caller may have the file synchronised: whoever may write it. Raises ESTALE."""
        return await self._may_commit(credential, node, raw_uid(await self.look(node)))

    async def _may_commit(self, credential: Credential, node: Node, owner: int) -> bool:
        """Whether a WRITE would be allowed. Nothing is opened for that, which could break a lease."""
        if credential.uid == owner:
            return True
        for access in (2, 3):
            for helped in (False, True):
                if self.cached_open(node.inode, (credential, access, helped)) is not None:
                    return True
        return await self.may_write(credential, node)
