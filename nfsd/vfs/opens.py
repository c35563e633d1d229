"""Opening files, by NFS's own rules of permission.

Owns nothing: what is opened goes to :mod:`nfsd.vfs.open_files`.
"""

from __future__ import annotations

import errno
import fcntl
import os

from nfsd.backends.interface import Store
from nfsd.vfs.attributes import raw_ctime, raw_uid, statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain
from nfsd.vfs.leases import Lease
from nfsd.vfs.looking import Looking
from nfsd.vfs.open_accounts import Share
from nfsd.vfs.open_files import OpenFiles
from nfsd.vfs.records import Node, OpenFile
from nfsd.vfs.shares import Shares
from nfsd.vfs.store_mounts import store_of
from nfsd.vfs.syscalls import (
    ACCESS_READ,
    ACCESS_WRITE,
    AT_EACCESS,
    AT_EMPTY_PATH,
    STATX_MASK,
    SYS_FACCESSAT2,
    SYS_OPENAT,
    SYS_STATX,
)
from nfsd.vfs.types import Credential, FileType

_FLAGS = {1: os.O_RDONLY, 2: os.O_WRONLY, 3: os.O_RDWR}


class Opening:
    """Descriptors for callers, and for the server itself."""

    def __init__(self, chains: Chains, looking: Looking, open_files: OpenFiles, shares: Shares) -> None:
        self._chains = chains
        self._looking = looking
        self._open_files = open_files
        self._shares = shares

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
        status = await self._looking.look(node)
        inode = node.inode
        for wider in (access,) if exactly or access == 3 else (access, 3):
            opened = self._open_files.cached(inode, (credential, wider, False))
            if opened is None and owner_override:
                opened = self._open_files.cached(inode, (credential, wider, True))
            if opened is not None and self._shares.take(opened, credential.host):
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
        return await self._looking.may_execute(credential, node)

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
            share = self._shares.at_any_rate(host, node.mount.lane)
        else:
            share = self._shares.at_once(host, node.mount.lane) or await self._shares.wait(host, node.mount.lane)
            lease = node.inode.lease
            if lease is not None and lease.write:  # it was taken while there was no place
                share.give_back()
                return await self._through(lease, actor, node, access)
        if (store := store_of(node)) is not None:
            return await self._open_in(store, actor, credential, node, access, share, helped=helped)
        self._give_way(node, access)
        status = statx_buffer()
        chain = Chain(actor)
        # The look comes first: a permission taken away in between shows as a later ctime next time.
        chain.add(SYS_STATX, node.fd, b"", AT_EMPTY_PATH, STATX_MASK, status)
        # Not to be held back by a lease of somebody else's (O_NONBLOCK means nothing else here): that may take long.
        flags = os.O_CLOEXEC | os.O_NONBLOCK | _FLAGS[access] | (os.O_DIRECTORY if node.type is FileType.DIR else 0)
        opening = chain.add(SYS_OPENAT, self._chains.proc_fd, b"%d" % node.fd, flags)
        try:
            await self._chains.run(node.mount, chain, opening)
            if opening.error == errno.EAGAIN:
                raise OSError(errno.ETIMEDOUT, "a local process holds a lease")
            self._chains.check(chain, opening)
        except BaseException:
            share.give_back()
            raise
        opened = self._open_files.new(node, opening.result, access, credential, share)
        inode = node.inode
        if credential is None or inode.ctime == raw_ctime(status):
            opened.epoch = inode.epoch
            self._open_files.remember(opened, (credential, access, helped))
        return opened

    async def _open_in(
        self,
        store: Store,
        actor: Credential | None,
        credential: Credential | None,
        node: Node,
        access: int,
        share: Share,
        *,
        helped: bool,
    ) -> OpenFile:
        """The same, of a file in a store. The look comes first here, too."""
        inode = node.inode
        try:
            ctime = raw_ctime(await store.files.look(node))
            stored = await store.data.open(actor, node, access)
        except BaseException:
            share.give_back()
            raise
        opened = self._open_files.new_in_store(node, store, access, credential, share, stored)
        if credential is None or inode.ctime == ctime or inode.serial.writing:  # as in Inode.saw_ctime
            opened.epoch = inode.epoch
            self._open_files.remember(opened, (credential, access, helped))
        return opened

    async def _through(self, lease: Lease, actor: Credential | None, node: Node, access: int) -> OpenFile:
        """The leased descriptor itself, which reads and writes: any other one would break the lease. The kernel is
        asked whether ``actor`` may."""
        chain = Chain(actor)
        wanted = (ACCESS_READ if access & 1 else 0) | (ACCESS_WRITE if access & 2 else 0)
        chain.add(SYS_FACCESSAT2, node.fd, b"", wanted, AT_EMPTY_PATH | AT_EACCESS)
        await self._chains.run(node.mount, chain)
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

    async def own_open(self, node: Node, host: str) -> OpenFile:
        """The file or directory open for reading as the server itself, whatever its permissions (count not taken), at
        the expense of ``host``."""
        opened = node.inode.opens.get((None, 1, False))
        if opened is None:
            return await self._open_as(None, None, node, 1, host, helped=False)
        opened.used = self._open_files.sweep_number
        return opened

    async def private_open(self, node: Node, access: int, share: Share) -> OpenFile:
        """The file open as the server itself, outside the cache (count not taken): closed when it is dropped. The place
        in ``share`` is taken over; if this fails, it is the caller's still."""
        if (store := store_of(node)) is not None:
            stored = await store.data.open(None, node, access)
            return self._open_files.new_in_store(node, store, access, None, share, stored)
        lease = node.inode.lease
        if lease is not None and lease.write:
            # A client locks what it returns a delegation of. An open of ours would break the lease, and let a local
            # process go on before the client has written what it caches.
            return self._open_files.new(
                node, fcntl.fcntl(lease.opened.fd, fcntl.F_DUPFD_CLOEXEC, 0), access, None, share
            )
        self._give_way(node, access)
        chain = Chain()
        opening = chain.add(SYS_OPENAT, self._chains.proc_fd, b"%d" % node.fd, os.O_CLOEXEC | _FLAGS[access])
        await self._chains.run(node.mount, chain, opening)
        self._chains.check(chain, opening)
        return self._open_files.new(node, opening.result, access, None, share)
