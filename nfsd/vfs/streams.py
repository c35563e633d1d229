"""Directories open for reading, kept for the call that goes on where the last one ended.

Owns the descriptors of those that nobody is reading. Opening a directory anew and seeking costs more than a short
listing, and a large directory is listed in many calls. A stream goes on where it is or a little before, and is put
nowhere else: after a seek to the end, ext4 finds nothing at the beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from nfsd.vfs.records import Node
from nfsd.vfs.types import Credential

_LIMIT = 256
_OF_ONE_CALLER = 16
"""Of one directory and one caller: as many clients may list it at once without getting in each other's way."""

_Key = tuple[bytes, Credential]


class Stream:
    """An open directory, and behind which entry it is to go on."""

    __slots__ = ("ahead", "cookie", "ctime", "epoch", "fd", "key", "lane")

    def __init__(
        self, key: _Key, fd: int, epoch: int, lane: int, cookie: int, *, ctime: int = 0, ahead: bytes | None = None
    ) -> None:
        self.key = key
        self.fd = fd
        self.lane = lane
        self.cookie = cookie
        self.ahead = ahead
        """What has been read behind ``cookie`` already, as the kernel gives it; None: so much that it was not kept, and
        the stream must be put back first."""
        self.epoch = epoch
        """The inode's when it was opened: later ones may have other permissions."""
        self.ctime = ctime
        """The directory's before ``ahead`` was read: with another one it has other names. The epoch does not tell,
        since changes of our own leave it as it is."""


class Streams:
    """The pool. ``close(fd, lane)`` closes what is not kept."""

    def __init__(self, close: Callable[[int, int], None]) -> None:
        self._close = close
        self._all: OrderedDict[Stream, None] = OrderedDict()
        self._of: dict[_Key, list[Stream]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def take(self, credential: Credential, directory: Node, cookie: int, ctime: int) -> Stream | None:
        """An open stream of the directory that goes on behind ``cookie``; it is the caller's then. ``ctime`` is the
        directory's now."""
        for stream in self._of.get((directory.key, credential), ()):
            if stream.cookie == cookie:
                self._drop(stream)
                if stream.epoch == directory.inode.epoch:
                    if stream.ctime != ctime:
                        stream.ahead = None
                    return stream
                self._close(stream.fd, stream.lane)
                break
        return None

    def keep(self, stream: Stream) -> None:
        """Nobody reads the stream any more."""
        same = self._of.get(stream.key)
        if same is not None and len(same) >= _OF_ONE_CALLER:
            self._shut(same[0])
        elif len(self._all) >= _LIMIT:
            self._shut(next(iter(self._all)))
        self._all[stream] = None
        self._of.setdefault(stream.key, []).append(stream)

    def clear(self) -> None:
        """Close all of them."""
        for stream in list(self._all):
            self._shut(stream)

    def _drop(self, stream: Stream) -> None:
        del self._all[stream]
        same = self._of[stream.key]
        same.remove(stream)
        if not same:
            del self._of[stream.key]

    def _shut(self, stream: Stream) -> None:
        self._drop(stream)
        self._close(stream.fd, stream.lane)
