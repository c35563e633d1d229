"""Extended attributes of regular files and directories (RFC 8276).

Owns nothing. Whatever has no such attributes (links, devices…) has none, and takes none, as with local processes
(xattr(7)).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from functools import partial

from nfsd.backends.interface import Made, XattrStore
from nfsd.vfs.changes import change_of, check_writable
from nfsd.vfs.file_systems import FileSystems
from nfsd.vfs.inspect import MODIFY
from nfsd.vfs.looking import Looking
from nfsd.vfs.records import Node
from nfsd.vfs.stable import StableStorage
from nfsd.vfs.syscalls import XATTR_CREATE, XATTR_REPLACE
from nfsd.vfs.types import Change, Credential, FileType

_BEARERS = (FileType.REG, FileType.DIR)


class Xattrs:
    """Reading, listing, setting and removing extended attributes."""

    def __init__(self, store: XattrStore, file_systems: FileSystems, looking: Looking, stable: StableStorage) -> None:
        self._store = store
        self._file_systems = file_systems
        self._looking = looking
        self._stable = stable

    async def _check_supported(self, node: Node) -> None:
        if not await self._file_systems.supports_xattrs(node):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    async def may_write_xattrs(self, credential: Credential, node: Node, allowed: int) -> bool:
        """Whether who may do so much with a file (ACCESS4_*) may set its extended attributes."""
        if node.type not in _BEARERS or node.export.read_only:
            return False
        # A directory's entries need execute permission too, its attributes do not.
        return bool(allowed & MODIFY) or (node.type is FileType.DIR and await self._looking.may_write(credential, node))

    async def get_xattr(self, credential: Credential, node: Node, name: bytes) -> bytes:
        """An attribute's value. ENODATA when there is none of that name."""
        _check_name(name)
        await self._check_supported(node)
        if node.type not in _BEARERS:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return await self._store.get_xattr(credential, node, name)

    async def list_xattrs(self, credential: Credential, node: Node) -> list[bytes]:
        """The names of all attributes, in no order. EACCES for who may not read the file."""
        await self._check_supported(node)
        return await self._store.list_xattrs(credential, node) if node.type in _BEARERS else []

    async def set_xattr(
        self,
        credential: Credential,
        node: Node,
        name: bytes,
        value: bytes,
        *,
        create: bool = False,
        replace: bool = False,
    ) -> Change:
        """Set an attribute, durably. EEXIST if it is there and ``create`` says it must not be; ENODATA if it is not and
        ``replace`` says it must. E2BIG, ENOSPC for values the file system does not take."""
        flags = (XATTR_CREATE if create else 0) | (XATTR_REPLACE if replace else 0)
        return await self._change(
            credential, node, name, partial(self._store.set_xattr, credential, node, name, value, flags)
        )

    async def remove_xattr(self, credential: Credential, node: Node, name: bytes) -> Change:
        """Remove an attribute, durably. ENODATA when there is none of that name."""
        return await self._change(credential, node, name, partial(self._store.remove_xattr, credential, node, name))

    async def _change(
        self, credential: Credential, node: Node, name: bytes, make: Callable[[], Awaitable[Made]]
    ) -> Change:
        _check_name(name)
        check_writable(node)
        await self._check_supported(node)
        if node.type not in _BEARERS:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        serial = node.inode.serial
        await serial.acquire()
        try:
            made = await make()
            change = change_of(node, made.before, made.after)
        finally:
            serial.release()
        await self._stable.settle_change(node, credential)
        return change


def _check_name(name: bytes) -> None:
    """EINVAL for what can be no attribute's name."""
    if not name or b"\0" in name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
