"""What CephFS has besides names and data, and what it has not. Owns nothing.

It has ACLs, extended attributes and holes. It has no security labels for NFS clients, cannot reserve space, and clones
nothing; copies go through the server. Its quotas are of directories, not of users: what is left of one shows as space.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from nfsd.backends.cephfs.files import CephData, get_acl, granted
from nfsd.backends.cephfs.keys import check_changeable
from nfsd.backends.interface import Extents, Made
from nfsd.vfs.attributes import raw_size, raw_type
from nfsd.vfs.mounts import Mount
from nfsd.vfs.posix_acl import ACCESS_NAME, DEFAULT_NAME, Acls, from_mode
from nfsd.vfs.records import Credential, Node, OpenFile
from nfsd.vfs.store_mounts import key_of
from nfsd.vfs.syscalls import OFFSET_MAX
from nfsd.vfs.types import Features, FileSystemStatus, FileType, PathLimits, Time

if TYPE_CHECKING:
    from nfsd.backends.cephfs.store import Calls

_PREFIX: Final = b"user."
_XATTR_NAME_MAX: Final = 255 - len(_PREFIX)
_XATTR_MAX: Final = 65536
_LINKS: Final = 0x7FFFFFFF
"""There is no bound."""
_FILES: Final = 1 << 40
"""Files that there may be further ones of: there is no bound either."""


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class CephFileSystems:
    """See :class:`nfsd.backends.interface.FileSystemStore`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def features(self, mount: Mount) -> Features:
        """What files can have."""
        return Features(xattrs=True, acls=True, labels=False, quotas=())

    async def status(self, node: Node) -> FileSystemStatus:
        """Space: of the quota that the root directory is under, if there is one, else of the pool."""
        total, free, available, files, _ = await self._calls.run(self._calls.client.space, key_of(node))
        return FileSystemStatus(total, free, available, files + _FILES, _FILES, _FILES)

    async def limits(self, node: Node, look: bytearray) -> PathLimits:
        """Names and times."""
        return PathLimits(
            name_max=255, link_max=_LINKS, no_trunc=True, chown_restricted=True, case_insensitive=False,
            case_preserving=True, max_file_size=OFFSET_MAX, time_delta=Time(0, 1), counts_changes=True,
        )  # fmt: skip


class CephXattrs:
    """See :class:`nfsd.backends.interface.XattrStore`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def get_xattr(self, credential: Credential, node: Node, name: bytes) -> bytes:
        """A value."""
        _check_name(name)
        return await self._calls.run(self._calls.client.get_xattr, credential, key_of(node), _PREFIX + name)

    async def list_xattrs(self, credential: Credential, node: Node) -> list[bytes]:
        """All names."""
        return await self._calls.run(self._list, credential, key_of(node))

    def _list(self, credential: Credential, key: bytes) -> list[bytes]:
        if not granted(self._calls, credential, key) & os.R_OK:
            raise _error(errno.EACCES)
        names = self._calls.client.list_xattrs(credential, key)
        return [name[len(_PREFIX) :] for name in names if name.startswith(_PREFIX)]

    async def set_xattr(self, credential: Credential, node: Node, name: bytes, value: bytes, flags: int) -> Made:
        """Set one."""
        _check_name(name)
        check_changeable(key_of(node))
        if len(value) > _XATTR_MAX:
            raise _error(errno.E2BIG)
        return await self._calls.run(self._set, credential, key_of(node), _PREFIX + name, value, flags)

    def _set(self, credential: Credential, key: bytes, name: bytes, value: bytes, flags: int) -> Made:
        before = self._calls.client.look(key)
        self._calls.client.set_xattr(credential, key, name, value, flags)
        return Made(before, self._calls.client.look(key))

    async def remove_xattr(self, credential: Credential, node: Node, name: bytes) -> Made:
        """Remove one."""
        _check_name(name)
        check_changeable(key_of(node))
        return await self._calls.run(self._remove, credential, key_of(node), _PREFIX + name)

    def _remove(self, credential: Credential, key: bytes, name: bytes) -> Made:
        before = self._calls.client.look(key)
        self._calls.client.remove_xattr(credential, key, name)
        return Made(before, self._calls.client.look(key))


def _check_name(name: bytes) -> None:
    if len(name) > _XATTR_NAME_MAX:
        raise _error(errno.ENAMETOOLONG)


class CephAcls:
    """See :class:`nfsd.backends.interface.AclStore`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def acls(self, node: Node) -> Acls:
        """A file's ACLs."""
        return await self._calls.run(self._acls, key_of(node))

    def _acls(self, key: bytes) -> Acls:
        look = self._calls.client.look(key)
        mode = int.from_bytes(look[28:30], "little") & 0o7777
        default = get_acl(self._calls, key, DEFAULT_NAME) if raw_type(look) is FileType.DIR else None
        return Acls(get_acl(self._calls, key, ACCESS_NAME) or from_mode(mode), default)

    async def label(self, node: Node) -> bytes:
        """None."""
        return b""


class CephSpace:
    """See :class:`nfsd.backends.interface.SpaceStore`."""

    def __init__(self, calls: Calls, data: CephData) -> None:
        self._calls = calls
        self._data = data

    async def allocate(self, opened: OpenFile, offset: int, length: int) -> Made:
        """Not here: nothing reserves space in a cluster."""
        raise _error(errno.EOPNOTSUPP if length else errno.EINVAL)

    async def deallocate(self, opened: OpenFile, offset: int, length: int) -> Made:
        """Make a hole."""
        if not length:
            raise _error(errno.EINVAL)
        return await self._data.punch(opened, offset, length)

    async def extents(self, opened: OpenFile, offset: int) -> Extents:
        """Data up to the end: where holes are is not known."""
        size = raw_size(await self._calls.run(self._calls.client.look, key_of(opened.node)))
        return Extents(size, offset if offset < size else None, size if offset < size else None)

    async def read(self, opened: OpenFile, offset: int, sink: memoryview) -> int:
        """Read."""
        return (await self._data.read(opened, offset, sink[:]))[0]  # which is let go of there

    async def advise(self, opened: OpenFile, offset: int, length: int, *, needed: bool) -> None:
        """The library reads ahead by itself."""


class CephCopies:
    """See :class:`nfsd.backends.interface.CopyStore`: octets go through the server."""

    def __init__(self, calls: Calls, data: CephData) -> None:
        self._calls = calls
        self._data = data

    async def copy(self, source: OpenFile, at: int, target: OpenFile, to: int, count: int) -> Made:
        """Not here."""
        raise _error(errno.EOPNOTSUPP)

    async def copy_through(self, source: OpenFile, at: int, target: OpenFile, to: int, count: int) -> Made:
        """Read and write."""
        data = bytearray(count)
        got, _ = await self._data.read(source, at, memoryview(data))
        if got:
            return await self._data.write(target, to, memoryview(data)[:got])
        look = await self._calls.run(self._calls.client.look, key_of(target.node))
        return Made(look, look)

    async def clone(self, source: OpenFile, at: int, target: OpenFile, to: int, count: int) -> Made:
        """Not here."""
        raise _error(errno.EOPNOTSUPP)
