"""Names in a store in plain Python.

Owns nothing. What POSIX says of names is here, once for all stores: search and write permission, sticky directories,
what may replace what. Each operation with its looks is one job on one of the store's threads.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Final

from nfsd.backends.interface import Entry, Found, Made, Named, New, Renamed
from nfsd.backends.keyed.calls import Calls
from nfsd.backends.keyed.ordered import Ordered
from nfsd.backends.keyed.rules import READ, SEARCH, WRITE, born, check, check_sticky
from nfsd.backends.looks import look_of
from nfsd.backends.simple import Place, Status, error
from nfsd.vfs.attributes import raw_nlink
from nfsd.vfs.records import Credential, Node
from nfsd.vfs.store_mounts import check_key, key_of
from nfsd.vfs.types import FileType

NAME_MAX: Final = 255
_DEEPEST: Final = 4096


class KeyedNames:
    """See :class:`nfsd.backends.interface.NameStore`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._store = calls.store
        self._ordered = Ordered()

    # -- looking up ----------------------------------------------------------------------------------------------
    async def root(self) -> Found:
        """The root directory."""
        return await self._calls.run(self._root)

    def _root(self) -> Found:
        return self._calls.found(self._store.root())

    async def find(self, key: bytes) -> bytearray:
        """The file with a key."""
        look = await self._calls.run(self._calls.look, key)
        if raw_nlink(look) == 0:
            raise error(errno.ESTALE)
        return look

    async def lookup(self, credential: Credential | None, directory: Node, name: bytes) -> Found:
        """What a name leads to."""
        return await self._calls.run(self._lookup, credential, key_of(directory), name)

    def _lookup(self, credential: Credential | None, directory: bytes, name: bytes) -> Found:
        check(credential, self._calls.status(directory), SEARCH)
        _check_length(name)
        return self._calls.found(self._store.lookup(directory, name))

    async def parent(self, credential: Credential | None, directory: Node) -> Found:
        """The directory above."""
        return await self._calls.run(self._parent, credential, key_of(directory))

    def _parent(self, credential: Credential | None, directory: bytes) -> Found:
        check(credential, self._calls.status(directory), SEARCH)
        return self._calls.found(directory if directory == self._store.root() else self._store.parent(directory))

    async def entries(
        self, credential: Credential, directory: Node, cookie: int, most: int, *, looks: bool
    ) -> list[Entry]:
        """Entries behind a cookie."""
        return await self._calls.run(self._entries, credential, key_of(directory), cookie, most, looks)

    def _entries(self, credential: Credential, directory: bytes, cookie: int, most: int, looks: bool) -> list[Entry]:
        status = self._calls.status(directory)
        check(credential, status, READ)
        may_look = True
        if looks:
            try:
                check(credential, status, SEARCH)
            except PermissionError:
                may_look = False
        places = self._places(directory, status, cookie, most)
        while places and not any(_is_name(place.name) for place in places):  # none is not the end
            if (last := places[-1].cookie or 0) <= cookie:
                raise ValueError(f"cookie {last} behind {cookie}")
            places, cookie = self._places(directory, status, last, most), last
        return [self._entry(place, looks, may_look) for place in places if _is_name(place.name)]

    def _places(self, directory: bytes, status: Status, cookie: int, most: int) -> list[Place]:
        places = self._store.names_after(directory, cookie, most)
        if places is None:
            return self._ordered.behind(directory, status, cookie, most, lambda: self._store.names(directory))
        return places

    def _entry(self, place: Place, looks: bool, may_look: bool) -> Entry:
        key, cookie = check_key(place.key), place.cookie or 0
        try:
            status = self._store.status(key)
        except OSError as failure:
            number = errno.ENOENT if failure.errno == errno.ESTALE else failure.errno or errno.EIO
            return Entry(place.name, cookie, 0, key, None, number)
        if not looks or not may_look:
            return Entry(place.name, cookie, status.fileid, key, None, errno.EACCES if looks else 0)
        return Entry(place.name, cookie, status.fileid, key, look_of(status))

    # -- changing ------------------------------------------------------------------------------------------------
    async def make(self, credential: Credential, directory: Node, name: bytes, new: New) -> Named:
        """Make a file."""
        return await self._calls.run(self._make, credential, key_of(directory), name, new)

    def _make(self, credential: Credential, directory: bytes, name: bytes, new: New) -> Named:
        before = self._changeable(credential, directory, name)
        if self._there(directory, name) is not None:
            raise error(errno.EEXIST)
        key = self._store.make(directory, name, *born(credential, before, new))
        return Named(look_of(before), self._calls.look(directory), self._calls.found(key))

    async def remove(self, credential: Credential, directory: Node, name: bytes, *, a_directory: bool) -> Named:
        """Remove a name."""
        made = await self._calls.run(self._remove, credential, key_of(directory), name, a_directory)
        self._buried(made.file)
        return made

    def _remove(self, credential: Credential, directory: bytes, name: bytes, a_directory: bool) -> Named:
        before = self._changeable(credential, directory, name)
        key = self._store.lookup(directory, name)
        victim = self._calls.status(key)
        check_sticky(credential, before, victim)
        _check_kinds(a_directory, victim.type is FileType.DIR)
        if victim.nlink == 1:
            self._calls.keep(key)
        self._store.remove(directory, name)
        return Named(look_of(before), self._calls.look(directory), self._after(key, victim))

    async def rename(self, credential: Credential, source: Node, name: bytes, target: Node, new_name: bytes) -> Renamed:
        """Rename."""
        made = await self._calls.run(self._rename, credential, key_of(source), name, key_of(target), new_name)
        if made.replaced is not None:
            self._buried(made.replaced)
        return made

    def _rename(self, credential: Credential, source: bytes, name: bytes, target: bytes, new_name: bytes) -> Renamed:
        source_before = self._changeable(credential, source, name)
        target_before = self._changeable(credential, target, new_name)
        key = self._store.lookup(source, name)
        moved = self._calls.status(key)
        check_sticky(credential, source_before, moved)
        if moved.type is FileType.DIR:
            self._check_outside(key, target)
        replaced = self._there(target, new_name)
        victim = None if replaced is None else self._calls.status(replaced)
        if victim is not None and replaced != key:
            check_sticky(credential, target_before, victim)
            _check_kinds(moved.type is FileType.DIR, victim.type is FileType.DIR)
        if replaced is not None and victim is not None and replaced != key and victim.nlink == 1:
            self._calls.keep(replaced)
        if replaced != key:
            self._store.rename(source, name, target, new_name)
        gone = None if replaced is None or victim is None or replaced == key else self._after(replaced, victim)
        return Renamed(
            Made(look_of(source_before), self._calls.look(source)),
            Made(look_of(target_before), self._calls.look(target)),
            gone,
            replaced != key,
        )

    async def link(self, credential: Credential, node: Node, directory: Node, name: bytes) -> Named:
        """A further name."""
        return await self._calls.run(self._link, credential, key_of(node), key_of(directory), name)

    def _link(self, credential: Credential, key: bytes, directory: bytes, name: bytes) -> Named:
        before = self._changeable(credential, directory, name)
        if self._there(directory, name) is not None:
            raise error(errno.EEXIST)
        if self._calls.status(key).nlink == 0:
            raise error(errno.ENOENT)
        self._store.link(key, directory, name)
        return Named(look_of(before), self._calls.look(directory), self._calls.found(key))

    # -- parts of these ------------------------------------------------------------------------------------------
    def _changeable(self, credential: Credential, directory: bytes, name: bytes) -> Status:
        """The directory, whose names the caller may change. A removed one has no room for any."""
        _check_length(name)
        status = self._calls.status(directory)
        check(credential, status, SEARCH)
        if not self._store.writable:
            raise error(errno.EROFS)
        check(credential, status, WRITE)
        if status.nlink == 0:
            raise error(errno.ENOENT)
        return status

    def _there(self, directory: bytes, name: bytes) -> bytes | None:
        try:
            return self._store.lookup(directory, name)
        except FileNotFoundError:
            return None

    def _check_outside(self, key: bytes, directory: bytes) -> None:
        """EINVAL when a directory is to be moved below itself."""
        root = self._store.root()
        for _ in range(_DEEPEST):
            if directory == key:
                raise error(errno.EINVAL)
            if directory == root:
                return
            directory = self._store.parent(directory)
        raise error(errno.ELOOP)

    def _after(self, key: bytes, before: Status) -> Found:
        """A file that has lost a name."""
        try:
            return self._calls.found(key)
        except OSError as failure:
            gone = failure.errno == errno.ESTALE or before.type is FileType.DIR
            return Found(key, look_of(replace(before, nlink=0 if gone else max(0, before.nlink - 1))))

    def _buried(self, file: Found) -> None:
        if raw_nlink(file.look) == 0:
            self._calls.removed(file.key)


def _is_name(name: bytes) -> bool:
    """Whether clients may be told of it. What a store has found elsewhere may have names that are none."""
    return 0 < len(name) <= NAME_MAX and name not in (b".", b"..") and b"/" not in name and b"\0" not in name


def _check_length(name: bytes) -> None:
    if len(name) > NAME_MAX:
        raise error(errno.ENAMETOOLONG)


def _check_kinds(wanted: bool, found: bool) -> None:
    """That what is removed is a directory where one is ``wanted``, and none elsewhere."""
    if wanted and not found:
        raise error(errno.ENOTDIR)
    if found and not wanted:
        raise error(errno.EISDIR)
