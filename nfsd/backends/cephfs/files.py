"""Files of CephFS: looks, permissions, data, attributes, locks.

Owns which files are open for writing. Ceph checks each call as its caller. What callers are told beforehand (ACCESS),
and what NFS lets an owner do despite the mode, is worked out here from mode and ACL, as Ceph does it.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import operator
import os
import stat
import struct
import time
from typing import TYPE_CHECKING, Final

from nfsd.backends.cephfs.client import File
from nfsd.backends.cephfs.keys import check_changeable, is_in_snapshot, is_live
from nfsd.backends.interface import Made
from nfsd.backends.keyed.rules import in_group, is_root
from nfsd.vfs import posix_acl
from nfsd.vfs.posix_acl import ACCESS_NAME, DEFAULT_NAME, AclTag, PosixAcl
from nfsd.vfs.records import Credential, Node, OpenFile
from nfsd.vfs.store_mounts import key_of
from nfsd.vfs.types import LocalLock, PartialChange, SetAttributes, SetTo, Time

if TYPE_CHECKING:
    from nfsd.backends.cephfs.store import Calls

_OWNER: Final = struct.Struct("=16xIIIH")
"""Of a ``struct statx``: links, owner, group, mode."""
_OURS: Final = 1
"""Whose locks the server's are: it tells its clients apart itself."""
_NO_ACL: Final = (errno.ENODATA, errno.EOPNOTSUPP)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class CephFiles:
    """See :class:`nfsd.backends.interface.FileStore`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def look(self, node: Node) -> bytearray:
        """A look at a file now."""
        return await self._calls.run(self._calls.client.look, key_of(node))

    async def permissions(self, credential: Credential | None, node: Node, asked: int) -> int:
        """What a caller may do."""
        return asked & await self._calls.run(granted, self._calls, credential, key_of(node))

    async def readlink(self, credential: Credential, node: Node) -> bytes:
        """A symbolic link's text."""
        return await self._calls.run(self._calls.client.readlink, credential, key_of(node))

    async def in_snapshot(self, node: Node) -> bool:
        """The key tells."""
        return is_in_snapshot(key_of(node))

    def in_snapshot_at_once(self, node: Node) -> bool | None:
        """The same."""
        return is_in_snapshot(key_of(node))


def granted(calls: Calls, credential: Credential | None, key: bytes) -> int:
    """Which of R_OK, W_OK and X_OK a caller has; on a thread."""
    every = os.R_OK | os.W_OK | os.X_OK
    _, uid, gid, mode = _OWNER.unpack_from(calls.client.look(key))
    if not is_live(key):
        every &= ~os.W_OK
    if credential is None or credential.uid == 0:
        return every if stat.S_ISDIR(mode) or mode & 0o111 else every & ~os.X_OK
    if credential.uid == uid:
        mine: int = every & mode >> 6
        return mine
    acl = get_acl(calls, key, ACCESS_NAME) if mode & stat.S_IRWXG and not stat.S_ISLNK(mode) else None
    return every & _of_others(acl or posix_acl.from_mode(mode), credential, gid)


def _of_others(acl: PosixAcl, credential: Credential, gid: int) -> int:
    """What an ACL grants who is not the owner (acl(5): the access check algorithm)."""
    mask = next((entry.permissions for entry in acl if entry.tag == AclTag.MASK), 7)
    for entry in acl:
        if entry.tag == AclTag.USER and entry.id == credential.uid:
            return entry.permissions & mask
    groups = [
        entry.permissions & mask
        for entry in acl
        if (entry.tag == AclTag.GROUP_OBJ and in_group(credential, gid))
        or (entry.tag == AclTag.GROUP and in_group(credential, entry.id))
    ]
    if groups:
        found: int = functools.reduce(operator.or_, groups)  # any of them that grants what is asked for decides
        return found
    return next(entry.permissions for entry in acl if entry.tag == AclTag.OTHER)


def get_acl(calls: Calls, key: bytes, name: bytes) -> PosixAcl | None:
    """An ACL that a file has besides its mode; on a thread."""
    try:
        return posix_acl.decode(calls.client.get_xattr(None, key, name)) or None
    except OSError as failure:
        if failure.errno in _NO_ACL:
            return None
        raise
    except ValueError:
        raise _error(errno.EIO) from None


class CephData:
    """See :class:`nfsd.backends.interface.DataStore`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._writing: dict[bytes, set[File]] = {}
        """Files open for writing: each is told for itself what has been lost."""

    async def open(self, credential: Credential | None, node: Node, access: int) -> File:
        """A caller is about to use a file."""
        key = key_of(node)
        if access & 2:
            check_changeable(key)
        found: list[File] = []

        def make() -> None:
            found.append(self._calls.client.open(credential, key, access))

        try:
            await self._calls.run(make)
        except BaseException:
            for file in found:  # nobody waits for it any more
                self._calls.tell(file.close)
            raise
        if access & 2:
            self._writing.setdefault(key, set()).add(found[0])
        return found[0]

    def closed(self, node: Node, stored: object) -> None:
        """It does not use it any more."""
        assert isinstance(stored, File)
        writing = self._writing.get(key_of(node))
        if writing is not None:
            writing.discard(stored)
            if not writing:
                del self._writing[key_of(node)]
        self._calls.tell(stored.close)

    async def read(self, opened: OpenFile, offset: int, sink: memoryview) -> tuple[int, bytearray]:
        """Read, then look."""
        return await self._calls.run(self._read, opened.stored, offset, sink)

    def _read(self, file: File, offset: int, sink: memoryview) -> tuple[int, bytearray]:
        with sink:
            return self._calls.client.read(file, offset, sink)

    async def write(self, opened: OpenFile, offset: int, data: memoryview) -> Made:
        """Write from where the data is: the library copies it, or has sent it when it returns."""
        return await self._calls.run(self._write, opened.stored, is_root(opened.credential), offset, data)

    def _write(self, file: File, as_root: bool, offset: int, data: memoryview) -> Made:
        with data:
            return Made(*self._calls.client.write(file, offset, data, as_root))

    async def sync(self, node: Node) -> None:
        """The cluster has it: data are on the OSDs, names in the metadata server's journal."""
        key = key_of(node)
        if is_live(key):
            await self._calls.run(self._calls.client.sync, key, list(self._writing.get(key, ())))

    async def punch(self, opened: OpenFile, offset: int, length: int) -> Made:
        """Make a hole."""
        made = await self._calls.run(self._calls.client.punch, opened.stored, key_of(opened.node), offset, length)
        return Made(*made)

    async def set_attributes(self, credential: Credential | None, node: Node, changes: SetAttributes) -> Made:
        """Set attributes."""
        if changes.label is not None:
            raise _error(errno.EOPNOTSUPP)
        key = key_of(node)
        check_changeable(key)
        return await self._calls.run(self._set, key, credential, changes)

    def _set(self, key: bytes, credential: Credential | None, changes: SetAttributes) -> Made:
        client = self._calls.client
        before = client.look(key)
        mode, times = changes.mode, (_time(changes.atime), _time(changes.mtime))
        others = (changes.uid, changes.gid)
        if changes.size is not None and not is_root(credential):
            # Whether the caller may set the size is known already. Ceph would ask the mode again.
            if (mode, *others, *times) != (None,) * 5:
                client.set(credential, key, mode, *others, None, *times)
            size_mode = _without_set_ids(client.look(key)) if mode is None else None
            client.set(None, key, size_mode, None, None, changes.size, None, None)
        elif (mode, *others, changes.size, *times) != (None,) * 6:
            if not is_root(credential) and mode is None and others != (None, None):
                mode = _without_set_ids(before)
            client.set(credential, key, mode, *others, changes.size, *times)
        self._set_acls(key, credential, changes)
        return Made(before, client.look(key))

    def _set_acls(self, key: bytes, credential: Credential | None, changes: SetAttributes) -> None:
        """Set the ACLs, behind the rest (RFC 8881 section 6.4.1.3)."""
        done = SetAttributes(changes.mode, changes.uid, changes.gid, changes.size, changes.atime, changes.mtime)
        try:
            for name, acl in ((ACCESS_NAME, changes.access_acl), (DEFAULT_NAME, changes.default_acl)):
                if acl:
                    self._calls.client.set_xattr(credential, key, name, posix_acl.encode(acl), 0)
                elif acl is not None:
                    self._remove_acl(key, credential, name)
        except OSError as failure:
            if done == SetAttributes():
                raise
            raise PartialChange(failure.errno or errno.EIO, failure.strerror or "", done) from failure

    def _remove_acl(self, key: bytes, credential: Credential | None, name: bytes) -> None:
        try:
            self._calls.client.remove_xattr(credential, key, name)
        except OSError as failure:
            if failure.errno not in _NO_ACL:
                raise


def _time(wanted: Time | SetTo | None) -> tuple[int, int, bool] | None:
    """Seconds, nanoseconds, and whether it is another time than now."""
    if wanted is None:
        return None
    if isinstance(wanted, SetTo):
        return *divmod(time.time_ns(), 1_000_000_000), False
    return wanted.seconds, wanted.nanoseconds, True


def _without_set_ids(look: bytearray) -> int | None:
    """The mode of a file that somebody changes who is not root; None: it stays."""
    _, _, _, mode = _OWNER.unpack_from(look)
    if not stat.S_ISREG(mode) or not mode & (stat.S_ISUID | stat.S_ISGID):
        return None
    group_too = stat.S_ISGID if mode & stat.S_IXGRP else 0
    kept: int = stat.S_IMODE(mode) & ~(stat.S_ISUID | group_too)
    return None if kept == stat.S_IMODE(mode) else kept


class CephLocks:
    """See :class:`nfsd.backends.interface.LockStore`: towards other clients of the cluster."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def lock(self, opened: OpenFile, start: int, length: int, *, exclusive: bool) -> None:
        """Hold a range."""
        kind = fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK
        await self._calls.run(self._calls.client.lock, opened.stored, kind, start, length, _OURS)

    async def unlock(self, opened: OpenFile, start: int, length: int) -> None:
        """Give it up."""
        await self._calls.run(self._calls.client.lock, opened.stored, fcntl.F_UNLCK, start, length, _OURS)

    async def test_lock(self, opened: OpenFile, start: int, length: int, *, exclusive: bool) -> LocalLock | None:
        """What is in the way."""
        kind = fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK
        found = await self._calls.run(self._calls.client.locked, opened.stored, kind, start, length, _OURS)
        if found is None:
            return None
        its_kind, its_start, its_length, pid = found
        return LocalLock(its_kind == fcntl.F_WRLCK, its_start, its_length, pid)
