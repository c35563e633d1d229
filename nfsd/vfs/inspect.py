"""Attributes set, permissions asked, links read, space told: what concerns one file but not its data or its names.

Owns nothing. SETATTR is RFC 1813 section 3.3.2, ACCESS 3.3.4, READLINK 3.3.5, FSSTAT to PATHCONF 3.3.18 to 3.3.20.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace

from nfsd.vfs.attributes import attributes_of, changed_between, raw_ctime, raw_uid, statx_buffer
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.opens import OpenOperations
from nfsd.vfs.posix_acl import ACCESS_NAME, DEFAULT_NAME
from nfsd.vfs.posix_acl import encode as encode_acl
from nfsd.vfs.records import Node, OpenFile
from nfsd.vfs.syscalls import (
    ACCESS_EXECUTE,
    ACCESS_READ,
    ACCESS_WRITE,
    AT_EACCESS,
    AT_EMPTY_PATH,
    BTRFS_MAGIC,
    EXFAT_MAGIC,
    EXT_MAGIC,
    F2FS_MAGIC,
    FS_CASEFOLD_FL,
    FS_IOC_GETFLAGS,
    MSDOS_MAGIC,
    OFFSET_MAX,
    STATX_MASK,
    SYS_CLOSE,
    SYS_FACCESSAT2,
    SYS_FCHMODAT,
    SYS_FCHOWNAT,
    SYS_FSTATFS,
    SYS_FTRUNCATE,
    SYS_IOCTL,
    SYS_OPENAT,
    SYS_READLINKAT,
    SYS_SETXATTR,
    SYS_STATX,
    SYS_UTIMENSAT,
    TMPFS_MAGIC,
    UTIME_NOW,
    UTIME_OMIT,
    XFS_MAGIC,
    parse_statfs,
    statfs_buffer,
    timespecs,
)
from nfsd.vfs.types import (
    Change,
    Credential,
    FileSystemStatus,
    FileType,
    PartialChange,
    PathLimits,
    SetAttributes,
    SetTo,
    Time,
)

READ, LOOKUP, MODIFY, EXTEND, DELETE, EXECUTE = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
"""ACCESS3_* (RFC 1813 section 3.3.4)."""
ACCESSES_KEPT = 64
_LINK_MAX = 4096
_NOTHING = SetAttributes()
LABEL_NAME = b"security.selinux"
_OMIT = (0, UTIME_OMIT)
_NOW = (0, UTIME_NOW)

_TIME_DELTAS = {MSDOS_MAGIC: Time(2, 0), EXFAT_MAGIC: Time(0, 10_000_000)}
_FOLDING_DIRECTORIES = frozenset({EXT_MAGIC, F2FS_MAGIC, TMPFS_MAGIC})
_FOLDING = frozenset({MSDOS_MAGIC, EXFAT_MAGIC})
_LINKS = {EXT_MAGIC: 65000, BTRFS_MAGIC: 65535, XFS_MAGIC: (1 << 31) - 1, MSDOS_MAGIC: 1, EXFAT_MAGIC: 1}
_LINKS_ELSEWHERE = 32000
_CLONING = frozenset({BTRFS_MAGIC, XFS_MAGIC})
_EXT_BLOCKS = (1 << 32) - 1


def time_argument(wanted: Time | SetTo | None) -> tuple[int, int]:
    """One ``struct timespec`` for utimensat. Raises EINVAL for nanoseconds no time has."""
    if wanted is None:
        return _OMIT
    if isinstance(wanted, SetTo):
        return _NOW
    if not 0 <= wanted.nanoseconds < 1_000_000_000:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return wanted.seconds, wanted.nanoseconds


class InspectOperations(OpenOperations):
    """SETATTR, ACCESS, READLINK, FSSTAT, PATHCONF; and who may COMMIT."""

    # -- setting attributes --------------------------------------------------------------------------------------
    async def set_attributes(
        self,
        credential: Credential | None,
        node: Node,
        changes: SetAttributes,
        *,
        guard_ctime: tuple[int, int] | None = None,
        opened: OpenFile | None = None,
    ) -> Change:
        """Set attributes, size first, durably (``credential`` None: as the server, and no size). With ``guard_ctime``
        unequal to the file's: OSError(EAGAIN) and nothing done. A size set through ``opened`` (or by the owner) needs
        no write permission in the mode. A failure after some of them is PartialChange."""
        self.check_writable(node)
        times = timespecs(time_argument(changes.atime), time_argument(changes.mtime))
        writing: OpenFile | None = None
        if changes.size is not None:
            if changes.size > OFFSET_MAX:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            usable = opened is not None and opened.writable and opened.node.inode is node.inode
            writing = (
                opened.retain() if opened is not None and usable else await self._open_to_truncate(credential, node)
            )
        inode = node.inode
        await inode.serial.acquire()
        failures = inode.sync.failures
        try:
            before = await self.look(node)
            if guard_ctime is not None and divmod(raw_ctime(before), 1_000_000_000) != tuple(guard_ctime):
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            old = attributes_of(before, node.mount, inode.change)
            after = statx_buffer()
            try:
                await self._apply(credential, node, changes, times, writing, after)
            except PartialChange:
                inode.permissions_changed()
                raise
            change = Change(old, attributes_of(after, node.mount, inode.change, changed=True))
            if (changes.mode, changes.uid, changes.gid, changes.access_acl) == (None, None, None, None):
                changed_between(inode, before, after)
            else:
                inode.saw_ctime(raw_ctime(after))
                inode.permissions_changed()
        finally:
            inode.serial.release()
            if writing is not None:
                writing.release()
        if writing is not None and not node.export.asynchronous:
            await self.sync_open(node, writing, failures)
        elif changes != _NOTHING:
            await self.sync(node, credential)
        return change

    async def touch(self, node: Node) -> None:
        """Move mtime and ctime to now, whoever may do so: data has been written that is not here yet."""
        await self.set_attributes(None, node, SetAttributes(mtime=SetTo.SERVER_TIME))

    def check_writable(self, node: Node) -> None:
        """EROFS on a read-only export."""
        if node.export.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    async def _open_to_truncate(self, credential: Credential | None, node: Node) -> OpenFile:
        assert credential is not None, "the server itself truncates nothing"
        return await self.open(credential, node, read=False, write=True)

    async def _apply(
        self,
        credential: Credential | None,
        node: Node,
        changes: SetAttributes,
        times: bytes,
        writing: OpenFile | None,
        after: bytearray,
    ) -> None:
        chain = first = Chain(credential)
        steps: list[tuple[str, Step]] = []
        if writing is not None:
            steps.append(("size", chain.add(SYS_FTRUNCATE, writing.fd, changes.size)))
        touching = self.add_changes(chain, node.fd, b"%d" % node.fd, changes, times, steps)
        chain.add(SYS_STATX, node.fd, b"", AT_EMPTY_PATH, STATX_MASK, after)
        await self.run(node.mount, chain)
        if (
            touching is not None
            and touching.error == errno.EPERM
            and not isinstance(changes.atime, Time)
            and not isinstance(changes.mtime, Time)
            and await self.may_write(credential, node)
        ):
            # utimensat(2) lets whoever may write set both times to now, but not one alone; NFS clients send one alone
            # (mtime with a truncation). What the first chain did not get to is only the look at the end.
            chain = Chain()
            chain.add(SYS_UTIMENSAT, node.fd, b"", times, AT_EMPTY_PATH)
            chain.add(SYS_STATX, node.fd, b"", AT_EMPTY_PATH, STATX_MASK, after)
            await self.run(node.mount, chain)
        if chain.failed is not None:
            names = [name for name, step in steps if step.result >= 0]
            if names:
                failed = chain.failed.error or (first.failed.error if first.failed is not None else errno.EIO)
                made = replace(_NOTHING, **{name: getattr(changes, name) for name in names})
                raise PartialChange(failed, os.strerror(failed), made)
        chain.check()

    def add_changes(
        self,
        chain: Chain,
        descriptor: int | Step,
        link: bytes,
        changes: SetAttributes,
        times: bytes,
        steps: list[tuple[str, Step]] | None = None,
    ) -> Step | None:
        """Append the setting of owner, mode, ACLs and times of a descriptor, ``link`` being its name in /proc/self/fd.
        Returns the step that sets times; ``steps`` gets the fields of ``changes`` with the step that sets each. The
        owner comes first: changing it clears set-user-id bits that the mode may set again. Then the mode, then the ACL
        (RFC 8881 section 6.4.1.3)."""
        note: list[tuple[str, Step]] = [] if steps is None else steps
        if changes.uid is not None or changes.gid is not None:
            keep = 0xFFFFFFFF
            uid = keep if changes.uid is None else changes.uid
            gid = keep if changes.gid is None else changes.gid
            if keep in (changes.uid, changes.gid):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            owning = chain.add(SYS_FCHOWNAT, descriptor, b"", uid, gid, AT_EMPTY_PATH)
            note += [("uid", owning), ("gid", owning)]
        if changes.mode is not None:
            note.append(("mode", chain.add(SYS_FCHMODAT, self.proc_fd, link, changes.mode & 0o7777)))
        for field, name, acl in (
            ("access_acl", ACCESS_NAME, changes.access_acl),
            ("default_acl", DEFAULT_NAME, changes.default_acl),
        ):
            if acl is not None:
                value = encode_acl(acl)
                setting = chain.add(SYS_SETXATTR, b"/proc/self/fd/" + link, name, value, len(value), 0)
                note.append((field, setting))
        if changes.label is not None:
            label = changes.label
            setting = chain.add(SYS_SETXATTR, b"/proc/self/fd/" + link, LABEL_NAME, label, len(label), 0)
            note.append(("label", setting))
        if changes.atime is not None or changes.mtime is not None:
            touching = chain.add(SYS_UTIMENSAT, descriptor, b"", times, AT_EMPTY_PATH)
            note += [("atime", touching), ("mtime", touching)]
            return touching
        return None

    # -- permissions ---------------------------------------------------------------------------------------------
    async def access(self, credential: Credential, node: Node) -> int:
        """What the kernel would let this caller do: bits of ACCESS3_* (the same as ACCESS4_*), all six computed.

        DELETE of a file is a matter of its directory, which is not known: the bit is for directories' entries only.
        """
        await self.look(node)
        inode = node.inode
        known = inode.accesses.get(credential)
        if known is not None and known[0] == inode.epoch:
            return known[1] & self._export_mask(node)
        epoch = inode.epoch
        chain = Chain(credential)
        read, write, execute = (
            chain.add(SYS_FACCESSAT2, node.fd, b"", mode, AT_EMPTY_PATH | AT_EACCESS, keep_going=True)
            for mode in (ACCESS_READ, ACCESS_WRITE, ACCESS_EXECUTE)
        )
        await self.run(node.mount, chain)
        for step in (read, write, execute):
            if step.error not in (0, errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY):
                raise OSError(step.error, os.strerror(step.error))
        bits = READ if read.error == 0 else 0
        may_write, may_execute = write.error == 0, execute.error == 0
        if node.type is FileType.DIR:
            if may_execute:
                bits |= LOOKUP
                if may_write:
                    bits |= MODIFY | EXTEND | DELETE
        else:
            if may_write:
                bits |= MODIFY | EXTEND
            if may_execute:
                bits |= EXECUTE
        if len(inode.accesses) >= ACCESSES_KEPT:
            inode.accesses.clear()
        inode.accesses[credential] = (epoch, bits)
        return bits & self._export_mask(node)

    def _export_mask(self, node: Node) -> int:
        return READ | LOOKUP | EXECUTE if node.export.read_only else 0x3F

    def directory_of(self, root: Node) -> bytes:
        """Where an export's root is, as the kernel names it: without symbolic links."""
        return os.readlink(b"/proc/self/fd/%d" % root.fd)

    async def may_commit(self, credential: Credential, node: Node) -> bool:
        """Whether this caller may have the file synchronised: whoever may write it, since to keep the disk busy with
        somebody else's data is no reader's business. Nothing is opened, which could break a lease. Raises ESTALE."""
        if credential.uid == raw_uid(await self.look(node)):
            return True
        for access in (2, 3):
            for helped in (False, True):
                if self.cached_open(node.inode, (credential, access, helped)) is not None:
                    return True
        return await self.may_write(credential, node)

    # -- links and file systems ----------------------------------------------------------------------------------
    async def readlink(self, credential: Credential, node: Node) -> bytes:
        """The link's text. EINVAL when it is no link."""
        if node.type is not FileType.LNK:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        buffer = bytearray(_LINK_MAX)
        chain = Chain(credential)
        step = chain.add(SYS_READLINKAT, node.fd, b"", buffer, _LINK_MAX)
        await self.run(node.mount, chain)
        chain.check()
        return bytes(buffer[: step.result])

    async def _statfs(self, node: Node) -> bytearray:
        buffer = statfs_buffer()
        chain = Chain()
        chain.add(SYS_FSTATFS, node.fd, buffer)
        await self.run(node.mount, chain)
        chain.check()
        return buffer

    async def status(self, node: Node) -> FileSystemStatus:
        """Space of the file system the node is on."""
        _, _, blocks, free, available, files, ffree, _, _, fragment = parse_statfs(await self._statfs(node))
        return FileSystemStatus(blocks * fragment, free * fragment, available * fragment, files, ffree, ffree)

    async def limits(self, node: Node) -> PathLimits:
        """What names and times can be on the file system the node is on."""
        kind, block, _, _, _, _, _, _, name_max, _ = parse_statfs(await self._statfs(node))
        delta = _TIME_DELTAS.get(kind, Time(0, 1))
        if kind == EXT_MAGIC:
            seen = attributes_of(await self.look(node), node.mount, node.inode.change)
            if seen.birthtime is None:
                delta = Time(1, 0)  # small inodes have no room for births, nor for fractions of a second
        return PathLimits(
            name_max=name_max or 255,
            link_max=_LINKS.get(kind, _LINKS_ELSEWHERE),
            no_trunc=True,
            chown_restricted=True,
            case_insensitive=kind in _FOLDING or await self._folds_case(node, kind),
            case_preserving=True,
            max_file_size={EXT_MAGIC: _EXT_BLOCKS * block, MSDOS_MAGIC: 0xFFFFFFFF}.get(kind, OFFSET_MAX),
            time_delta=delta,
            clone_block=block if kind in _CLONING else 0,
            counts_changes=node.mount.fine,
        )

    async def _folds_case(self, node: Node, kind: int) -> bool:
        """Whether names in this directory may be spelt in either case (chattr +F)."""
        if kind not in _FOLDING_DIRECTORIES or node.type is not FileType.DIR:
            return False
        flags = bytearray(8)
        chain = Chain()
        opened = chain.add(SYS_OPENAT, self.proc_fd, b"%d" % node.fd, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        asked = chain.add(SYS_IOCTL, opened, FS_IOC_GETFLAGS, flags, keep_going=True)
        chain.add(SYS_CLOSE, opened, always=True)
        await self.run(node.mount, chain)
        return asked.result == 0 and bool(int.from_bytes(flags[:4], "little") & FS_CASEFOLD_FL)
