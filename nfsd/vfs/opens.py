"""Open files: descriptors kept per file, caller and access, and NFS's own rules of permission.

Owns the descriptors, and the cache of them, in which something closes when others want its place
(:mod:`nfsd.vfs.shares`). An open file is reused as long as the file's ctime proves that nobody changed its permissions
since it was opened: the server's own writes move ctime too, and are known (:meth:`Inode.wrote`); any other move makes
the kernel be asked again. Holders of a count keep their descriptor whatever happens to the permissions, as local
processes do.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable
from weakref import WeakSet

from nfsd.exported import Exports
from nfsd.vfs.attributes import attributes_of, raw_ctime, raw_nlink, raw_uid, statx_buffer
from nfsd.vfs.executor import Chain
from nfsd.vfs.finding import FindingOperations
from nfsd.vfs.leases import Lease, LeaseHold, Leases
from nfsd.vfs.mounts import Mount, journalled
from nfsd.vfs.nodes import IDLE_SWEEPS, SWEPT_AT_ONCE
from nfsd.vfs.open_accounts import Bound, Share, idle_within
from nfsd.vfs.records import Inode, Node, OpenFile
from nfsd.vfs.resources import FileLimits
from nfsd.vfs.shares import Shares
from nfsd.vfs.syscalls import (
    ACCESS_EXECUTE,
    ACCESS_READ,
    ACCESS_WRITE,
    AT_EACCESS,
    AT_EMPTY_PATH,
    STATX_MASK,
    SYS_CLOSE,
    SYS_FACCESSAT2,
    SYS_FSYNC,
    SYS_OPENAT,
    SYS_STATX,
    SYS_SYNCFS,
)
from nfsd.vfs.types import Attributes, Credential, FileType
from nfsd.vfs.unstable import UnstableWrites

OpenKey = tuple[Credential | None, int, bool]
"""Caller (None: the server itself), access (1 read, 2 write, 3 both), whether NFS's own rules had to help."""

Finished = Callable[[int], None]
"""What a started fsync calls at its end, with its errno or 0."""

_FLAGS = {1: os.O_RDONLY, 2: os.O_WRONLY, 3: os.O_RDWR}
_LEASE_TRIES = 3
_FSYNCS_PER_CHAIN = 16
_STALE = os.strerror(errno.ESTALE)


class OpenOperations(FindingOperations):
    """Opening files, and putting them on stable storage."""

    def __init__(self, exports: Exports, state_dir: str, limits: FileLimits | None = None) -> None:
        super().__init__(exports, state_dir, limits)
        self.shares = Shares(self.file_limits.open_files, self.file_limits.host_open_files, self)
        self.nodes.places = self.shares
        self._opens: OrderedDict[OpenFile, None] = OrderedDict()
        self._all_opens: WeakSet[OpenFile] = WeakSet()
        self.unstable = UnstableWrites(self._settle)
        self.open_sweep = 0
        self.leases = Leases()
        self.locked: dict[bytes, Inode] = {}
        """Inodes with local locks, which must not be forgotten."""

    # -- the cache -----------------------------------------------------------------------------------------------
    def remember_open(self, opened: OpenFile, key: OpenKey) -> None:
        """Put an open file in the cache, in place of an older one of this key."""
        inode = opened.node.inode
        older = inode.opens.get(key)
        if older is not None:
            self.forget_open(older)
        inode.opens[key] = opened
        opened.cached = key
        opened.used = self.open_sweep
        self._opens[opened] = None
        opened.share.remember(opened)

    def forget_open(self, opened: OpenFile) -> None:
        """Out of the cache; its descriptor closes with its last holder, and not before its unstable writes have been
        synchronised."""
        if opened.cached is not None:
            opened.node.inode.opens.pop(opened.cached, None)
            opened.cached = None
            self._opens.pop(opened, None)
            opened.share.forget(opened)
            if opened.unstable and opened.count == 0:
                opened.share.leaves(opened)
                self.unstable.forgotten(opened)

    def let_go(self, share: Share, bound: Bound) -> bool:
        """Close one that nobody holds, so that a place within a bound becomes free."""
        found = idle_within(share, bound, self._opens)
        if found is None:
            return False
        found.share.leaves(found)
        self.forget_open(found)
        return True

    def forget_opens(self, inode: Inode) -> None:
        """Nothing of this file stays in the cache."""
        for opened in list(inode.opens.values()):
            self.forget_open(opened)

    def forget_removed(self, node: Node) -> None:
        """A file lost its last name: nothing of ours must keep its space, except what a holder still has open."""
        self.forget_removed_inode(node.inode)
        self.nodes.forget(node)

    def forget_removed_inode(self, inode: Inode) -> None:
        """As ``forget_removed``, but for the nodes."""
        self.unstable.drop(inode)
        self.forget_opens(inode)
        self.nodes.forget_inode(inode)

    def sweep(self) -> None:
        """Let go of what has not been used for some seconds."""
        self.open_sweep += 1
        oldest = self.open_sweep - IDLE_SWEEPS
        for _ in range(min(len(self._opens), SWEPT_AT_ONCE)):
            opened = next(iter(self._opens))
            if opened.used >= oldest:
                self._opens.move_to_end(opened)
            else:
                self.forget_open(opened)
        self.shares.exports = len(self._roots)
        self.unstable.sweep()
        super().sweep()

    async def start(self) -> None:
        """Open the export roots; begin to hear of leases."""
        await super().start()
        self.shares.exports = len(self._roots)
        self.leases.start(self.loop, self.executor, self._identify)

    async def close(self) -> None:
        """Finish running jobs, close every descriptor."""
        self.leases.close()
        self.shares.close()
        while self._opens:
            self.forget_open(next(iter(self._opens)))
        await self.unstable.close()
        for inode in self.locked.values():
            inode.locks = None
        self.locked.clear()
        await super().close()
        for opened in list(self._all_opens):
            opened.shut()

    def cached_open(self, inode: Inode, key: OpenKey) -> OpenFile | None:
        """The cached open file of a key, if it is still good."""
        opened = inode.opens.get(key)
        if opened is None:
            return None
        if opened.epoch != inode.epoch:
            self.forget_open(opened)
            return None
        opened.used = self.open_sweep
        return opened

    # -- looking -------------------------------------------------------------------------------------------------
    async def look(self, node: Node) -> bytearray:
        """A fresh ``struct statx`` of the node. Raises ESTALE when the file is gone and nobody has it open."""
        status = statx_buffer()
        chain = Chain()
        chain.add(SYS_STATX, node.fd, b"", AT_EMPTY_PATH, STATX_MASK, status)
        if node.mount.inline or node.mount.caching:
            self.executor.run_inline(chain)
        else:
            await self.run_in_lane(node.mount.lane, chain)
        chain.check()
        inode = node.inode
        inode.saw_ctime(raw_ctime(status))
        if raw_nlink(status) == 0 and inode.used_count == 0:
            self.forget_removed(node)
            raise OSError(errno.ESTALE, _STALE)
        return status

    async def attributes(self, node: Node) -> Attributes:
        """Attributes now. ESTALE when the file is gone."""
        return attributes_of(await self.look(node), node.mount, node.inode.change)

    # -- opening -------------------------------------------------------------------------------------------------
    async def open(
        self,
        credential: Credential,
        node: Node,
        *,
        read: bool,
        write: bool,
        owner_override: bool = True,
        exactly: bool = False,
    ) -> OpenFile:
        """A descriptor from the cache or a new one (count taken; release it). NFS's own rules hold: the owner may read
        and write despite the mode (unless ``owner_override`` is false, as for an OPEN of NFSv4, which checks like
        open(2)), execute permission suffices to read (RFC 1813 section 4.4). EROFS on a read-only export, EISDIR for
        directories, EINVAL for other non-regular files (symbolic links: ELOOP). ``exactly``: a descriptor for this
        access and no more, as a lease needs it."""
        if node.type is not FileType.REG:
            code = {FileType.DIR: errno.EISDIR, FileType.LNK: errno.ELOOP}.get(node.type, errno.EINVAL)
            raise OSError(code, os.strerror(code))
        if write and node.export.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        access = (1 if read else 0) | (2 if write else 0)
        status = await self.look(node)
        inode = node.inode
        for wider in (access,) if exactly or access == 3 else (access, 3):
            opened = self.cached_open(inode, (credential, wider, False))
            if opened is None and owner_override:
                opened = self.cached_open(inode, (credential, wider, True))
            if opened is not None and self.shares.take(opened, credential.host):
                return opened
        try:
            opened = await self._open_as(credential, credential, node, access, credential.host, helped=False)
        except PermissionError as error:
            if error.errno != errno.EACCES or not await self._may_anyway(
                credential, node, access, raw_uid(status), owner_override
            ):
                raise
            opened = await self._open_as(None, credential, node, access, credential.host, helped=True)
        return opened.retain()

    async def _may_anyway(
        self, credential: Credential, node: Node, access: int, owner: int, owner_override: bool
    ) -> bool:
        """NFS's own rules (RFC 1813 section 4.4): a client checks permission when a file is opened and may lose it, by
        chmod or by an open mode of 0444, while it writes: the server lets the owner. And it cannot tell reading from
        paging in a program, so execute permission suffices to read."""
        if owner_override and credential.uid == owner:
            return True
        if access != 1:
            return False
        chain = Chain(credential)
        chain.add(SYS_FACCESSAT2, node.fd, b"", ACCESS_EXECUTE, AT_EMPTY_PATH | AT_EACCESS)
        await self.run(node.mount, chain)
        return chain.failed is None

    async def may_write(self, credential: Credential | None, node: Node) -> bool:
        """Whether the file's mode or ACL lets the caller write."""
        chain = Chain(credential)
        chain.add(SYS_FACCESSAT2, node.fd, b"", ACCESS_WRITE, AT_EMPTY_PATH | AT_EACCESS)
        await self.run(node.mount, chain)
        return chain.failed is None

    async def _open_as(
        self,
        actor: Credential | None,
        credential: Credential | None,
        node: Node,
        access: int,
        host: str,
        *,
        helped: bool,
    ) -> OpenFile:
        """Open as ``actor`` on behalf of ``credential``, at the expense of ``host``, and remember it."""
        lease = node.inode.lease
        if lease is not None and lease.write:
            return await self._through(lease, actor, node, access)
        if credential is None:
            share = self.shares.at_any_rate(host, node.mount.lane)
        else:
            share = self.shares.at_once(host, node.mount.lane) or await self.shares.wait(host, node.mount.lane)
            lease = node.inode.lease
            if lease is not None and lease.write:  # it was taken while there was no place
                share.give_back()
                return await self._through(lease, actor, node, access)
        self._give_way(node, access)
        status = statx_buffer()
        chain = Chain(actor)
        # The look comes first: a permission taken away in between shows as a later ctime next time.
        chain.add(SYS_STATX, node.fd, b"", AT_EMPTY_PATH, STATX_MASK, status)
        # Not to be held back by a lease of somebody else's (O_NONBLOCK means nothing else here): that may take long.
        flags = os.O_CLOEXEC | os.O_NONBLOCK | _FLAGS[access] | (os.O_DIRECTORY if node.type is FileType.DIR else 0)
        opening = chain.add(SYS_OPENAT, self.proc_fd, b"%d" % node.fd, flags)
        try:
            await self.run(node.mount, chain, opening)
            if opening.error == errno.EAGAIN:
                raise OSError(errno.ETIMEDOUT, "a local process holds a lease")
            self.check(chain, opening)
        except BaseException:
            share.give_back()
            raise
        opened = self.new_open(node, opening.result, access, credential, share)
        inode = node.inode
        if credential is None or inode.ctime == raw_ctime(status):
            opened.epoch = inode.epoch
            self.remember_open(opened, (credential, access, helped))
        return opened

    async def _through(self, lease: Lease, actor: Credential | None, node: Node, access: int) -> OpenFile:
        """The leased descriptor itself, which reads and writes: any other one would break the lease. The kernel is
        asked whether ``actor`` may."""
        chain = Chain(actor)
        wanted = (ACCESS_READ if access & 1 else 0) | (ACCESS_WRITE if access & 2 else 0)
        chain.add(SYS_FACCESSAT2, node.fd, b"", wanted, AT_EMPTY_PATH | AT_EACCESS)
        await self.run(node.mount, chain)
        if actor is not None:
            chain.check()
        return lease.opened

    @staticmethod
    def _give_way(node: Node, access: int) -> None:
        """An open of ours is about to break the file's lease: give it up, and let its holders know if need be."""
        lease = node.inode.lease
        if lease is not None and (lease.write or access & 2) and not lease.weaken():
            lease.tell()
            lease.give_up()

    async def take_lease(
        self, opened: OpenFile, *, write: bool, on_break: Callable[[], None], host: str = "", patient: bool = True
    ) -> LeaseHold | None:
        """For a client of this ``host``: have the kernel tell, by ``on_break``, before a local process opens the file
        for writing (``write``: at all), for as long as the hold is kept. None: one has it open like that, or the kernel
        gives no lease; unless ``patient``, also if something of ours that is about to close has it open. ``on_break``
        must not wait; it is called at most once."""
        inode, lane = opened.node.inode, opened.node.mount.lane
        for _ in range(_LEASE_TRIES):
            lease = inode.lease
            if lease is not None:
                if write or lease.write or lease.broken:
                    return None
                return LeaseHold(lease, host, on_break)
            if opened.writable != write or not opened.readable:
                return None  # the kernel takes a read lease of a descriptor for reading only
            lease = self.leases.lock(opened, write=write)
            if lease is not None:
                return LeaseHold(lease, host, on_break)
            if not patient:
                return None
            # Descriptors kept in case they are needed again stand in the way like any other.
            self._forget_idle(inode, write)
            settled = await self.unstable.settled(inode, lane)
            if not await self.closed(lane) and not settled:
                return None
        return None

    def _forget_idle(self, inode: Inode, write: bool) -> None:
        """Close what nobody uses and a lease (``write``: a write lease) cannot stand."""
        for one in list(inode.opens.values()):
            if one.count == 0 and (write or one.writable):
                self.forget_open(one)

    def _identify(self, node: Node) -> tuple[int, bytes, tuple[int, bytes]]:
        return self.proc_fd, b"%d" % node.fd, self.codec.decode(node.handle)[2:]

    async def own_open(self, node: Node, host: str) -> OpenFile:
        """The file or directory open for reading as the server itself, whatever its permissions (count not taken), at
        the expense of ``host``."""
        opened = node.inode.opens.get((None, 1, False))
        if opened is None:
            return await self._open_as(None, None, node, 1, host, helped=False)
        opened.used = self.open_sweep
        return opened

    async def private_open(self, node: Node, access: int, share: Share) -> OpenFile:
        """The file open as the server itself, outside the cache (count not taken): closed when it is dropped. The place
        in ``share`` is taken over; if this fails, it is the caller's still."""
        self._give_way(node, access)
        chain = Chain()
        opening = chain.add(SYS_OPENAT, self.proc_fd, b"%d" % node.fd, os.O_CLOEXEC | _FLAGS[access])
        await self.run(node.mount, chain, opening)
        self.check(chain, opening)
        return self.new_open(node, opening.result, access, None, share)

    def new_open(
        self, node: Node, descriptor: int, access: int, credential: Credential | None, share: Share
    ) -> OpenFile:
        """An open file for a descriptor, which is taken over together with its place in ``share``."""
        opened = OpenFile(node, descriptor, access, credential, self.close_later, share)
        self._all_opens.add(opened)
        return opened

    # -- stable storage ------------------------------------------------------------------------------------------
    async def sync(self, node: Node, credential: Credential | None) -> None:
        """The file's data and attributes, or the directory's entries, are on the disk when this returns, unless the
        export says async. ``credential``: of who asks. Raises EIO, ENOSPC or EDQUOT of earlier write-back."""
        if node.export.asynchronous:
            return
        opened: OpenFile | None = None
        if node.type in (FileType.REG, FileType.DIR):
            opened = next((entry for entry in node.inode.opens.values() if entry.writable), None)
            if opened is None and node.inode.unstable:
                opened = node.inode.unstable[0]  # kept, should a removal let go of all of them before the fsync begins
            if opened is None:
                try:
                    opened = await self.own_open(node, "" if credential is None else credential.host)
                except OSError as error:
                    # A server that is not root may have files it must not read, and descriptors may be short when what
                    # is to be synchronised has been done already: the whole file system, then.
                    if error.errno not in (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE):
                        raise
        await self.sync_open(node, opened)

    async def sync_open(self, node: Node, opened: OpenFile | None, before: tuple[int, int] | None = None) -> None:
        """:meth:`sync` through this descriptor, or rather through all that have unstable writes, each of which may know
        of an error that no other one knows of. None for what cannot be opened: its file system is synchronised, as far
        as that is needed.

        ``before``: the file's ``sync.failures`` of before a change of data that the caller calls stable. An fsync that
        began earlier may end after it, and be the one that is told what of it was lost. The kernel does not say so
        twice, and whoever was promised stable data looks at no write verifier."""
        mount = node.mount

        def start(finished: Finished) -> None:
            through = self.unstable.take(node.inode)
            if not through and opened is not None:
                through = [opened]
            if through:
                self._fsync(mount, through, finished)
            else:
                self._sync_mount(mount, finished)

        # What is of the whole file system is shared by all who ask, so that there is one such thing at a time.
        group = mount.sync if opened is None and not node.inode.unstable else node.inode.sync
        error = await group.join(start)
        if before is not None and node.inode.sync.failures != before:
            error = error or node.inode.sync.failures[1]
        if error:
            raise OSError(error, os.strerror(error))

    def _fsync(self, mount: Mount, through: list[OpenFile], finished: Finished) -> None:
        """fsync each of these. It stays open until that is over."""

        def done(error: int) -> None:
            if error:
                self.lost_writes(error, through[0].fd)
            rest = through[_FSYNCS_PER_CHAIN:]
            if rest:
                self._fsync(mount, rest, lambda later: finished(error or later))
            else:
                finished(error)

        self._run_sync(mount, SYS_FSYNC, [one.fd for one in through[:_FSYNCS_PER_CHAIN]], done)

    def _sync_mount(self, mount: Mount, finished: Finished) -> None:
        """Put changes of links and devices on the disk, which cannot be opened and so have no fsync. Where changes
        share a journal, that of a file without a name, made now, takes all earlier ones with it. Elsewhere nothing but
        syncfs(2) will do, which writes back everybody's data too: a caller could keep the disk busy with that, but
        with no more than what is due anyway, and one at a time."""
        if not journalled(mount):
            self._syncfs(mount, finished)
            return
        chain = Chain()
        flags = os.O_TMPFILE | os.O_WRONLY | os.O_EXCL | os.O_CLOEXEC
        opening = chain.add(SYS_OPENAT, mount.fd, b".", flags, 0)
        flushing = chain.add(SYS_FSYNC, opening, keep_going=True)
        chain.add(SYS_CLOSE, opening)

        def done(_: object) -> None:
            if opening.error:  # no room for it, or not for a server that is not root
                self._syncfs(mount, finished)
                return
            if flushing.error:
                self.lost_writes(flushing.error, mount.fd)
            finished(flushing.error)

        self.executor.run(chain, mount.lane).add_done_callback(done)

    def _syncfs(self, mount: Mount, finished: Finished) -> None:
        def done(error: int) -> None:
            if error:
                self.lost_writes(error, mount.fd)
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
            self.executor.run_inline(chain)
            done()
        else:
            self.executor.run(chain, mount.lane).add_done_callback(done)

    async def _settle(self, opened: OpenFile) -> None:
        """Synchronise a file so that its descriptors can close, unless it has no name left and no holder."""
        node = opened.node
        status = statx_buffer()
        chain = Chain()
        chain.add(SYS_STATX, opened.fd, b"", AT_EMPTY_PATH, STATX_MASK, status)
        await self.run(node.mount, chain)
        if chain.failed is None and raw_nlink(status) == 0 and node.inode.used_count == 0:
            self.unstable.drop(node.inode)
        else:
            await self.sync_open(node, opened)
