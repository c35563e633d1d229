"""The vocabulary of the file service: what operations hand to the VFS and get back.

Declarations only; imports :mod:`nfsd.vfs.posix_acl`. Both NFS versions translate to and from these; errors are OSError
with an errno.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from nfsd.vfs.posix_acl import PosixAcl
from nfsd.vfs.records import Credential as Credential


class FileType(enum.IntEnum):
    """Numbered as in RFC 1813 (ftype3) and RFC 8881 (nfs_ftype4)."""

    REG = 1
    DIR = 2
    BLK = 3
    CHR = 4
    LNK = 5
    SOCK = 6
    FIFO = 7


class Time(NamedTuple):
    """Seconds since the epoch (may be negative) and nanoseconds (0..999999999)."""

    seconds: int
    nanoseconds: int


class Attributes(NamedTuple):
    """A file's attributes at one moment."""

    type: FileType
    mode: int
    """Permission bits only: mode & 0o7777."""
    nlink: int
    uid: int
    gid: int
    size: int
    used: int
    """Octets of storage."""
    rdev: tuple[int, int]
    fsid: tuple[int, int]
    """Two 64-bit numbers, stable over restarts, one pair per file system of each export."""
    fileid: int
    mounted_on_fileid: int
    atime: Time
    mtime: Time
    ctime: Time
    birthtime: Time | None
    change: int
    """64 bits; grows with every change of data or attributes, over restarts too."""


class SetTo(enum.Enum):
    """A time to be taken from the server's clock."""

    SERVER_TIME = 1


@dataclass(frozen=True, slots=True)
class SetAttributes:
    """Attributes to set; None leaves one alone."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    atime: Time | SetTo | None = None
    mtime: Time | SetTo | None = None
    access_acl: PosixAcl | None = None
    """Set after the mode."""
    default_acl: PosixAcl | None = None
    """Directories only; without entries: to have none."""
    label: bytes | None = None
    """A security label."""
    umask: int = 0
    """Creations only: bits the mode loses, unless the directory has a default ACL (RFC 8275 section 3)."""


class Change(NamedTuple):
    """A file's attributes around an operation, nothing of ours in between (wcc_data, change_info4)."""

    before: Attributes
    after: Attributes


class DirectoryEntry(NamedTuple):
    """One entry. ``handle`` and ``attributes`` are None where they were not asked for or could not be had."""

    name: bytes
    fileid: int
    cookie: int
    """Where to go on after this entry: 64 bits, never 0, 1 or 2, stable while the directory exists."""
    handle: bytes | None
    attributes: Attributes | None
    error: int = 0
    """The errno for which attributes could not be had: ENOENT when the entry has gone meanwhile."""


class DirectoryPage(NamedTuple):
    """Part of a directory."""

    entries: list[DirectoryEntry]
    eof: bool
    verifier: bytes
    """8 octets."""


class FileSystemStatus(NamedTuple):
    """Space and files, in octets and counts (RFC 1813 section 3.3.18)."""

    total_bytes: int
    free_bytes: int
    available_bytes: int
    total_files: int
    free_files: int
    available_files: int


class OwnerQuota(NamedTuple):
    """One user's or group's limits and use on a file system; a limit of 0 is none. Space in octets."""

    hard: int
    soft: int
    used: int
    hard_files: int
    soft_files: int
    used_files: int
    octets_deadline: int
    """Seconds since 1970 from when the soft limit holds; 0: it is not exceeded."""
    files_deadline: int


class Quota(NamedTuple):
    """Octets (RFC 8881 sections 5.8.2.28 to 5.8.2.30)."""

    available_hard: int
    available_soft: int
    used: int


class PathLimits(NamedTuple):
    """The truth about names and times on one file system (RFC 1813 sections 3.3.19 and 3.3.20)."""

    name_max: int
    link_max: int
    no_trunc: bool
    chown_restricted: bool
    case_insensitive: bool
    case_preserving: bool
    max_file_size: int
    time_delta: Time
    clone_block: int = 0
    """Offsets and lengths of clones are multiples of it; 0 where nothing can be cloned."""
    counts_changes: bool = True
    """Whether every change of a file, whoever makes it, shows in its change attribute (see ``change``)."""
    xattrs: bool = False
    """Whether files and directories may have extended attributes."""


@dataclass(frozen=True, slots=True)
class Features:
    """What files of one file system can have. Clients are told of what they cannot."""

    xattrs: bool
    """Extended attributes that users name (RFC 8276)."""
    acls: bool
    """POSIX ACLs, if not for symbolic links."""
    labels: bool
    """Security labels (RFC 7862 section 9)."""
    quotas: tuple[int, ...]
    """The kinds of quota that are enforced: 0 users', 1 groups'."""


class PartialChange(OSError):
    """Attributes could not be set, but ``made`` of them have been."""

    def __init__(self, number: int, text: str, made: SetAttributes) -> None:
        super().__init__(number, text)
        self.made = made


class BadHandle(Exception):
    """The octets are no handle of ours: forged, cut short or of another server. (A handle of a file that is
    gone raises OSError(ESTALE) instead.)"""


class CrossingRefused(Exception):
    """The name leads into another file system and the export's policy is not to cross."""


class Extent(NamedTuple):
    """A part of a file: its octets, or None for a hole, all of whose octets are zero."""

    offset: int
    length: int
    data: memoryview | None


class LocalLock(NamedTuple):
    """A byte-range lock held by a local process. ``length`` 0 reaches to the end of the file, however it grows."""

    exclusive: bool
    start: int
    length: int
    pid: int
