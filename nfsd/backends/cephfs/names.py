"""Names in CephFS. Snapshots are in directories ``.snap``, which are not listed, and are read-only.

Owns the directories that are being listed. Each operation with its looks is one job on a thread. Ceph checks
permissions.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from nfsd.backends.cephfs.client import Stream
from nfsd.backends.cephfs.files import CephData, granted
from nfsd.backends.cephfs.keys import (
    SNAPSHOTS_NAME,
    check_changeable,
    check_name,
    check_new,
    is_directory_of_snapshots,
    is_live,
    live,
    snapshots_of,
)
from nfsd.backends.interface import Entry, Found, Made, Named, New, Renamed
from nfsd.vfs.attributes import raw_nlink, raw_type
from nfsd.vfs.records import Credential, Node
from nfsd.vfs.store_mounts import key_of
from nfsd.vfs.types import FileType

if TYPE_CHECKING:
    from nfsd.backends.cephfs.store import Calls

_KINDS: Final = {
    FileType.FIFO: stat.S_IFIFO, FileType.CHR: stat.S_IFCHR, FileType.DIR: stat.S_IFDIR, FileType.BLK: stat.S_IFBLK,
    FileType.REG: stat.S_IFREG, FileType.LNK: stat.S_IFLNK, FileType.SOCK: stat.S_IFSOCK,
}  # fmt: skip
_NLINK: Final = struct.Struct("=I")
_NLINK_AT: Final = 16
"""In a ``struct statx``."""
_LISTINGS: Final = 64
"""Directories that are kept open where a listing has stopped."""

_Place = tuple[bytes, int, Credential | None]
"""A directory, where its listing has come to, and whose it is."""


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class CephNames:
    """See :class:`nfsd.backends.interface.NameStore`."""

    def __init__(self, calls: Calls, root: bytes, data: CephData) -> None:
        self._calls = calls
        self._client = calls.client
        self._root = root
        self._data = data
        self._lock = threading.Lock()
        self._listings: OrderedDict[_Place, Stream] = OrderedDict()
        self.native = calls.client.directories

    def close(self) -> None:
        """Nothing is listed any more; on a thread."""
        self._listings.clear()

    # -- looking up ----------------------------------------------------------------------------------------------
    async def root(self) -> Found:
        """The root directory."""
        return Found(self._root, await self._calls.run(self._client.look, self._root))

    async def find(self, key: bytes) -> bytearray:
        """The file with a key."""
        look = await self._calls.run(self._client.look, key)
        if raw_nlink(look) == 0 and is_live(key):
            raise _error(errno.ESTALE)
        return look

    async def lookup(self, credential: Credential | None, directory: Node, name: bytes) -> Found:
        """What a name leads to."""
        check_name(name)
        return Found(*await self._calls.run(self._client.lookup, credential, key_of(directory), name))

    async def parent(self, credential: Credential | None, directory: Node) -> Found:
        """The directory above."""
        return await self._calls.run(self._parent, credential, key_of(directory))

    def _parent(self, credential: Credential | None, key: bytes) -> Found:
        if key == self._root:
            return Found(key, self._client.look(key))
        if is_directory_of_snapshots(key):
            return Found(live(key), self._client.look(live(key)))
        try:
            return Found(*self._client.lookup(credential, key, b".."))
        except OSError as failure:
            if is_live(key) or isinstance(failure, PermissionError):
                raise
            # A snapshot itself: what is above it is the .snap of the directory that it is of.
            return Found(snapshots_of(key), self._client.look(snapshots_of(key)))

    async def entries(
        self, credential: Credential, directory: Node, cookie: int, most: int, *, looks: bool
    ) -> list[Entry]:
        """Entries behind a cookie."""
        return await self._calls.run(self._entries, credential, key_of(directory), cookie, most, looks)

    def _entries(self, credential: Credential, key: bytes, cookie: int, most: int, looks: bool) -> list[Entry]:
        with self._lock:
            stream = self._listings.pop((key, cookie, credential), None) if cookie else None
        if stream is None:
            stream = self._client.open_directory(credential, key)
            if cookie:
                self._client.seek(stream, cookie)
        error = 0
        if looks and not granted(self._calls, credential, key) & os.X_OK:
            error = errno.EACCES
        found = self._client.entries(stream, most)
        if found:
            with self._lock:
                self._listings[key, found[-1][1], credential] = stream
                old = [self._listings.popitem(last=False) for _ in range(len(self._listings) - _LISTINGS)]
            del old  # these close here, on a thread
        return [
            Entry(name, at, int.from_bytes(look[32:40], "little"), its_key, None if error or not looks else look, error)
            for name, at, its_key, look in found
        ]

    # -- changing ------------------------------------------------------------------------------------------------
    async def make(self, credential: Credential, directory: Node, name: bytes, new: New) -> Named:
        """Make a file."""
        key = key_of(directory)
        check_new(name, key)
        text = new.text if new.type is FileType.LNK else None
        mode = _KINDS[new.type] | new.mode & 0o7777
        before, after, made, look = await self._calls.run(
            self._client.make, credential, key, name, mode, text, new.rdev
        )
        return Named(before, after, Found(made, look))

    async def remove(self, credential: Credential, directory: Node, name: bytes, *, a_directory: bool) -> Named:
        """Remove a name."""
        check_name(name)
        check_changeable(key_of(directory))
        if name == SNAPSHOTS_NAME:
            raise _error(errno.EROFS)
        return await self._calls.run(self._remove, credential, key_of(directory), name, a_directory)

    def _remove(self, credential: Credential, directory: bytes, name: bytes, a_directory: bool) -> Named:
        before, after, key, look = self._client.remove(credential, directory, name, a_directory)
        return Named(before, after, Found(key, look))

    async def rename(self, credential: Credential, source: Node, name: bytes, target: Node, new_name: bytes) -> Renamed:
        """Rename."""
        check_name(name)
        check_name(new_name)
        check_changeable(key_of(source), key_of(target))
        return await self._calls.run(self._rename, credential, key_of(source), name, key_of(target), new_name)

    def _rename(self, credential: Credential, source: bytes, name: bytes, target: bytes, new_name: bytes) -> Renamed:
        key, look = self._victim(credential, source, name)
        replaced = None
        with contextlib.suppress(FileNotFoundError):
            replaced = self._victim(credential, target, new_name)
        if replaced is not None and replaced[0] == key:
            looks = self._client.look(source), self._client.look(target)
            return Renamed(Made(looks[0], looks[0]), Made(looks[1], looks[1]), None, False)
        if replaced is not None:
            kinds = raw_type(look) is FileType.DIR, raw_type(replaced[1]) is FileType.DIR
            if kinds[0] != kinds[1]:
                raise _error(errno.ENOTDIR if kinds[0] else errno.EISDIR)
        looks_around = self._client.rename(credential, source, name, target, new_name)
        gone = None if replaced is None else Found(replaced[0], self._after(*replaced))
        return Renamed(Made(*looks_around[:2]), Made(*looks_around[2:]), gone, True)

    async def link(self, credential: Credential, node: Node, directory: Node, name: bytes) -> Named:
        """A further name."""
        key, there = key_of(node), key_of(directory)
        check_new(name, key, there)
        before, after, look = await self._calls.run(self._client.link, credential, key, there, name)
        return Named(before, after, Found(key, look))

    # -- parts of these ------------------------------------------------------------------------------------------
    def _victim(self, credential: Credential, directory: bytes, name: bytes) -> tuple[bytes, bytearray]:
        """What a name leads to that is about to lose it. A directory of snapshots has its name for good."""
        if name == SNAPSHOTS_NAME:
            raise _error(errno.EROFS)
        return self._client.lookup(credential, directory, name)

    def _after(self, key: bytes, before: bytearray) -> bytearray:
        """A file that has lost a name. With its last one it may be gone at once."""
        if raw_type(before) is not FileType.DIR and raw_nlink(before) > 1:
            try:
                return self._client.look(key)
            except OSError:
                pass
        _NLINK.pack_into(before, _NLINK_AT, 0)
        return before
