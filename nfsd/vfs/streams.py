"""Directories open for reading, kept for the call that goes on where the last one ended.

Owns the descriptors of those that nobody is reading: few of one caller and directory, and when there are too many in
all, the first goes of the host that has most, of the network that has most (:mod:`rpcrdma.networks`).

Opening a directory anew and seeking costs more than a short listing, and a large directory is listed in many calls. A
stream goes on where it is or a little before, and is put nowhere else: after a seek to the end, ext4 finds nothing at
the beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from nfsd.vfs.records import Node
from nfsd.vfs.types import Credential
from rpcrdma.networks import Part, Tree

_LIMIT = 256
_OF_ONE_CALLER = 16
"""Of one directory and one caller: as many clients may list it at once without getting in each other's way."""

_Key = tuple[bytes, Credential]
"""Directory and caller."""


class Stream:
    """An open directory, and behind which entry it is to go on."""

    __slots__ = ("ahead", "cookie", "ctime", "epoch", "fd", "host", "key", "lane")

    def __init__(
        self, key: _Key, fd: int, epoch: int, lane: int, cookie: int, *, ctime: int = 0, ahead: bytes | None = None
    ) -> None:
        self.key = key
        self.host = key[1].host
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


class _Part(Part["_Part"]):
    """A network, or a host, with its streams."""

    __slots__ = ("streams",)

    def __init__(self, key: str, parent: _Part | None, floor: int = 1) -> None:
        super().__init__(key, parent, floor)
        self.streams: OrderedDict[Stream, None] = OrderedDict()
        """Of a host, those kept longest first."""


class Streams:
    """The pool. ``close(fd, lane)`` closes what is not kept."""

    def __init__(self, close: Callable[[int, int], None]) -> None:
        self._close = close
        self._all: OrderedDict[Stream, None] = OrderedDict()
        self._of: dict[tuple[_Key, str], list[Stream]] = {}
        self._networks: Tree[_Part] = Tree(_Part, 1, 1, 1)
        self._hosts: dict[str, _Part] = {}

    def __len__(self) -> int:
        return len(self._all)

    def take(self, credential: Credential, directory: Node, cookie: int, ctime: int) -> Stream | None:
        """An open stream of the directory that goes on behind ``cookie``; it is the caller's then. ``ctime`` is the
        directory's now."""
        for stream in self._of.get(((directory.key, credential), credential.host), ()):
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
        same = self._of.get((stream.key, stream.host))
        if same is not None and len(same) >= _OF_ONE_CALLER:
            self._shut(same[0])
        elif len(self._all) >= _LIMIT:
            self._shut(next(iter(self._fullest().streams)))
        host = self._hosts.get(stream.host)
        if host is None:
            host = self._hosts[stream.host] = _Part(stream.host, self._networks.of(stream.host))
        host.streams[stream] = None
        host.grow()
        host.find()
        self._all[stream] = None
        self._of.setdefault((stream.key, stream.host), []).append(stream)

    def clear(self) -> None:
        """Close all of them."""
        for stream in list(self._all):
            self._shut(stream)

    def _fullest(self) -> _Part:
        """The host that has most, of the network that has most."""
        part = self._networks.everybody
        while part.most:
            part = part.fullest()
        return part

    def _drop(self, stream: Stream) -> None:
        del self._all[stream]
        host = self._hosts[stream.host]
        del host.streams[stream]
        host.shrink()
        if not host.streams:
            host.hide()
            del self._hosts[stream.host]
        same = self._of[stream.key, stream.host]
        same.remove(stream)
        if not same:
            del self._of[stream.key, stream.host]

    def _shut(self, stream: Stream) -> None:
        self._drop(stream)
        self._close(stream.fd, stream.lane)
