"""Names moved and removed (RFC 1813 sections 3.3.12 to 3.3.15).

Owns nothing. The two turns (see :mod:`nfsd.vfs.creation`) of a rename are taken in the order of the directories' keys.
"""

from __future__ import annotations

import errno
import os

from nfsd.vfs.attributes import attributes_of, raw_fileid, raw_nlink, raw_type, statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.changes import change_of
from nfsd.vfs.directory_changes import DirectoryChanges, add_stat, check_directory
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.known_files import KnownFiles, identity
from nfsd.vfs.looking import Looking
from nfsd.vfs.open_files import OpenFiles
from nfsd.vfs.records import Node, closed_at_once
from nfsd.vfs.stable import StableStorage
from nfsd.vfs.store_mounts import store_of
from nfsd.vfs.stored_names import StoredNames
from nfsd.vfs.syscalls import (
    AT_EMPTY_PATH,
    AT_REMOVEDIR,
    AT_SYMLINK_FOLLOW,
    AT_SYMLINK_NOFOLLOW,
    O_PATH,
    OPEN_HOW_SIZE,
    STATX_MASK,
    SYS_LINKAT,
    SYS_NAME_TO_HANDLE_AT,
    SYS_OPENAT2,
    SYS_RENAMEAT2,
    SYS_STATX,
    SYS_UNLINKAT,
    handle_buffer,
    open_how,
)
from nfsd.vfs.types import Attributes, Change, Credential, FileType

_HOW = open_how(O_PATH)


class Namespace:
    """REMOVE, RMDIR, RENAME, LINK."""

    def __init__(
        self,
        chains: Chains,
        known: KnownFiles,
        looking: Looking,
        open_files: OpenFiles,
        stable: StableStorage,
        directory_changes: DirectoryChanges,
        stored: StoredNames,
    ) -> None:
        self._chains = chains
        self._known = known
        self._looking = looking
        self._open_files = open_files
        self._stable = stable
        self._directory_changes = directory_changes
        self._stored = stored

    async def remove(
        self, credential: Credential, directory: Node, name: bytes, *, directory_wanted: bool | None
    ) -> Change:
        """Remove a name: True only a directory (ENOTDIR, ENOTEMPTY), False never one (EISDIR), None either."""
        check_directory(directory, name, errno.EINVAL)
        serial = directory.inode.serial
        await serial.acquire()
        try:
            try:
                change = await self._remove(credential, directory, name, AT_REMOVEDIR if directory_wanted else 0)
            except IsADirectoryError:
                if directory_wanted is not None:
                    raise
                change = await self._remove(credential, directory, name, AT_REMOVEDIR)
        finally:
            serial.release()
        await self._stable.settle_change(directory, credential)
        return change

    async def _remove(self, credential: Credential, directory: Node, name: bytes, flags: int) -> Change:
        if store_of(directory) is not None:
            return await self._stored.remove(credential, directory, name, a_directory=flags == AT_REMOVEDIR)
        chain = Chain(credential)
        victim = self._add_victim(chain, directory, name)
        before = add_stat(chain, directory.fd)
        chain.add(SYS_UNLINKAT, directory.fd, name, flags)
        after = add_stat(chain, directory.fd)
        victim.look_again(chain)
        await self._directory_changes.run(directory, chain, victim.opening)
        try:
            chain.check()
        finally:
            self._bury(directory, victim)
        return change_of(directory, before, after)

    def _add_victim(self, chain: Chain, directory: Node, name: bytes) -> _Victim:
        """Find out which file is about to lose a name."""
        victim = _Victim()
        victim.opening = chain.add(SYS_OPENAT2, directory.fd, name, _HOW, OPEN_HOW_SIZE, keep_going=True)
        naming = directory.mount.naming
        if naming:
            victim.naming = chain.add(
                SYS_NAME_TO_HANDLE_AT, victim.opening, b"", victim.kernel, bytearray(8), naming, keep_going=True
            )
        else:
            victim.naming = chain.add(
                SYS_STATX, victim.opening, b"", AT_EMPTY_PATH, STATX_MASK, victim.named, keep_going=True
            )
        return victim

    def _bury(self, directory: Node, victim: _Victim) -> None:
        """Let go of a file that has lost its last name, so that its space is freed."""
        opened = victim.opening.result
        if opened < 0 or not directory.mount.inline or not closed_at_once(opened):
            self._chains.abandon(victim.opening)
        again = victim.again
        if victim.naming.result != 0 or again is None or again.result != 0:
            return
        kind, octets = identity(directory.mount, victim.named, victim.kernel)
        inode = self._known.nodes.known_inode(self._known.key_of(directory.mount, kind, octets))
        if inode is None or (raw_nlink(victim.status) and raw_type(victim.status) is not FileType.DIR):
            return
        self._open_files.forget_removed_inode(inode)
        self._known.nodes.forget_removed(inode)

    async def rename(
        self, credential: Credential, source: Node, name: bytes, target: Node, new_name: bytes
    ) -> tuple[Change, Change]:
        """Rename; both directories' changes. EXDEV across exports or file systems."""
        check_directory(source, name, errno.EINVAL)
        check_directory(target, new_name, errno.EINVAL)
        if source.export.id != target.export.id or source.mount is not target.mount:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        turns = sorted({source.key: source.inode, target.key: target.inode}.items())
        taken = []
        rename = self._rename if store_of(source) is None else self._stored.rename
        try:
            for _, inode in turns:
                await inode.serial.acquire()
                taken.append(inode)
            source_change, target_change = await rename(credential, source, name, target, new_name)
        finally:
            for inode in taken:
                inode.serial.release()
        await self._stable.settle_change(target, credential)
        if target is not source:
            await self._stable.settle_change(source, credential)
        return source_change, target_change

    async def _rename(
        self, credential: Credential, source: Node, name: bytes, target: Node, new_name: bytes
    ) -> tuple[Change, Change]:
        chain = Chain(credential)
        victim = self._add_victim(chain, target, new_name)
        source_before = add_stat(chain, source.fd)
        target_before = add_stat(chain, target.fd)
        moving = statx_buffer()
        chain.add(SYS_STATX, source.fd, name, AT_SYMLINK_NOFOLLOW, STATX_MASK, moving)
        chain.add(SYS_RENAMEAT2, source.fd, name, target.fd, new_name, 0)
        source_after = add_stat(chain, source.fd)
        target_after = add_stat(chain, target.fd)
        victim.look_again(chain)
        moved = self._add_victim(chain, target, new_name) if target.mount.by_place else None
        await self._directory_changes.run(source, chain, victim.opening, *([moved.opening] if moved else []))
        if chain.failed is not None and chain.failed.error == errno.ENOENT:
            await self._looking.look(target)
        try:
            chain.check()
        finally:
            self._bury(target, victim)
            if moved is not None:
                self._moved(moved, target, new_name)
        # A rename of a file to itself or onto a further link of it does nothing (RFC 8881 section 18.26.3).
        happened = not victim.is_file(moving)
        source_change = change_of(source, source_before, source_after, happened=happened)
        if target is source:
            return source_change, source_change
        return source_change, change_of(target, target_before, target_after, happened=happened)

    def _moved(self, moved: _Victim, directory: Node, name: bytes) -> None:
        """Remember where a file is now."""
        self._chains.abandon(moved.opening)
        if moved.naming.result == 0:
            mount = directory.mount
            kind, octets = identity(mount, moved.named, moved.kernel)
            self._known.found_at(mount, self._known.handle_of(mount, kind, octets), directory, name)

    async def link(self, credential: Credential, node: Node, directory: Node, name: bytes) -> tuple[Attributes, Change]:
        """A further name. Returns the file's attributes and the directory's change."""
        check_directory(directory, name, errno.EEXIST)
        if node.type is FileType.DIR:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if node.export.id != directory.export.id or node.mount is not directory.mount:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        link = self._link if store_of(directory) is None else self._stored.link
        serial = directory.inode.serial
        await serial.acquire()
        try:
            status, change = await link(credential, node, directory, name)
        finally:
            serial.release()
        self._known.found_at(node.mount, node.handle, directory, name)
        if node.type is FileType.REG:
            await self._stable.settle_change(node, credential)
        await self._stable.settle_change(directory, credential)
        return attributes_of(status, node.mount, node.inode.change, changed=True), change

    async def _link(self, credential: Credential, node: Node, directory: Node, name: bytes) -> tuple[bytearray, Change]:
        chain = Chain(credential)
        before = add_stat(chain, directory.fd)
        chain.add(SYS_LINKAT, self._chains.proc_fd, b"%d" % node.fd, directory.fd, name, AT_SYMLINK_FOLLOW)
        after = add_stat(chain, directory.fd)
        status = add_stat(chain, node.fd)
        await self._directory_changes.run(directory, chain)
        chain.check()
        return status, change_of(directory, before, after)


class _Victim:
    """A file about to lose a name: which it is, and how many names it had left afterwards."""

    __slots__ = ("again", "kernel", "named", "naming", "opening", "status")

    def __init__(self) -> None:
        self.opening: Step
        self.naming: Step
        self.again: Step | None = None
        self.kernel = handle_buffer()
        self.named = statx_buffer()
        """Instead of ``kernel``, where files go by their numbers."""
        self.status = statx_buffer()

    def look_again(self, chain: Chain) -> None:
        """Append the look at what is left."""
        self.again = chain.add(SYS_STATX, self.opening, b"", AT_EMPTY_PATH, STATX_MASK, self.status, keep_going=True)

    def is_file(self, status: bytearray) -> bool:
        """Whether it exists and is the file, of the same file system, whose ``struct statx`` is given."""
        return self.again is not None and self.again.result == 0 and raw_fileid(self.status) == raw_fileid(status)
