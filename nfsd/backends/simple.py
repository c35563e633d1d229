"""What a store in plain Python derives from: :class:`SimpleBackend`.

Owns the methods that the author of a plug-in writes (docs/backends.md), and what they are given and give; imports the
vocabulary only. They are synchronous. :mod:`nfsd.backends.keyed` calls them, from a pool of threads, checks permissions
by mode and owner, and turns their results into what the file service knows.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from nfsd.backends.interface import New as New
from nfsd.vfs.types import FileSystemStatus as FileSystemStatus
from nfsd.vfs.types import FileType as FileType
from nfsd.vfs.types import SetAttributes as SetAttributes
from nfsd.vfs.types import SetTo as SetTo
from nfsd.vfs.types import Time as Time

ROOM = 1 << 50
"""Octets of a store that does not say."""


def error(number: int) -> OSError:
    """The error with this errno."""
    return OSError(number, os.strerror(number))


@dataclass(frozen=True, slots=True)
class Status:
    """A file as it is now. Times are nanoseconds since 1970."""

    type: FileType
    fileid: int
    """1 to 2**64 - 1, no other file's."""
    mode: int = 0o644
    """Permission bits."""
    nlink: int = 1
    """0: it has no name any more."""
    uid: int = 0
    gid: int = 0
    size: int = 0
    mtime: int = 0
    ctime: int | None = None
    """When anything of it has changed, mode and names included; never goes back. None: as ``mtime``."""
    atime: int | None = None
    rdev: tuple[int, int] = (0, 0)


class Place(NamedTuple):
    """An entry of a directory."""

    name: bytes
    key: bytes
    cookie: int | None = None
    """3 to 2**63 - 1, the same as long as the entry exists, increasing in the order of the entries. None for all: they
    are made of the names."""


class SimpleBackend:
    """A store whose files go by keys: 1 to 40 octets, the same as long as the file exists.

    Methods run on ``threads`` threads, several at a time unless ``threads`` is 1. With ``at_once`` they run on the
    event loop: then they must not wait for anything. They raise OSError with the errno that a local process would get.
    Any other exception costs its call, with EIO. Changes of one directory, and of one file, come one at a time."""

    threads: ClassVar[int] = 4
    at_once: ClassVar[bool] = False
    writable: bool = False
    """False: whatever changes something is refused with EROFS."""
    xattrs: ClassVar[bool] = False
    """Whether files may have extended attributes."""
    shared: bool = False
    """Whether others than this server change the files: nothing is delegated to clients then."""
    identity: bytes = b""
    """What the store is called if its keys outlast the server; empty: clients' handles are stale when it restarts."""

    def __init__(self, **options: Any) -> None:
        """``options``: those of the export. Raises TypeError or ValueError for what is wrong with them."""
        if options:
            raise TypeError(f"no such option: {', '.join(sorted(options))}")

    def close(self) -> None:
        """It is not used any more."""

    # -- reading -------------------------------------------------------------------------------------------------
    def root(self) -> bytes:
        """The key of the root directory."""
        raise NotImplementedError

    def status(self, key: bytes) -> Status:
        """A file as it is. ENOENT or ESTALE when there is none."""
        raise NotImplementedError

    def lookup(self, directory: bytes, name: bytes) -> bytes:
        """The key of a directory's entry. ENOENT."""
        raise NotImplementedError

    def parent(self, directory: bytes) -> bytes:
        """The key of the directory above one that is not the root."""
        raise NotImplementedError

    def names(self, directory: bytes) -> Iterable[Place]:
        """The entries of a directory, without ``.`` and ``..``."""
        raise NotImplementedError

    def names_after(self, directory: bytes, cookie: int, most: int) -> list[Place] | None:
        """Up to ``most`` of the entries behind a cookie, in order; None: :meth:`names` has to be asked for all."""
        return None

    def read(self, key: bytes, offset: int, size: int) -> bytes | bytearray | memoryview:
        """Octets of a file: fewer than asked for at its end only."""
        raise NotImplementedError

    def read_into(self, key: bytes, offset: int, sink: memoryview) -> int:
        """The same, into memory that is not to be kept. Returns how many."""
        found = self.read(key, offset, len(sink))
        sink[: len(found)] = found
        return len(found)

    def readlink(self, key: bytes) -> bytes:
        """The text of a symbolic link."""
        raise error(errno.EINVAL)

    def space(self) -> FileSystemStatus:
        """How much room there is."""
        free = ROOM if self.writable else 0
        return FileSystemStatus(ROOM, free, free, 1 << 40, 1 << 39, 1 << 39)

    # -- changing ------------------------------------------------------------------------------------------------
    def make(self, directory: bytes, name: bytes, new: New, uid: int, gid: int) -> bytes:
        """Make a file of a name that is free; its key."""
        raise error(errno.EOPNOTSUPP)

    def remove(self, directory: bytes, name: bytes) -> None:
        """Remove a name. ENOTEMPTY of a directory with entries. What was removed last can be used by its key until
        :meth:`forget`."""
        raise error(errno.EOPNOTSUPP)

    def keep(self, key: bytes) -> None:
        """A file is open and about to lose its last name. What stores cannot read without one, they put by now. An
        OSError refuses the removal."""

    def forget(self, key: bytes) -> None:
        """A file without a name is not open any more."""

    def rename(self, directory: bytes, name: bytes, target: bytes, new_name: bytes) -> None:
        """Move an entry. What has the new name, a file or an empty directory as the old one, is replaced."""
        raise error(errno.EOPNOTSUPP)

    def link(self, key: bytes, directory: bytes, name: bytes) -> None:
        """A further name, which is free, for a file."""
        raise error(errno.EOPNOTSUPP)

    def write(self, key: bytes, offset: int, data: bytes) -> int:
        """Write; how many octets. Behind the end, zeros come before them."""
        raise error(errno.EOPNOTSUPP)

    def set_attributes(self, key: bytes, changes: SetAttributes) -> None:
        """Set mode, owner, group, size and times, as far as they are not None."""
        raise error(errno.EOPNOTSUPP)

    def sync(self, key: bytes) -> None:
        """What has been done to a file so far outlasts a crash."""

    # -- extended attributes -------------------------------------------------------------------------------------
    def get_xattr(self, key: bytes, name: bytes) -> bytes:
        """A value. ENODATA."""
        raise error(errno.EOPNOTSUPP)

    def list_xattrs(self, key: bytes) -> list[bytes]:
        """All names."""
        raise error(errno.EOPNOTSUPP)

    def set_xattr(self, key: bytes, name: bytes, value: bytes) -> None:
        """Set one, whether it is there or not."""
        raise error(errno.EOPNOTSUPP)

    def remove_xattr(self, key: bytes, name: bytes) -> None:
        """Remove one. ENODATA."""
        raise error(errno.EOPNOTSUPP)
