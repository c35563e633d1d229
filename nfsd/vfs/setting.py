"""Attributes set: SETATTR (RFC 1813 section 3.3.2), and what a new file gets.

Owns nothing.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace

from nfsd.vfs.attributes import attributes_of, changed_between, raw_ctime, statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.changes import check_writable
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.looking import Looking
from nfsd.vfs.opens import Opening
from nfsd.vfs.posix_acl import ACCESS_NAME, DEFAULT_NAME
from nfsd.vfs.posix_acl import encode as encode_acl
from nfsd.vfs.records import Node, OpenFile
from nfsd.vfs.stable import StableStorage
from nfsd.vfs.store_mounts import store_of
from nfsd.vfs.syscalls import (
    AT_EMPTY_PATH,
    LABEL_NAME,
    OFFSET_MAX,
    STATX_MASK,
    SYS_FCHMODAT,
    SYS_FCHOWNAT,
    SYS_FTRUNCATE,
    SYS_SETXATTR,
    SYS_STATX,
    SYS_UTIMENSAT,
    UTIME_NOW,
    UTIME_OMIT,
    timespecs,
)
from nfsd.vfs.types import Change, Credential, PartialChange, SetAttributes, SetTo, Time

_NOTHING = SetAttributes()
_OMIT = (0, UTIME_OMIT)
_NOW = (0, UTIME_NOW)


def time_argument(wanted: Time | SetTo | None) -> tuple[int, int]:
    """One ``struct timespec`` for utimensat. Raises EINVAL for nanoseconds no time has."""
    if wanted is None:
        return _OMIT
    if isinstance(wanted, SetTo):
        return _NOW
    if not 0 <= wanted.nanoseconds < 1_000_000_000:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return wanted.seconds, wanted.nanoseconds


class Setting:
    """Setting attributes."""

    def __init__(self, chains: Chains, looking: Looking, opening: Opening, stable: StableStorage) -> None:
        self._chains = chains
        self._looking = looking
        self._opening = opening
        self._stable = stable

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
        check_writable(node)
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
            before = await self._looking.look(node)
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
        if writing is not None and not node.export.late_names:
            await self._stable.sync_open(node, writing, failures)
        elif changes != _NOTHING:
            await self._stable.settle_change(node, credential)
        return change

    async def touch(self, node: Node, *, access: Time | None = None, modify: Time | None = None) -> None:
        """Move mtime to now, or to ``modify``, and ctime to now, whoever may do so: data has been written that is not
        here yet."""
        await self.set_attributes(None, node, SetAttributes(atime=access, mtime=modify or SetTo.SERVER_TIME))

    async def _open_to_truncate(self, credential: Credential | None, node: Node) -> OpenFile:
        assert credential is not None, "the server itself truncates nothing"
        return await self._opening.open(credential, node, read=False, write=True)

    async def _apply(
        self,
        credential: Credential | None,
        node: Node,
        changes: SetAttributes,
        times: bytes,
        writing: OpenFile | None,
        after: bytearray,
    ) -> None:
        if (store := store_of(node)) is not None:
            after[:] = (await store.data.set_attributes(credential, node, changes)).after
            return
        chain = first = Chain(credential)
        steps: list[tuple[str, Step]] = []
        if writing is not None:
            steps.append(("size", chain.add(SYS_FTRUNCATE, writing.fd, changes.size)))
        touching = self.add_changes(chain, node.fd, b"%d" % node.fd, changes, times, steps)
        chain.add(SYS_STATX, node.fd, b"", AT_EMPTY_PATH, STATX_MASK, after)
        await self._chains.run(node.mount, chain)
        if (
            touching is not None
            and touching.error == errno.EPERM
            and not isinstance(changes.atime, Time)
            and not isinstance(changes.mtime, Time)
            and await self._looking.may_write(credential, node)
        ):
            # utimensat(2) lets whoever may write set both times to now, but not one alone; NFS clients send one alone
            # (mtime with a truncation). What the first chain did not get to is only the look at the end.
            chain = Chain()
            chain.add(SYS_UTIMENSAT, node.fd, b"", times, AT_EMPTY_PATH)
            chain.add(SYS_STATX, node.fd, b"", AT_EMPTY_PATH, STATX_MASK, after)
            await self._chains.run(node.mount, chain)
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
            note.append(("mode", chain.add(SYS_FCHMODAT, self._chains.proc_fd, link, changes.mode & 0o7777)))
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
