"""A store in memory: for tests, and to try things out. Everything is gone when the server stops.

Owns its files. It never waits, so it runs on the event loop. ``size`` bounds the octets that all files together may
have, their names, links and attributes included; holes count like data.
"""

from __future__ import annotations

import errno
import time
from bisect import bisect_right
from dataclasses import replace
from typing import Any, ClassVar, Final

from nfsd.backends.simple import FileSystemStatus, New, Place, SetAttributes, SetTo, SimpleBackend, Status, Time, error
from nfsd.vfs.types import FileType

DEFAULT_SIZE: Final = 256 << 20
_OF_A_FILE: Final = 1024
"""Octets that a file costs besides what is in it."""
_OF_A_NAME: Final = 256
"""Octets that a name, or an extended attribute, costs besides what it says."""
_LINKS: Final = 32000
_ROOT: Final = 1
_FIRST_COOKIE: Final = 3


class _File:
    """One file, directory, link or device."""

    __slots__ = ("above", "cookies", "data", "entries", "next_cookie", "status", "xattrs")

    def __init__(self, status: Status, above: int, data: bytes = b"") -> None:
        self.status = status
        self.above = above
        """Of a directory: which one it is in."""
        self.data = bytearray(data)
        self.entries: dict[bytes, tuple[int, int]] = {}
        """File and cookie of each name."""
        self.cookies: list[tuple[int, bytes]] = []
        """Those, in the order of the cookies. A directory's entries only come behind the others."""
        self.next_cookie = _FIRST_COOKIE
        self.xattrs: dict[bytes, bytes] = {}


class MemoryBackend(SimpleBackend):
    """See the module."""

    at_once: ClassVar[bool] = True
    writable = True
    xattrs: ClassVar[bool] = True

    def __init__(self, *, size: int = DEFAULT_SIZE, **options: Any) -> None:
        """``size``: octets."""
        super().__init__(**options)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1 << 16:
            raise ValueError(f"size must be a number of octets, 65536 or more, not {size!r}")
        self._size = size
        self._used = 0
        self._last = _ROOT
        moment = time.time_ns()
        root = Status(FileType.DIR, _ROOT, 0o1777, 2, mtime=moment, ctime=moment, atime=moment)
        self._files = {_ROOT: _File(root, _ROOT)}

    # -- reading -------------------------------------------------------------------------------------------------
    def root(self) -> bytes:
        return _key(_ROOT)

    def status(self, key: bytes) -> Status:
        return self._file(key).status

    def lookup(self, directory: bytes, name: bytes) -> bytes:
        found = self._directory(directory).entries.get(name)
        if found is None:
            raise error(errno.ENOENT)
        return _key(found[0])

    def parent(self, directory: bytes) -> bytes:
        return _key(self._directory(directory).above)

    def names_after(self, directory: bytes, cookie: int, most: int) -> list[Place]:
        here = self._directory(directory)
        start = bisect_right(here.cookies, cookie, key=lambda one: one[0])
        return [Place(name, _key(here.entries[name][0]), at) for at, name in here.cookies[start : start + most]]

    def read_into(self, key: bytes, offset: int, sink: memoryview) -> int:
        data = self._file(key).data
        octets = max(0, min(len(sink), len(data) - offset))
        with memoryview(data) as whole:
            sink[:octets] = whole[offset : offset + octets]
        return octets

    def readlink(self, key: bytes) -> bytes:
        return bytes(self._file(key).data)

    def space(self) -> FileSystemStatus:
        free = self._size - self._used
        files = free // _OF_A_FILE
        return FileSystemStatus(self._size, free, free, len(self._files) + files, files, files)

    # -- changing ------------------------------------------------------------------------------------------------
    def make(self, directory: bytes, name: bytes, new: New, uid: int, gid: int) -> bytes:
        here = self._directory(directory)
        self._take(_OF_A_FILE + _cost(name) + len(new.text))
        self._last += 1
        moment = time.time_ns()
        status = Status(
            new.type, self._last, new.mode, 2 if new.type is FileType.DIR else 1, uid, gid, len(new.text),
            moment, moment, moment, new.rdev,
        )  # fmt: skip
        self._files[self._last] = _File(status, here.status.fileid, new.text)
        self._enter(here, name, self._last)
        if new.type is FileType.DIR:
            _set(here, nlink=here.status.nlink + 1)
        return _key(self._last)

    def remove(self, directory: bytes, name: bytes) -> None:
        here = self._directory(directory)
        victim = self._files[here.entries[name][0]]
        if victim.entries:
            raise error(errno.ENOTEMPTY)
        self._leave(here, name)
        self._lose(here, victim)

    def forget(self, key: bytes) -> None:
        gone = self._files.pop(int.from_bytes(key, "big"))
        self._used -= _OF_A_FILE + len(gone.data) + sum(_cost(*one) for one in gone.xattrs.items())

    def rename(self, directory: bytes, name: bytes, target: bytes, new_name: bytes) -> None:
        here, there = self._directory(directory), self._directory(target)
        number = here.entries[name][0]
        moved = self._files[number]
        replaced = there.entries.get(new_name)
        victim = None if replaced is None else self._files[replaced[0]]
        if victim is not None and victim.entries:
            raise error(errno.ENOTEMPTY)
        self._take(_cost(new_name))
        if victim is not None:
            self._leave(there, new_name)
            self._lose(there, victim)
        self._leave(here, name)
        self._enter(there, new_name, number)
        if moved.status.type is FileType.DIR and here is not there:
            _set(here, nlink=here.status.nlink - 1)
            _set(there, nlink=there.status.nlink + 1)
            moved.above = there.status.fileid
        _set(moved)

    def link(self, key: bytes, directory: bytes, name: bytes) -> None:
        file, here = self._file(key), self._directory(directory)
        if file.status.nlink >= _LINKS:
            raise error(errno.EMLINK)
        self._take(_cost(name))
        self._enter(here, name, file.status.fileid)
        _set(file, nlink=file.status.nlink + 1)

    def write(self, key: bytes, offset: int, data: bytes) -> int:
        file = self._file(key)
        self._resize(file, max(len(file.data), offset + len(data)))
        file.data[offset : offset + len(data)] = data
        _set(file, size=len(file.data), mtime=time.time_ns())
        return len(data)

    def set_attributes(self, key: bytes, changes: SetAttributes) -> None:
        file, moment = self._file(key), time.time_ns()
        wanted: dict[str, Any] = {
            name: value for name in ("mode", "uid", "gid") if (value := getattr(changes, name)) is not None
        }
        if changes.size is not None:
            self._resize(file, changes.size)
            wanted |= {"size": changes.size, "mtime": moment}
        times = {"atime": changes.atime, "mtime": changes.mtime}
        wanted |= {name: _moment(at, moment) for name, at in times.items() if at is not None}
        _set(file, **wanted)

    # -- extended attributes -------------------------------------------------------------------------------------
    def get_xattr(self, key: bytes, name: bytes) -> bytes:
        value = self._file(key).xattrs.get(name)
        if value is None:
            raise error(errno.ENODATA)
        return value

    def list_xattrs(self, key: bytes) -> list[bytes]:
        return list(self._file(key).xattrs)

    def set_xattr(self, key: bytes, name: bytes, value: bytes) -> None:
        file = self._file(key)
        before = _cost(name, file.xattrs[name]) if name in file.xattrs else 0
        self._take(_cost(name, value) - before)
        file.xattrs[name] = value
        _set(file)

    def remove_xattr(self, key: bytes, name: bytes) -> None:
        file = self._file(key)
        self._used -= _cost(name, self.get_xattr(key, name))
        del file.xattrs[name]
        _set(file)

    # -- parts of these ------------------------------------------------------------------------------------------
    def _file(self, key: bytes) -> _File:
        file = self._files.get(int.from_bytes(key, "big"))
        if file is None:
            raise error(errno.ESTALE)
        return file

    def _directory(self, key: bytes) -> _File:
        file = self._file(key)
        if file.status.type is not FileType.DIR:
            raise error(errno.ENOTDIR)
        return file

    def _take(self, octets: int) -> None:
        if self._used + octets > self._size:
            raise error(errno.ENOSPC)
        self._used += octets

    def _resize(self, file: _File, size: int) -> None:
        grown = size - len(file.data)
        self._take(grown)
        if grown < 0:
            del file.data[size:]
        else:
            file.data.extend(bytes(grown))

    def _enter(self, here: _File, name: bytes, number: int) -> None:
        here.entries[name] = (number, here.next_cookie)
        here.cookies.append((here.next_cookie, name))
        here.next_cookie += 1
        _set(here, mtime=time.time_ns())

    def _leave(self, here: _File, name: bytes) -> None:
        _, cookie = here.entries.pop(name)
        del here.cookies[bisect_right(here.cookies, cookie, key=lambda one: one[0]) - 1]
        self._used -= _cost(name)
        _set(here, mtime=time.time_ns())

    def _lose(self, here: _File, victim: _File) -> None:
        """A file has lost a name."""
        if victim.status.type is FileType.DIR:
            _set(here, nlink=here.status.nlink - 1)
            _set(victim, nlink=0)
        else:
            _set(victim, nlink=victim.status.nlink - 1)


def _cost(name: bytes, value: bytes = b"") -> int:
    """Octets that a name of a file costs, or an extended attribute."""
    return _OF_A_NAME + len(name) + len(value)


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _set(file: _File, **changes: Any) -> None:
    """Change what is said of a file. ctime never stands still, so that every change shows."""
    file.status = replace(file.status, ctime=max(time.time_ns(), (file.status.ctime or 0) + 1), **changes)


def _moment(wanted: Time | SetTo, moment: int) -> int:
    return moment if isinstance(wanted, SetTo) else wanted.seconds * 1_000_000_000 + wanted.nanoseconds
