"""What NFSv3 and NFSv4 have in common for a client: attributes, names of a directory, the operations of one version.

Owns :class:`Stat`, :class:`Space`, :class:`Found`, :class:`Changes` and the protocol :class:`Backend`; imports
nothing of the project.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

DONT_CHANGE: None = None
NOW = -1
"""A time to be set to the server's clock."""


@dataclass(frozen=True, slots=True)
class Stat:
    """A file's attributes, under the names of :class:`os.stat_result`. None: the server does not tell, which is allowed
    to servers of NFSv4 for all but a few (RFC 8881 section 5.6)."""

    st_mode: int
    """Type and permissions, for the functions of :mod:`stat`. Where the server tells no permissions: 0755 for
    directories, 0644 for the rest."""
    st_ino: int | None
    st_nlink: int | None
    st_uid: int
    """The owner; 65534 where the server names none, or one whose number is not known here."""
    st_gid: int
    st_size: int
    """Always told of regular files."""
    st_blocks: int
    """Units of 512 octets."""
    st_atime_ns: int | None
    st_mtime_ns: int | None
    st_ctime_ns: int | None
    st_rdev: tuple[int, int]
    """Major and minor number of a device."""
    fsid: tuple[int, int] | None
    """The file system, as the server tells them apart."""
    owner: str | None
    """As the server names it: a number, or ``user@domain``."""
    group: str | None

    @property
    def st_mtime(self) -> float | None:
        """Seconds."""
        return None if self.st_mtime_ns is None else self.st_mtime_ns / 1e9


@dataclass(frozen=True, slots=True)
class Space:
    """A file system's room: octets, and numbers of files. None where the server does not tell."""

    total: int | None
    free: int | None
    available: int | None
    """What this user may still fill: less than ``free`` where some is reserved."""
    files: int | None
    files_free: int | None
    files_available: int | None


@dataclass(frozen=True, slots=True)
class Found:
    """A file: its handle and its attributes."""

    handle: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class Name:
    """One name in a directory; what the server did not tell with it is None."""

    name: bytes
    handle: bytes | None
    stat: Stat | None


@dataclass(frozen=True, slots=True)
class Changes:
    """Attributes to be set; None: left as they are. Times are nanoseconds, or :data:`NOW`."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None


class Opened(Protocol):
    """An open file of a backend."""

    handle: bytes


class Backend(Protocol):
    """The operations of one NFS version on handles and names. Errors are OSError, without a path."""

    version: str
    """``3`` or ``4.1``."""
    read_size: int
    """Octets of one READ, at most."""
    write_size: int
    depth: int
    """Calls worth having in flight for one file."""

    async def attach(self, names: Sequence[bytes]) -> tuple[bytes, Sequence[bytes]]:
        """The handle of the directory where the server's path ``names`` begins for us, and the rest of the path."""

    async def getattr(self, handle: bytes) -> Stat:
        """A file's attributes."""

    async def setattr(self, handle: bytes, changes: Changes, opened: Any = None) -> None:
        """Set attributes."""

    async def space(self, handle: bytes) -> Space:
        """The room of the file system that a file is in."""

    async def lookup(self, directory: bytes, name: bytes) -> Found:
        """A name; ``..`` is the parent. Symbolic links are not followed."""

    async def readlink(self, handle: bytes) -> bytes:
        """A symbolic link's text."""

    def readdir(self, directory: bytes) -> AsyncIterator[Name]:
        """All names but ``.`` and ``..``, in the server's order."""

    async def create(self, directory: bytes, name: bytes, mode: int, *, exclusive: bool) -> tuple[Any, Stat | None]:
        """Create a regular file, or open the one there is unless ``exclusive``; open for reading and writing."""

    async def open(self, found: bytes, *, write: bool) -> Any:
        """Open a regular file by its handle."""

    async def read(self, opened: Any, offset: int, into: memoryview) -> tuple[int, bool]:
        """Read into a buffer of at most ``read_size`` octets: how many, and whether the file ends there."""

    async def write(self, opened: Any, offset: int, data: bytes | memoryview) -> tuple[int, bytes | None]:
        """Write at most ``write_size`` octets: how many were taken, and the verifier, or None if they are stable."""

    async def commit(self, opened: Any) -> bytes:
        """Have everything written to the file on stable storage; the verifier."""

    async def release(self, opened: Any) -> None:
        """Close."""

    async def mkdir(self, directory: bytes, name: bytes, mode: int) -> bytes | None:
        """Make a directory; its handle if the server tells it."""

    async def symlink(self, directory: bytes, name: bytes, text: bytes) -> None:
        """Make a symbolic link."""

    async def link(self, handle: bytes, directory: bytes, name: bytes) -> None:
        """Give a file another name."""

    async def remove(self, directory: bytes, name: bytes) -> None:
        """Remove what is no directory."""

    async def rmdir(self, directory: bytes, name: bytes) -> None:
        """Remove an empty directory."""

    async def rename(self, source: bytes, old: bytes, target: bytes, new: bytes) -> None:
        """Rename, replacing what has the new name."""

    async def close(self) -> None:
        """Give up what the server keeps for this client, and the connection."""
