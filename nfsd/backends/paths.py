"""Stores whose files go by paths: keys for them.

Owns :class:`PathBackend`, which numbers paths as they are met. The numbers are the keys, so handles are stale when the
server restarts. The table is bounded: what has not been used for longest is forgotten, and its handles are stale, too.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import ClassVar, Final

from nfsd.backends.simple import Place, SimpleBackend, Status, error

_ROOT: Final = 1


class PathBackend(SimpleBackend):
    """A store that derives from this has :meth:`status_at`, :meth:`names_in`, :meth:`read_at`, and what it can besides.
    A path is names with slashes between them; the root's is empty. Names are text as of ``os.fsdecode``."""

    most_paths: ClassVar[int] = 1 << 20

    def __init__(self) -> None:
        """Make the table."""
        super().__init__()
        self._lock = threading.Lock()
        self._paths: OrderedDict[int, str] = OrderedDict()
        self._numbers: dict[str, int] = {}
        self._last = _ROOT

    # -- what stores have ----------------------------------------------------------------------------------------
    def status_at(self, path: str, number: int) -> Status:
        """What is there; ``number`` is its fileid. ENOENT."""
        raise NotImplementedError

    def names_in(self, path: str) -> Iterable[str]:
        """The names in a directory."""
        raise NotImplementedError

    def read_at(self, path: str, offset: int, size: int) -> bytes:
        """Octets of a file."""
        raise NotImplementedError

    def link_at(self, path: str) -> bytes:
        """The text of a symbolic link."""
        raise error(errno.EINVAL)

    # -- keys ----------------------------------------------------------------------------------------------------
    def path_of(self, key: bytes) -> str:
        """The path of a key. ESTALE when it is not known any more."""
        number = int.from_bytes(key, "big")
        if number == _ROOT:
            return ""
        with self._lock:
            path = self._paths.get(number)
            if path is None:
                raise error(errno.ESTALE)
            self._paths.move_to_end(number)
        return path

    def path_in(self, directory: bytes, name: bytes) -> str:
        """The path of a name in a directory. EINVAL for what would lead elsewhere: names come from clients."""
        text = os.fsdecode(name)
        if text in ("", ".", "..") or "/" in text:
            raise error(errno.EINVAL)
        return joined(self.path_of(directory), text)

    def key_at(self, path: str) -> bytes:
        """The key of a path."""
        if not path:
            return _key(_ROOT)
        with self._lock:
            number = self._numbers.get(path)
            if number is None:
                self._last += 1
                number = self._numbers[path] = self._last
                self._paths[number] = path
                if len(self._paths) > self.most_paths:
                    _, old = self._paths.popitem(last=False)
                    del self._numbers[old]
        return _key(number)

    def number_at(self, path: str) -> int:
        """The number that is the key of a path; 0 if nobody has one."""
        if not path:
            return _ROOT
        with self._lock:
            return self._numbers.get(path, 0)

    def met_below(self, path: str) -> list[str]:
        """The paths below a directory that somebody has the keys of."""
        with self._lock:
            return [one for one in self._numbers if one.startswith(path + "/")]

    def gone(self, path: str) -> None:
        """Nothing is at a path any more: its key is stale."""
        with self._lock:
            number = self._numbers.pop(path, None)
            if number is not None:
                del self._paths[number]

    def renamed(self, old: str, new: str) -> None:
        """What was at a path, and below it, is at another one. Its keys stay good."""
        for path in (old, *self.met_below(old)):
            with self._lock:
                number = self._numbers.pop(path, None)
                if number is not None:
                    there = new + path[len(old) :]
                    self._paths[number] = there
                    self._numbers[there] = number

    # -- as SimpleBackend has them -------------------------------------------------------------------------------
    def root(self) -> bytes:
        """See :class:`SimpleBackend`."""
        return _key(_ROOT)

    def status(self, key: bytes) -> Status:
        """See :class:`SimpleBackend`."""
        return self.status_at(self.path_of(key), int.from_bytes(key, "big"))

    def lookup(self, directory: bytes, name: bytes) -> bytes:
        """See :class:`SimpleBackend`."""
        path = self.path_in(directory, name)
        self.status_at(path, 0)
        return self.key_at(path)

    def parent(self, directory: bytes) -> bytes:
        """See :class:`SimpleBackend`."""
        return self.key_at(self.path_of(directory).rpartition("/")[0])

    def names(self, directory: bytes) -> list[Place]:
        """See :class:`SimpleBackend`."""
        path = self.path_of(directory)
        return [Place(os.fsencode(name), self.key_at(joined(path, name))) for name in self.names_in(path)]

    def read(self, key: bytes, offset: int, size: int) -> bytes:
        """See :class:`SimpleBackend`."""
        return self.read_at(self.path_of(key), offset, size)

    def readlink(self, key: bytes) -> bytes:
        """See :class:`SimpleBackend`."""
        return self.link_at(self.path_of(key))


def joined(path: str, name: str) -> str:
    """A path one name longer."""
    return f"{path}/{name}" if path else name


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big")
