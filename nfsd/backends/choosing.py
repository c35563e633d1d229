"""The backend of all exports: each call goes to that of the file it is about.

Owns nothing. A file of a file system of the kernel is the local backend's; any other file's mount knows its store.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, cast

from nfsd.backends.interface import (
    AclStore,
    Backend,
    CopyStore,
    FileStore,
    FileSystemStore,
    LockStore,
    Made,
    QuotaStore,
    SpaceStore,
    XattrStore,
)
from nfsd.vfs.mounts import Mount
from nfsd.vfs.records import Node, OpenFile
from nfsd.vfs.store_mounts import StoreMount


def _mount_in(arguments: tuple[Any, ...]) -> Mount | None:
    """The mount of the first file, open file or mount among a call's arguments."""
    for argument in arguments:
        if isinstance(argument, Node):
            return argument.mount
        if isinstance(argument, OpenFile):
            return argument.node.mount
        if isinstance(argument, Mount):
            return argument
    return None


class _Chosen:
    """One part of the interface. Each method is made when it is first asked for."""

    def __init__(self, part: str, local: Backend) -> None:
        self._part = part
        self._local = getattr(local, part)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        part, local = self._part, getattr(self._local, name)

        def choose(*arguments: Any, **named: Any) -> Any:
            mount = _mount_in(arguments)
            if isinstance(mount, StoreMount):
                return getattr(getattr(mount.store, part), name)(*arguments, **named)
            return local(*arguments, **named)

        setattr(self, name, choose)
        return choose


class _Copies:
    """Copies, which have two files."""

    def __init__(self, local: Backend) -> None:
        self._local = local.copies

    def _of(self, source: OpenFile, target: OpenFile) -> CopyStore:
        one, other = source.node.mount, target.node.mount
        if isinstance(one, StoreMount):
            if isinstance(other, StoreMount) and one.store is other.store:
                return one.store.copies
        elif not isinstance(other, StoreMount):
            return self._local
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    async def copy(self, source: OpenFile, at: int, target: OpenFile, to: int, count: int) -> Made:
        """See :class:`nfsd.backends.interface.CopyStore`."""
        return await self._of(source, target).copy(source, at, target, to, count)

    async def copy_through(self, source: OpenFile, at: int, target: OpenFile, to: int, count: int) -> Made:
        """See :class:`nfsd.backends.interface.CopyStore`."""
        return await self._of(source, target).copy_through(source, at, target, to, count)

    async def clone(self, source: OpenFile, at: int, target: OpenFile, to: int, count: int) -> Made:
        """See :class:`nfsd.backends.interface.CopyStore`."""
        return await self._of(source, target).clone(source, at, target, to, count)


class ChosenBackend:
    """All of it, with this backend for files of the kernel's file systems."""

    def __init__(self, local: Backend) -> None:
        self.files = cast(FileStore, _Chosen("files", local))
        self.file_systems = cast(FileSystemStore, _Chosen("file_systems", local))
        self.xattrs = cast(XattrStore, _Chosen("xattrs", local))
        self.acls = cast(AclStore, _Chosen("acls", local))
        self.space = cast(SpaceStore, _Chosen("space", local))
        self.copies: CopyStore = _Copies(local)
        self.locks = cast(LockStore, _Chosen("locks", local))
        self.quota = cast(QuotaStore, _Chosen("quota", local))
