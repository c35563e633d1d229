"""Stable storage: files and directories are on the disk before a client is told so.

Owns nothing. Callers that wait for the same file share an fsync (:mod:`nfsd.vfs.syncing`).
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable

from nfsd.vfs.attributes import raw_nlink, statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain
from nfsd.vfs.flushes import commit
from nfsd.vfs.mounts import Mount
from nfsd.vfs.opens import Opening
from nfsd.vfs.records import Node, OpenFile
from nfsd.vfs.store_mounts import store_of
from nfsd.vfs.syscalls import AT_EMPTY_PATH, STATX_MASK, SYS_FSYNC, SYS_STATX, SYS_SYNCFS
from nfsd.vfs.types import Credential, FileType
from nfsd.vfs.unstable import UnstableWrites
from rpcrdma.firewall import contain
from rpcrdma.rpc import eager

Finished = Callable[[int], None]
"""What a started fsync calls at its end, with its errno or 0."""
_FSYNCS_PER_CHAIN = 16


class StableStorage:
    """Putting files there."""

    def __init__(self, chains: Chains, unstable: UnstableWrites, opening: Opening) -> None:
        self._chains = chains
        self._unstable = unstable
        self._opening = opening

    async def sync(self, node: Node, credential: Credential | None) -> None:
        """The file's data and attributes, or the directory's entries, are on the disk when this returns, unless the
        export says ``async: true``. ``credential``: of who asks. Raises EIO, ENOSPC or EDQUOT of earlier write-back."""
        if node.export.late_data:
            return
        opened: OpenFile | None = None
        if node.type in (FileType.REG, FileType.DIR) and store_of(node) is None:
            opened = next((entry for entry in node.inode.opens.values() if entry.writable), None)
            if opened is None and node.inode.unstable:
                opened = node.inode.unstable[0]  # kept, should a removal let go of all of them before the fsync begins
            if opened is None:
                try:
                    opened = await self._opening.own_open(node, "" if credential is None else credential.host)
                except OSError as error:
                    # A server that is not root may have files it must not read, and descriptors may be short when what
                    # is to be synchronised has been done already: the whole file system, then.
                    if error.errno not in (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE):
                        raise
        await self.sync_open(node, opened)

    async def settle_change(self, node: Node, credential: Credential | None) -> None:
        """The same after a change of attributes, or of names in a directory, which an export may leave for later."""
        if not node.export.late_names:
            await self.sync(node, credential)

    async def settle_names(self, made: Node | None, directory: Node, credential: Credential) -> None:
        """The same of a new file, if there is one, and of the directory of its name."""
        if made is not None:
            await self.settle_change(made, credential)
        await self.settle_change(directory, credential)

    async def sync_open(self, node: Node, opened: OpenFile | None, before: tuple[int, int] | None = None) -> None:
        """:meth:`sync` through this descriptor, or rather through all that have unstable writes, each of which may know
        of an error that no other one knows of. None for what cannot be opened: its file system is synchronised, as far
        as that is needed.

        ``before``: the file's ``sync.failures`` of before a change of data that the caller calls stable. An fsync that
        began earlier may end after it, and be the one that is told what of it was lost. The kernel does not say so
        twice, and whoever was promised stable data looks at no write verifier."""
        mount = node.mount

        store = store_of(node)

        def start(finished: Finished) -> None:
            if store is not None:
                self.sync_stored(node, finished)
                return
            through = self._unstable.take(node.inode)
            if not through and opened is not None:
                through = [opened]
            if through:
                self._fsync(mount, through, finished)
            else:
                self._sync_mount(mount, finished)

        # What is of the whole file system is shared by all who ask, so that there is one such thing at a time.
        whole = store is None and opened is None and not node.inode.unstable
        group = mount.sync if whole else node.inode.sync
        error = await group.join(start)
        if before is not None and node.inode.sync.failures != before:
            error = error or node.inode.sync.failures[1]
        if error:
            raise OSError(error, os.strerror(error))

    async def settle(self, opened: OpenFile) -> None:
        """Synchronise a file so that its descriptors can close, unless it has no name left and no holder."""
        node = opened.node
        if store_of(node) is not None:
            await self.sync_open(node, opened)
            return
        status = statx_buffer()
        chain = Chain()
        chain.add(SYS_STATX, opened.fd, b"", AT_EMPTY_PATH, STATX_MASK, status)
        await self._chains.run(node.mount, chain)
        if chain.failed is None and raw_nlink(status) == 0 and node.inode.used_count == 0:
            self._unstable.drop(node.inode)
        else:
            await self.sync_open(node, opened)

    def sync_stored(self, node: Node, finished: Finished) -> None:
        """Have a store put a file on its disk. What it is open through stays open until that is over."""
        through = self._unstable.take(node.inode)
        store = store_of(node)
        assert store is not None
        waits = False

        def done(_: object, failure: BaseException | None) -> None:
            error = 0 if failure is None else getattr(failure, "errno", None) or errno.EIO
            through.clear()
            if error:
                node.write_back.failed(error)
            if waits:
                finished(error)
            else:  # who waits for it has only begun to
                asyncio.get_running_loop().call_soon(contain, None, finished, error)

        eager.start(store.data.sync(node), done)
        waits = True

    def _fsync(self, mount: Mount, through: list[OpenFile], finished: Finished) -> None:
        """fsync each of these. It stays open until that is over."""

        def done(error: int) -> None:
            if error:
                mount.write_back.failed(error, through[0].fd)
            rest = through[_FSYNCS_PER_CHAIN:]
            if rest:
                self._fsync(mount, rest, lambda later: finished(error or later))
            else:
                finished(error)

        self._run_sync(mount, SYS_FSYNC, [one.fd for one in through[:_FSYNCS_PER_CHAIN]], done)

    def _sync_mount(self, mount: Mount, finished: Finished) -> None:
        """Put changes of links and devices on the disk, which cannot be opened and so have no fsync. Where changes
        share a journal, that of a file changed now takes all earlier ones with it. Elsewhere nothing but
        syncfs(2) will do, which writes back everybody's data too: a caller could keep the disk busy with that, but
        with no more than what is due anyway, and one at a time."""
        if not mount.journal:
            self.sync_file_system(mount, finished)
            return
        commit(self._chains.executor, self, mount, finished)

    def sync_file_system(self, mount: Mount, finished: Finished) -> None:
        """Write back all of it, with everybody's data."""

        def done(error: int) -> None:
            if error:
                mount.write_back.failed(error, mount.fd)
            finished(error)

        self._run_sync(mount, SYS_SYNCFS, [mount.fd], done)

    def _run_sync(self, mount: Mount, number: int, descriptors: list[int], finished: Finished) -> None:
        chain = Chain()
        steps = [chain.add(number, descriptor, keep_going=True) for descriptor in descriptors]

        def done(_: object = None) -> None:
            # EINVAL: there is no fsync on this file system. (EROFS is no excuse: a file system that an error has made
            # read-only says so, and the data is gone.)
            finished(next((step.error for step in steps if step.error not in (0, errno.EINVAL)), 0))

        if mount.inline:
            self._chains.executor.run_inline(chain)
            done()
        else:
            self._chains.executor.run(chain, mount.lane).add_done_callback(done)
