"""What a store in plain Python has besides names and data, and what it has not. Owns nothing.

It has no ACLs but modes, no quotas, and no processes beside the server that could hold locks. What of holes, space and
copies it cannot do is EOPNOTSUPP; copies go through the server.
"""

from __future__ import annotations

import errno
from typing import Final

from nfsd.backends.interface import Extents, Made
from nfsd.backends.keyed.calls import Calls
from nfsd.backends.keyed.files import KeyedData
from nfsd.backends.keyed.rules import READ, WRITE, check
from nfsd.backends.looks import look_of
from nfsd.backends.simple import error
from nfsd.vfs.attributes import raw_size
from nfsd.vfs.mounts import Mount
from nfsd.vfs.posix_acl import Acls, from_mode
from nfsd.vfs.records import Credential, Node, OpenFile
from nfsd.vfs.store_mounts import key_of
from nfsd.vfs.syscalls import OFFSET_MAX, XATTR_CREATE, XATTR_REPLACE
from nfsd.vfs.types import Features, FileSystemStatus, LocalLock, OwnerQuota, PathLimits, Time

_XATTR_NAME_MAX: Final = 250
_XATTR_MAX: Final = 65536


class KeyedFileSystems:
    """See :class:`nfsd.backends.interface.FileSystemStore`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def features(self, mount: Mount) -> Features:
        """What files can have."""
        return Features(xattrs=self._calls.store.xattrs, acls=False, labels=False, quotas=())

    async def status(self, node: Node) -> FileSystemStatus:
        """Space."""
        return await self._calls.run(self._calls.store.space)

    async def limits(self, node: Node, look: bytearray) -> PathLimits:
        """Names and times."""
        return PathLimits(
            name_max=255, link_max=32000, no_trunc=True, chown_restricted=True, case_insensitive=False,
            case_preserving=True, max_file_size=OFFSET_MAX, time_delta=Time(0, 1), counts_changes=False,
        )  # fmt: skip


class KeyedXattrs:
    """See :class:`nfsd.backends.interface.XattrStore`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def get_xattr(self, credential: Credential, node: Node, name: bytes) -> bytes:
        """A value."""
        return await self._calls.run(self._get, credential, key_of(node), name)

    def _get(self, credential: Credential, key: bytes, name: bytes) -> bytes:
        _check_name(name)
        check(credential, self._calls.status(key), READ)
        return self._calls.store.get_xattr(key, name)

    async def list_xattrs(self, credential: Credential, node: Node) -> list[bytes]:
        """All names."""
        return await self._calls.run(self._list, credential, key_of(node))

    def _list(self, credential: Credential, key: bytes) -> list[bytes]:
        check(credential, self._calls.status(key), READ)
        return list(self._calls.store.list_xattrs(key))

    async def set_xattr(self, credential: Credential, node: Node, name: bytes, value: bytes, flags: int) -> Made:
        """Set one."""
        return await self._calls.run(self._set, credential, key_of(node), name, value, flags)

    def _set(self, credential: Credential, key: bytes, name: bytes, value: bytes, flags: int) -> Made:
        _check_name(name)
        if len(value) > _XATTR_MAX:
            raise error(errno.E2BIG)
        before = self._calls.status(key)
        check(credential, before, WRITE)
        there = name in self._calls.store.list_xattrs(key)
        if flags & XATTR_CREATE and there:
            raise error(errno.EEXIST)
        if flags & XATTR_REPLACE and not there:
            raise error(errno.ENODATA)
        self._calls.store.set_xattr(key, name, value)
        return Made(look_of(before), self._calls.look(key))

    async def remove_xattr(self, credential: Credential, node: Node, name: bytes) -> Made:
        """Remove one."""
        return await self._calls.run(self._remove, credential, key_of(node), name)

    def _remove(self, credential: Credential, key: bytes, name: bytes) -> Made:
        _check_name(name)
        before = self._calls.status(key)
        check(credential, before, WRITE)
        self._calls.store.remove_xattr(key, name)
        return Made(look_of(before), self._calls.look(key))


def _check_name(name: bytes) -> None:
    if len(name) > _XATTR_NAME_MAX:
        raise error(errno.ENAMETOOLONG)


class KeyedAcls:
    """See :class:`nfsd.backends.interface.AclStore`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def acls(self, node: Node) -> Acls:
        """What the mode says."""
        status = await self._calls.run(self._calls.status, key_of(node))
        return Acls(from_mode(status.mode), None)

    async def label(self, node: Node) -> bytes:
        """None."""
        return b""


class KeyedSpace:
    """See :class:`nfsd.backends.interface.SpaceStore`: no holes."""

    def __init__(self, calls: Calls, data: KeyedData) -> None:
        self._calls = calls
        self._data = data

    async def allocate(self, opened: OpenFile, offset: int, length: int) -> Made:
        """Not here."""
        raise error(errno.EOPNOTSUPP if length else errno.EINVAL)

    async def deallocate(self, opened: OpenFile, offset: int, length: int) -> Made:
        """Not here."""
        raise error(errno.EOPNOTSUPP if length else errno.EINVAL)

    async def extents(self, opened: OpenFile, offset: int) -> Extents:
        """Data up to the end."""
        size = raw_size(await self._calls.run(self._calls.look, key_of(opened.node)))
        return Extents(size, offset if offset < size else None, size if offset < size else None)

    async def read(self, opened: OpenFile, offset: int, sink: memoryview) -> int:
        """Read."""
        return (await self._data.read(opened, offset, sink[:]))[0]  # which is let go of there

    async def advise(self, opened: OpenFile, offset: int, length: int, *, needed: bool) -> None:
        """Of no use here."""


class KeyedCopies:
    """See :class:`nfsd.backends.interface.CopyStore`: octets go through the server."""

    def __init__(self, calls: Calls, data: KeyedData) -> None:
        self._calls = calls
        self._data = data

    async def copy(self, source: OpenFile, at: int, target: OpenFile, to: int, count: int) -> Made:
        """Not here."""
        raise error(errno.EOPNOTSUPP)

    async def copy_through(self, source: OpenFile, at: int, target: OpenFile, to: int, count: int) -> Made:
        """Read and write."""
        data = bytearray(count)
        got, _ = await self._data.read(source, at, memoryview(data))
        if got:
            return await self._data.write(target, to, memoryview(data)[:got])
        look = await self._calls.run(self._calls.look, key_of(target.node))
        return Made(look, look)

    async def clone(self, source: OpenFile, at: int, target: OpenFile, to: int, count: int) -> Made:
        """Not here."""
        raise error(errno.EOPNOTSUPP)


class KeyedLocks:
    """See :class:`nfsd.backends.interface.LockStore`: nobody else is here to hold any."""

    async def lock(self, opened: OpenFile, start: int, length: int, *, exclusive: bool) -> None:
        """Granted."""

    async def unlock(self, opened: OpenFile, start: int, length: int) -> None:
        """Done."""

    async def test_lock(self, opened: OpenFile, start: int, length: int, *, exclusive: bool) -> LocalLock | None:
        """Nothing is in the way."""
        return None


class KeyedQuotas:
    """See :class:`nfsd.backends.interface.QuotaStore`: there are none."""

    async def quotas(
        self, mount: Mount, uid: int, gid: int, kinds: tuple[int, ...]
    ) -> list[tuple[int, OwnerQuota | None]]:
        """None."""
        return [(errno.ESRCH, None) for _ in kinds]
