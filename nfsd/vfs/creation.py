"""Files, directories, links and devices made (RFC 1813 sections 3.3.8 to 3.3.11).

Owns nothing. Changes of one directory take turns, so that the attributes around each are its own. A reply waits until
file and directory are on the disk, but outside the turn, so that many creations in one directory share its fsync.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from nfsd.backends.interface import New
from nfsd.vfs import posix_acl
from nfsd.vfs.attributes import raw_ctime, raw_type, statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.changes import change_of
from nfsd.vfs.directory_changes import DirectoryChanges, add_stat, check_directory
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.known_files import KnownFiles, add_look, identity
from nfsd.vfs.looking import Looking
from nfsd.vfs.lookups import Lookups
from nfsd.vfs.open_files import OpenFiles
from nfsd.vfs.posix_acl import DEFAULT_NAME
from nfsd.vfs.records import Node, OpenFile
from nfsd.vfs.setting import Setting, time_argument
from nfsd.vfs.shares import Shares
from nfsd.vfs.stable import StableStorage
from nfsd.vfs.store_mounts import store_of
from nfsd.vfs.stored_names import StoredNames
from nfsd.vfs.syscalls import (
    AT_REMOVEDIR,
    O_PATH,
    OPEN_HOW_SIZE,
    SYS_FTRUNCATE,
    SYS_GETXATTR,
    SYS_MKDIRAT,
    SYS_MKNODAT,
    SYS_OPENAT2,
    SYS_SYMLINKAT,
    SYS_UNLINKAT,
    handle_buffer,
    open_how,
    timespecs,
)
from nfsd.vfs.types import Attributes, Change, Credential, FileType, SetAttributes, Time

_HOW = open_how(O_PATH)
CREATION_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DEFAULT_MODE = 0o600
"""For creation without a mode (EXCLUSIVE): the client's SETATTR follows."""
_DEFAULT_DIRECTORY_MODE = 0o755
_DEFAULT_ACL_SIZE = 4096
"""As long as the file systems that have ACLs let them be, or longer."""
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


class Creation:
    """CREATE, MKDIR, SYMLINK, MKNOD."""

    def __init__(
        self,
        chains: Chains,
        known: KnownFiles,
        looking: Looking,
        lookups: Lookups,
        open_files: OpenFiles,
        shares: Shares,
        setting: Setting,
        stable: StableStorage,
        directory_changes: DirectoryChanges,
        stored: StoredNames,
    ) -> None:
        self._chains = chains
        self._known = known
        self._looking = looking
        self._lookups = lookups
        self._open_files = open_files
        self._shares = shares
        self._setting = setting
        self._stable = stable
        self._directory_changes = directory_changes
        self._stored = stored

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
        check_directory(directory, name, errno.EEXIST)
        wanted = attributes
        if verifier is not None:
            atime, mtime = _verifier_times(verifier)
            wanted = replace(attributes, atime=atime, mtime=mtime)
        while True:
            try:
                node, status, change = await self._create_whole(credential, directory, name, wanted)
            except FileExistsError:
                try:
                    return await self._create_over(credential, directory, name, attributes, exclusive, verifier)
                except FileNotFoundError:
                    continue  # removed in between, by a local process: try again to make it
            await self._stable.settle_names(node, directory, credential)
            return node, self._looking.seen(node, status), change, True

    async def _create_whole(
        self, credential: Credential, directory: Node, name: bytes, attributes: SetAttributes
    ) -> tuple[Node, bytearray, Change]:
        """Make the file with its attributes. Returns it, a look at it, and the directory's change."""
        if store_of(directory) is not None:
            new = New(FileType.REG, _Umask(credential, attributes, _DEFAULT_MODE).mode)
            return await self._stored.make(credential, directory, name, new, attributes)
        node, opened, change, inherited = await self._create_new(credential, directory, name, attributes)
        async with self._unmade_on_failure(credential, directory, name, node, attributes):
            status = await self._finish_file(credential, node, opened, attributes, inherited)
        return node, status, change

    async def _create_new(
        self, credential: Credential, directory: Node, name: bytes, attributes: SetAttributes
    ) -> tuple[Node, OpenFile, Change, int | None]:
        """Make the file. Its descriptor, open for reading and writing whatever its mode, stays its creator's. The mode
        is what the file is to have after all, because of its directory's default ACL (see :class:`_Umask`)."""
        umask = _Umask(credential, attributes, _DEFAULT_MODE)
        status, kernel, same = statx_buffer(), handle_buffer(), handle_buffer()
        chain = Chain(credential)
        before = add_stat(chain, directory.fd)
        umask.ask(chain, directory)
        opening = chain.add(SYS_OPENAT2, directory.fd, name, open_how(CREATION_FLAGS, umask.mode), OPEN_HOW_SIZE)
        after = add_stat(chain, directory.fd)
        made = statx_buffer()
        add_look(chain, opening, made, same, directory.mount.naming)
        naming = chain.add(SYS_OPENAT2, directory.fd, name, _HOW, OPEN_HOW_SIZE)
        add_look(chain, naming, status, kernel, directory.mount.naming)
        serial = directory.inode.serial
        host, lane = credential.host, directory.mount.lane
        # Before the turn, which others wait for.
        share = self._shares.at_once(host, lane) or await self._shares.wait(host, lane)
        try:
            await serial.acquire()
            try:
                await self._directory_changes.run(directory, chain, opening, naming)
                if opening.result >= 0:
                    await self._unmade_for_want_of(naming, credential, directory, name, 0)
                self._chains.check(chain, opening, naming)
                change = change_of(directory, before, after)
            finally:
                serial.release()
            if identity(directory.mount, status, kernel) != identity(directory.mount, made, same):
                # A local process put another file in its place at once: let the caller see that one.
                self._chains.abandon(opening, naming)
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            node = self._known.adopt(directory.mount, naming.result, status, kernel, directory, name)
        except BaseException:
            share.give_back()
            raise
        opened = self._open_files.new(node, opening.result, 3, credential, share)
        return node, opened, change, umask.inherited()

    async def _finish_file(
        self, credential: Credential, node: Node, opened: OpenFile, attributes: SetAttributes, inherited: int | None
    ) -> bytearray:
        """Set what open(2) does not: owner, times, size. Returns the status after it, and caches the descriptor."""
        chain = Chain(credential)
        if attributes.size:
            chain.add(SYS_FTRUNCATE, opened.fd, attributes.size)
        self._add_initial(chain, credential, node, attributes, inherited)
        status = add_stat(chain, node.fd)
        await self._chains.run(node.mount, chain)
        chain.check()
        inode = node.inode
        inode.saw_ctime(raw_ctime(status))
        opened.epoch = inode.epoch
        self._open_files.remember(opened, (credential, 3, True))
        return status

    def _add_initial(
        self, chain: Chain, credential: Credential, node: Node, attributes: SetAttributes, inherited: int | None
    ) -> None:
        """Owner, ACLs and times of a new file. Only root gives files away: what others send is what they are anyway, or
        is left out, as Linux knfsd does."""
        root = credential.uid == 0
        # mkdir(2) and mknod(2) make nothing with set-user-id or set-group-id bits, and a change of owner clears them.
        again = attributes.mode is not None and (
            attributes.mode & (stat.S_ISUID | stat.S_ISGID) != 0
            or (root and (attributes.uid, attributes.gid) != (None, None))
        )
        mode = inherited if inherited is not None else _Umask(credential, attributes, 0).mode if again else None
        owner = replace(
            attributes, mode=mode, uid=attributes.uid if root else None, gid=attributes.gid if root else None
        )
        times = timespecs(time_argument(owner.atime), time_argument(owner.mtime))
        self._setting.add_changes(chain, node.fd, b"%d" % node.fd, owner, times)

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
        around = await self._looking.attributes(directory)
        node, found = await self._lookups.lookup(credential, directory, name)
        if node.type is not FileType.REG:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if exclusive:
            # A retransmission of the call that made the file, which the replay cache no longer knows.
            if verifier is None or (found.atime, found.mtime) != _verifier_times(verifier) or found.size:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            await self._stable.settle_change(node, credential)
            await self._stable.settle_change(directory, credential)
        elif attributes.size is not None:
            change = await self._setting.set_attributes(credential, node, SetAttributes(size=attributes.size))
            found = change.after
        return node, found, Change(around, around), False

    async def mkdir(
        self, credential: Credential, directory: Node, name: bytes, attributes: SetAttributes
    ) -> tuple[Node, Attributes, Change]:
        """Create a directory."""
        umask = _Umask(credential, attributes, _DEFAULT_DIRECTORY_MODE)

        def make(chain: Chain) -> None:
            umask.ask(chain, directory)
            chain.add(SYS_MKDIRAT, directory.fd, name, umask.mode)

        return await self._make(credential, directory, name, attributes, New(FileType.DIR, umask.mode), make, umask)

    async def symlink(
        self, credential: Credential, directory: Node, name: bytes, target: bytes, attributes: SetAttributes
    ) -> tuple[Node, Attributes, Change]:
        """Create a symbolic link."""
        if not target or b"\0" in target:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        def make(chain: Chain) -> None:
            chain.add(SYS_SYMLINKAT, target, directory.fd, name)

        # Links have no mode of their own on Linux.
        plain = replace(attributes, mode=None, size=None, access_acl=None, default_acl=None)
        return await self._make(credential, directory, name, plain, New(FileType.LNK, 0o777, target), make)

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
        umask = _Umask(credential, attributes, _DEFAULT_MODE)
        device = os.makedev(*rdev) if kind in (stat.S_IFBLK, stat.S_IFCHR) else 0

        def make(chain: Chain) -> None:
            umask.ask(chain, directory)
            chain.add(SYS_MKNODAT, directory.fd, name, kind | umask.mode, device)

        new = New(FileType(type_), umask.mode, rdev=rdev)
        return await self._make(credential, directory, name, attributes, new, make, umask)

    async def _make(
        self,
        credential: Credential,
        directory: Node,
        name: bytes,
        attributes: SetAttributes,
        new: New,
        make: Callable[[Chain], None],
        umask: _Umask | None = None,
    ) -> tuple[Node, Attributes, Change]:
        """Create what open(2) does not create: on a file system of the kernel by what ``make`` appends."""
        check_directory(directory, name, errno.EEXIST)
        if store_of(directory) is not None:
            node, status, change = await self._stored.make(credential, directory, name, new, attributes)
        else:
            node, status, change = await self._make_by(credential, directory, name, attributes, new.type, make, umask)
        changed = (attributes.atime, attributes.mtime) != (None, None) or (
            credential.uid == 0 and (attributes.uid, attributes.gid) != (None, None)
        )
        if new.type is FileType.DIR or changed or not directory.mount.links_with_name:
            await self._stable.settle_change(node, credential)
        await self._stable.settle_change(directory, credential)
        return node, self._looking.seen(node, status), change

    async def _make_by(
        self,
        credential: Credential,
        directory: Node,
        name: bytes,
        attributes: SetAttributes,
        type_: FileType,
        make: Callable[[Chain], None],
        umask: _Umask | None,
    ) -> tuple[Node, bytearray, Change]:
        status, kernel = statx_buffer(), handle_buffer()
        chain = Chain(credential)
        before = add_stat(chain, directory.fd)
        make(chain)
        after = add_stat(chain, directory.fd)
        opening = chain.add(SYS_OPENAT2, directory.fd, name, _HOW, OPEN_HOW_SIZE)
        add_look(chain, opening, status, kernel, directory.mount.naming)
        serial = directory.inode.serial
        await serial.acquire()
        try:
            await self._directory_changes.run(directory, chain, opening)
            await self._unmade_for_want_of(
                opening, credential, directory, name, AT_REMOVEDIR if type_ is FileType.DIR else 0
            )
            self._chains.check(chain, opening)
            change = change_of(directory, before, after)
        finally:
            serial.release()
        node = self._known.adopt(directory.mount, opening.result, status, kernel, directory, name)
        if raw_type(status) is type_:
            # Otherwise a local process has replaced it already, and its attributes are that process's business.
            chain = Chain(credential)
            self._add_initial(chain, credential, node, attributes, umask.inherited() if umask is not None else None)
            status = add_stat(chain, node.fd)
            async with self._unmade_on_failure(credential, directory, name, node, attributes):
                await self._chains.run(node.mount, chain)
                chain.check()
        return node, status, change

    @contextlib.asynccontextmanager
    async def _unmade_on_failure(
        self, credential: Credential, directory: Node, name: bytes, node: Node, attributes: SetAttributes
    ) -> AsyncIterator[None]:
        """What was made with an ACL has it, or is not there."""
        try:
            yield
        except OSError:
            if attributes.access_acl is not None:
                with contextlib.suppress(OSError):
                    await self._unmake(credential, directory, name, node)
            raise

    async def _unmade_for_want_of(
        self, found: Step, credential: Credential, directory: Node, name: bytes, flags: int
    ) -> None:
        """What has been made but cannot be ``found``, for want of descriptors, is not there when it is made again."""
        if found.error in (errno.EMFILE, errno.ENFILE):
            chain = Chain(credential)
            chain.add(SYS_UNLINKAT, directory.fd, name, flags)
            await self._chains.run(directory.mount, chain)

    async def _unmake(self, credential: Credential, directory: Node, name: bytes, node: Node) -> None:
        """Remove what has been made. In one turn with the look whether the name is still its: another client may have
        removed it meanwhile, and made something else of that name."""
        chain = Chain()
        before = add_stat(chain, directory.fd)
        chain.add(SYS_UNLINKAT, directory.fd, name, AT_REMOVEDIR if node.type is FileType.DIR else 0)
        after = add_stat(chain, directory.fd)
        serial = directory.inode.serial
        await serial.acquire()
        try:
            found, _ = await self._lookups.lookup(credential, directory, name)
            if found is not node:
                return
            await self._directory_changes.run(directory, chain)
            chain.check()
            change_of(directory, before, after)
        finally:
            serial.release()
        self._known.nodes.forget(node)


class _Umask:
    """The mode of something new for a caller that has a umask, or that comes with one (RFC 8275 section 3): as with
    umask(2), a default ACL of the directory takes the umask's place. Whether there is one is asked in the chain that
    creates; what it takes back is then given."""

    __slots__ = ("_buffer", "_mask", "_step", "_wanted", "mode")

    def __init__(self, credential: Credential, attributes: SetAttributes, default: int) -> None:
        self._mask = attributes.umask | credential.umask
        self._wanted = default if attributes.mode is None else attributes.mode & 0o7777
        self._step: Step | None = None
        self._buffer = bytearray()
        self.mode = self._wanted & ~self._mask
        """To create with."""

    def ask(self, chain: Chain, directory: Node) -> None:
        """Append the question, where the answer matters."""
        if self._mask & self._wanted:
            buffer = self._buffer = bytearray(_DEFAULT_ACL_SIZE)
            path = b"/proc/self/fd/%d" % directory.fd
            self._step = chain.add(SYS_GETXATTR, path, DEFAULT_NAME, buffer, len(buffer), keep_going=True)

    def inherited(self) -> int | None:
        """The mode to set after the creation; None: it has it."""
        if self._step is None or self._step.result <= 0:
            return None
        try:
            acl = posix_acl.decode(bytes(memoryview(self._buffer)[: self._step.result]))
            return self._wanted & (0o7000 | posix_acl.mode_of(acl))
        except (ValueError, KeyError):
            return None
