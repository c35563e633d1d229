"""Names made, moved and removed (RFC 1813 sections 3.3.8 to 3.3.15).

Owns nothing. Changes of one directory take turns, so that the attributes around each are its own; the two turns of a
rename are taken in the order of the directories' keys. A reply waits until file and directory are on the disk, but
outside the turn, so that many creations in one directory share the directory's fsync.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from nfsd.vfs.attributes import attributes_of, raw_ctime, raw_nlink, raw_type, statx_buffer
from nfsd.vfs.directory import DirectoryOperations, check_name
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.inspect import InspectOperations, time_argument
from nfsd.vfs.records import Node, OpenFile
from nfsd.vfs.syscalls import (
    AT_EMPTY_PATH,
    AT_REMOVEDIR,
    AT_SYMLINK_FOLLOW,
    O_PATH,
    OPEN_HOW_SIZE,
    STATX_MASK,
    SYS_FTRUNCATE,
    SYS_LINKAT,
    SYS_MKDIRAT,
    SYS_MKNODAT,
    SYS_NAME_TO_HANDLE_AT,
    SYS_OPENAT2,
    SYS_RENAMEAT2,
    SYS_STATX,
    SYS_SYMLINKAT,
    SYS_UNLINKAT,
    handle_buffer,
    open_how,
    parse_handle,
    timespecs,
)
from nfsd.vfs.types import Attributes, Change, Credential, FileType, SetAttributes, Time

_HOW = open_how(O_PATH)
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DEFAULT_MODE = 0o600
"""For creation without a mode (EXCLUSIVE): the client's SETATTR follows."""
_DEFAULT_DIRECTORY_MODE = 0o755
_VERIFIER_MASK = 0x7FFFFFFF
_KINDS = {
    FileType.BLK: stat.S_IFBLK,
    FileType.CHR: stat.S_IFCHR,
    FileType.SOCK: stat.S_IFSOCK,
    FileType.FIFO: stat.S_IFIFO,
}


def _verifier_times(verifier: bytes) -> tuple[Time, Time]:
    """Where an exclusive creation's verifier is kept: seconds of atime and mtime, 31 bits each, since not every file
    system has more before 2038 (as Linux knfsd does)."""
    if len(verifier) != 8:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return (
        Time(int.from_bytes(verifier[:4], "big") & _VERIFIER_MASK, 0),
        Time(int.from_bytes(verifier[4:], "big") & _VERIFIER_MASK, 0),
    )


class NamespaceOperations(InspectOperations, DirectoryOperations):
    """CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK."""

    def _check_directory(self, directory: Node, name: bytes, dots: int) -> None:
        """A directory that may be changed, and a name for it; ``dots``: the error for ``.`` and ``..``."""
        check_name(name)
        if directory.type is not FileType.DIR:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if name in (b".", b".."):
            raise OSError(dots, os.strerror(dots))
        self.check_writable(directory)

    async def _run_change(self, directory: Node, chain: Chain, *opens: Step) -> None:
        await self.run(directory.mount, chain, *opens)
        failed = chain.failed
        if failed is not None and failed.error == errno.ENOENT:
            try:
                await self.look(directory)  # ESTALE when it is the directory that is gone
            except OSError:
                self.abandon(*opens)
                raise

    def _changed(self, node: Node, before: bytearray, after: bytearray) -> Change:
        """The change of a directory around an operation of ours, under its turn."""
        inode = node.inode
        first = attributes_of(before, node.mount, inode.change)
        inode.wrote(raw_ctime(before), raw_ctime(after))
        return Change(first, attributes_of(after, node.mount, inode.change, changed=True))

    def _add_stat(self, chain: Chain, descriptor: int | Step) -> bytearray:
        status = statx_buffer()
        chain.add(SYS_STATX, descriptor, b"", AT_EMPTY_PATH, STATX_MASK, status)
        return status

    # -- creating ------------------------------------------------------------------------------------------------
    async def create(
        self,
        credential: Credential,
        directory: Node,
        name: bytes,
        attributes: SetAttributes,
        *,
        exclusive: bool = False,
        verifier: bytes | None = None,
    ) -> tuple[Node, Attributes, Change, bool]:
        """Create a regular file. Returns (file, its attributes, the directory's change, whether it is new).

        Without ``exclusive`` an existing regular file is returned, size set if asked (UNCHECKED). With it an
        existing one raises EEXIST (GUARDED), unless ``verifier`` (8 octets) is that of its creation (EXCLUSIVE: kept
        durably with the file until its first SETATTR, as knfsd does in atime and mtime)."""
        self._check_directory(directory, name, errno.EEXIST)
        wanted = attributes
        if verifier is not None:
            atime, mtime = _verifier_times(verifier)
            wanted = SetAttributes(attributes.mode, attributes.uid, attributes.gid, attributes.size, atime, mtime)
        while True:
            try:
                node, opened, change = await self._create_new(credential, directory, name, wanted)
            except FileExistsError:
                try:
                    return await self._create_over(credential, directory, name, attributes, exclusive, verifier)
                except FileNotFoundError:
                    continue  # removed in between, by a local process: try again to make it
            status = await self._finish_file(credential, node, opened, wanted)
            if not node.export.asynchronous:
                await self.sync_open(node, opened)
            await self.sync(directory)
            return node, self.seen(node, status), change, True

    async def _create_new(
        self, credential: Credential, directory: Node, name: bytes, attributes: SetAttributes
    ) -> tuple[Node, OpenFile, Change]:
        """Make the file. Its descriptor, open for reading and writing whatever its mode, stays its creator's."""
        mode = _DEFAULT_MODE if attributes.mode is None else attributes.mode & 0o7777
        status, kernel, same = statx_buffer(), handle_buffer(), handle_buffer()
        chain = Chain(credential)
        before = self._add_stat(chain, directory.fd)
        opening = chain.add(SYS_OPENAT2, directory.fd, name, open_how(_CREATE, mode), OPEN_HOW_SIZE)
        after = self._add_stat(chain, directory.fd)
        chain.add(SYS_NAME_TO_HANDLE_AT, opening, b"", same, bytearray(8), AT_EMPTY_PATH)
        naming = chain.add(SYS_OPENAT2, directory.fd, name, _HOW, OPEN_HOW_SIZE)
        self.add_look(chain, naming, status, kernel)
        serial = directory.inode.serial
        await serial.acquire()
        try:
            await self._run_change(directory, chain, opening, naming)
            self.check(chain, opening, naming)
            change = self._changed(directory, before, after)
        finally:
            serial.release()
        if kernel != same:
            # A local process put another file in its place at once: let the caller see that one.
            self.abandon(opening, naming)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        node = self.adopt(directory.mount, naming.result, status, kernel, directory, name)
        opened = self.new_open(node, opening.result, 3, credential)
        return node, opened, change

    async def _finish_file(
        self, credential: Credential, node: Node, opened: OpenFile, attributes: SetAttributes
    ) -> bytearray:
        """Set what open(2) does not: owner, times, size. Returns the status after it, and caches the descriptor."""
        chain = Chain(credential)
        if attributes.size:
            chain.add(SYS_FTRUNCATE, opened.fd, attributes.size)
        self._add_initial(chain, credential, node, attributes)
        status = self._add_stat(chain, node.fd)
        await self.run(node.mount, chain)
        chain.check()
        inode = node.inode
        inode.saw_ctime(raw_ctime(status))
        opened.epoch = inode.epoch
        self.remember_open(opened, (credential, 3, True))
        return status

    def _add_initial(self, chain: Chain, credential: Credential, node: Node, attributes: SetAttributes) -> None:
        """Owner and times of a new file. Only root gives files away: what others send is what they are anyway, or is
        left out, as Linux knfsd does."""
        root = credential.uid == 0
        # mkdir(2) and mknod(2) make nothing with set-user-id or set-group-id bits, and a change of owner clears them.
        again = attributes.mode is not None and (
            attributes.mode & (stat.S_ISUID | stat.S_ISGID) != 0
            or (root and (attributes.uid, attributes.gid) != (None, None))
        )
        owner = SetAttributes(
            mode=attributes.mode if again else None,
            uid=attributes.uid if root else None,
            gid=attributes.gid if root else None,
            atime=attributes.atime,
            mtime=attributes.mtime,
        )
        times = timespecs(time_argument(owner.atime), time_argument(owner.mtime))
        self.add_changes(chain, node.fd, b"%d" % node.fd, owner, times)

    async def _create_over(
        self,
        credential: Credential,
        directory: Node,
        name: bytes,
        attributes: SetAttributes,
        exclusive: bool,
        verifier: bytes | None,
    ) -> tuple[Node, Attributes, Change, bool]:
        """The name exists already."""
        around = await self.attributes(directory)
        node, found = await self.lookup(credential, directory, name)
        if node.type is not FileType.REG:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if exclusive:
            # A retransmission of the call that made the file, which the replay cache no longer knows.
            if verifier is None or (found.atime, found.mtime) != _verifier_times(verifier) or found.size:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            await self.sync(node)
            await self.sync(directory)
        elif attributes.size is not None:
            change = await self.set_attributes(credential, node, SetAttributes(size=attributes.size))
            found = change.after
        return node, found, Change(around, around), False

    async def mkdir(
        self, credential: Credential, directory: Node, name: bytes, attributes: SetAttributes
    ) -> tuple[Node, Attributes, Change]:
        """Create a directory."""
        mode = _DEFAULT_DIRECTORY_MODE if attributes.mode is None else attributes.mode & 0o7777

        def make(chain: Chain) -> None:
            chain.add(SYS_MKDIRAT, directory.fd, name, mode)

        return await self._make(credential, directory, name, attributes, FileType.DIR, make)

    async def symlink(
        self, credential: Credential, directory: Node, name: bytes, target: bytes, attributes: SetAttributes
    ) -> tuple[Node, Attributes, Change]:
        """Create a symbolic link."""
        if not target or b"\0" in target:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        def make(chain: Chain) -> None:
            chain.add(SYS_SYMLINKAT, target, directory.fd, name)

        # Links have no mode of their own on Linux.
        plain = SetAttributes(None, attributes.uid, attributes.gid, None, attributes.atime, attributes.mtime)
        return await self._make(credential, directory, name, plain, FileType.LNK, make)

    async def mknod(
        self,
        credential: Credential,
        directory: Node,
        name: bytes,
        type_: int,
        rdev: tuple[int, int],
        attributes: SetAttributes,
    ) -> tuple[Node, Attributes, Change]:
        """Create a device, socket or FIFO (``type_``: a FileType)."""
        kind = _KINDS.get(FileType(type_)) if type_ in FileType._value2member_map_ else None
        if kind is None or not (0 <= rdev[0] < 1 << 12 and 0 <= rdev[1] < 1 << 20):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        mode = kind | (_DEFAULT_MODE if attributes.mode is None else attributes.mode & 0o7777)
        device = os.makedev(*rdev) if kind in (stat.S_IFBLK, stat.S_IFCHR) else 0

        def make(chain: Chain) -> None:
            chain.add(SYS_MKNODAT, directory.fd, name, mode, device)

        return await self._make(credential, directory, name, attributes, FileType(type_), make)

    async def _make(
        self,
        credential: Credential,
        directory: Node,
        name: bytes,
        attributes: SetAttributes,
        type_: FileType,
        make: Callable[[Chain], None],
    ) -> tuple[Node, Attributes, Change]:
        """Create what open(2) does not create."""
        self._check_directory(directory, name, errno.EEXIST)
        status, kernel = statx_buffer(), handle_buffer()
        chain = Chain(credential)
        before = self._add_stat(chain, directory.fd)
        make(chain)
        after = self._add_stat(chain, directory.fd)
        opening = chain.add(SYS_OPENAT2, directory.fd, name, _HOW, OPEN_HOW_SIZE)
        self.add_look(chain, opening, status, kernel)
        serial = directory.inode.serial
        await serial.acquire()
        try:
            await self._run_change(directory, chain, opening)
            self.check(chain, opening)
            change = self._changed(directory, before, after)
        finally:
            serial.release()
        node = self.adopt(directory.mount, opening.result, status, kernel, directory, name)
        if raw_type(status) is type_:
            # Otherwise a local process has replaced it already, and its attributes are that process's business.
            chain = Chain(credential)
            self._add_initial(chain, credential, node, attributes)
            status = self._add_stat(chain, node.fd)
            await self.run(node.mount, chain)
            chain.check()
        if type_ is FileType.DIR:
            await self.sync(node)
        # A link or device cannot be opened to be synchronised: its creation is in the directory's own transaction.
        await self.sync(directory)
        return node, self.seen(node, status), change

    # -- removing, renaming, linking -------------------------------------------------------------------------------
    async def remove(
        self, credential: Credential, directory: Node, name: bytes, *, directory_wanted: bool | None
    ) -> Change:
        """Remove a name: True only a directory (ENOTDIR, ENOTEMPTY), False never one (EISDIR), None either."""
        self._check_directory(directory, name, errno.EINVAL)
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
        await self.sync(directory)
        return change

    async def _remove(self, credential: Credential, directory: Node, name: bytes, flags: int) -> Change:
        chain = Chain(credential)
        victim = self._add_victim(chain, directory, name)
        before = self._add_stat(chain, directory.fd)
        chain.add(SYS_UNLINKAT, directory.fd, name, flags)
        after = self._add_stat(chain, directory.fd)
        victim.look_again(chain)
        await self._run_change(directory, chain, victim.opening)
        try:
            chain.check()
        finally:
            self._bury(directory, victim)
        return self._changed(directory, before, after)

    def _add_victim(self, chain: Chain, directory: Node, name: bytes) -> _Victim:
        """Find out which file is about to lose a name."""
        victim = _Victim()
        victim.opening = chain.add(SYS_OPENAT2, directory.fd, name, _HOW, OPEN_HOW_SIZE, keep_going=True)
        victim.naming = chain.add(
            SYS_NAME_TO_HANDLE_AT, victim.opening, b"", victim.kernel, bytearray(8), AT_EMPTY_PATH, keep_going=True
        )
        return victim

    def _bury(self, directory: Node, victim: _Victim) -> None:
        """Let go of a file that has lost its last name, so that its space is freed."""
        self.abandon(victim.opening)
        again = victim.again
        if victim.naming.result != 0 or again is None or again.result != 0:
            return
        inode = self.nodes.known_inode(self.key_of(directory.mount, *parse_handle(victim.kernel)))
        if inode is None or (raw_nlink(victim.status) and raw_type(victim.status) is not FileType.DIR):
            return
        self.forget_opens(inode)
        kind, octets = parse_handle(victim.kernel)
        for export in self.exports.exports:
            node = self.nodes.find(self.codec.encode(export.id, directory.mount.fs_id, kind, octets))
            if node is not None:
                self.nodes.forget(node)

    async def rename(
        self, credential: Credential, source: Node, name: bytes, target: Node, new_name: bytes
    ) -> tuple[Change, Change]:
        """Rename; both directories' changes. EXDEV across exports or file systems."""
        self._check_directory(source, name, errno.EINVAL)
        self._check_directory(target, new_name, errno.EINVAL)
        if source.export.id != target.export.id or source.mount is not target.mount:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        chain = Chain(credential)
        victim = self._add_victim(chain, target, new_name)
        source_before = self._add_stat(chain, source.fd)
        target_before = self._add_stat(chain, target.fd)
        chain.add(SYS_RENAMEAT2, source.fd, name, target.fd, new_name, 0)
        source_after = self._add_stat(chain, source.fd)
        target_after = self._add_stat(chain, target.fd)
        victim.look_again(chain)
        moved = self._add_victim(chain, target, new_name) if self.places is not None else None
        turns = sorted({source.key: source.inode, target.key: target.inode}.items())
        taken = []
        try:
            for _, inode in turns:
                await inode.serial.acquire()
                taken.append(inode)
            await self._run_change(source, chain, victim.opening, *([moved.opening] if moved else []))
            if chain.failed is not None and chain.failed.error == errno.ENOENT:
                await self.look(target)
            try:
                chain.check()
            finally:
                self._bury(target, victim)
                if moved is not None:
                    self._moved(moved, target, new_name)
            source_change = self._changed(source, source_before, source_after)
            same = target is source
            target_change = source_change if same else self._changed(target, target_before, target_after)
        finally:
            for inode in taken:
                inode.serial.release()
        await self.sync(target)
        if not same:
            await self.sync(source)
        return source_change, target_change

    def _moved(self, moved: _Victim, directory: Node, name: bytes) -> None:
        """Remember where a file is now."""
        self.abandon(moved.opening)
        if moved.naming.result == 0:
            mount = directory.mount
            kind, octets = parse_handle(moved.kernel)
            self.found_at(self.codec.encode(mount.export.id, mount.fs_id, kind, octets), directory, name)

    async def link(self, credential: Credential, node: Node, directory: Node, name: bytes) -> tuple[Attributes, Change]:
        """A further name. Returns the file's attributes and the directory's change."""
        self._check_directory(directory, name, errno.EEXIST)
        if node.type is FileType.DIR:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if node.export.id != directory.export.id or node.mount is not directory.mount:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        chain = Chain(credential)
        before = self._add_stat(chain, directory.fd)
        chain.add(SYS_LINKAT, self.proc_fd, b"%d" % node.fd, directory.fd, name, AT_SYMLINK_FOLLOW)
        after = self._add_stat(chain, directory.fd)
        status = self._add_stat(chain, node.fd)
        serial = directory.inode.serial
        await serial.acquire()
        try:
            await self._run_change(directory, chain)
            chain.check()
            change = self._changed(directory, before, after)
        finally:
            serial.release()
        self.found_at(node.handle, directory, name)
        if node.type is FileType.REG:
            await self.sync(node)
        await self.sync(directory)
        return attributes_of(status, node.mount, node.inode.change, changed=True), change


class _Victim:
    """A file about to lose a name: which it is, and how many names it had left afterwards."""

    __slots__ = ("again", "kernel", "naming", "opening", "status")

    def __init__(self) -> None:
        self.opening: Step
        self.naming: Step
        self.again: Step | None = None
        self.kernel = handle_buffer()
        self.status = statx_buffer()

    def look_again(self, chain: Chain) -> None:
        """Append the look at what is left."""
        self.again = chain.add(SYS_STATX, self.opening, b"", AT_EMPTY_PATH, STATX_MASK, self.status, keep_going=True)
