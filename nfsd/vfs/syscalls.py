"""Numbers and structures of the Linux system calls the file service makes.

Owns nothing; imports nothing of the project. Layouts are those of the kernel's uapi headers, which are the same on all
64-bit architectures; only the call numbers differ.
"""

from __future__ import annotations

import os
import struct
from typing import Final

_X86_64: Final = {
    "lseek": 8,
    "pread64": 17,
    "pwrite64": 18,
    "ioctl": 16,
    "fcntl": 72,
    "fsync": 74,
    "fdatasync": 75,
    "ftruncate": 77,
    "fstatfs": 138,
    "getdents64": 217,
    "openat": 257,
    "mkdirat": 258,
    "mknodat": 259,
    "fchownat": 260,
    "unlinkat": 263,
    "linkat": 265,
    "symlinkat": 266,
    "readlinkat": 267,
    "fchmodat": 268,
    "utimensat": 280,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "syncfs": 306,
    "renameat2": 316,
    "statx": 332,
    "close": 3,
    "openat2": 437,
    "signalfd4": 289,
    "fanotify_init": 300,
    "fanotify_mark": 301,
    "inotify_add_watch": 254,
    "inotify_init1": 294,
    "inotify_rm_watch": 255,
    "faccessat2": 439,
    "fallocate": 285,
    "copy_file_range": 326,
    "fadvise64": 221,
    "setxattr": 188,
    "getxattr": 191,
    "listxattr": 194,
    "removexattr": 197,
}
_GENERIC: Final = {
    "lseek": 62,
    "pread64": 67,
    "pwrite64": 68,
    "ioctl": 29,
    "fcntl": 25,
    "fsync": 82,
    "fdatasync": 83,
    "ftruncate": 46,
    "fstatfs": 44,
    "getdents64": 61,
    "openat": 56,
    "mkdirat": 34,
    "mknodat": 33,
    "fchownat": 54,
    "unlinkat": 35,
    "linkat": 37,
    "symlinkat": 36,
    "readlinkat": 78,
    "fchmodat": 53,
    "utimensat": 88,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "syncfs": 267,
    "renameat2": 276,
    "statx": 291,
    "close": 57,
    "openat2": 437,
    "signalfd4": 74,
    "fanotify_init": 262,
    "fanotify_mark": 263,
    "inotify_add_watch": 27,
    "inotify_init1": 26,
    "inotify_rm_watch": 28,
    "faccessat2": 439,
    "fallocate": 47,
    "copy_file_range": 285,
    "fadvise64": 223,
    "setxattr": 5,
    "getxattr": 8,
    "listxattr": 11,
    "removexattr": 14,
}
_NUMBERS: Final = _X86_64 if os.uname().machine == "x86_64" else _GENERIC
"""aarch64 and riscv64 share the generic table; nothing else is supported."""

SYS_LSEEK: Final = _NUMBERS["lseek"]
SYS_PREAD64: Final = _NUMBERS["pread64"]
SYS_PWRITE64: Final = _NUMBERS["pwrite64"]
SYS_IOCTL: Final = _NUMBERS["ioctl"]
SYS_FCNTL: Final = _NUMBERS["fcntl"]
SYS_FSYNC: Final = _NUMBERS["fsync"]
SYS_FDATASYNC: Final = _NUMBERS["fdatasync"]
SYS_FTRUNCATE: Final = _NUMBERS["ftruncate"]
SYS_FSTATFS: Final = _NUMBERS["fstatfs"]
SYS_GETDENTS64: Final = _NUMBERS["getdents64"]
SYS_OPENAT: Final = _NUMBERS["openat"]
SYS_MKDIRAT: Final = _NUMBERS["mkdirat"]
SYS_MKNODAT: Final = _NUMBERS["mknodat"]
SYS_FCHOWNAT: Final = _NUMBERS["fchownat"]
SYS_UNLINKAT: Final = _NUMBERS["unlinkat"]
SYS_LINKAT: Final = _NUMBERS["linkat"]
SYS_SYMLINKAT: Final = _NUMBERS["symlinkat"]
SYS_READLINKAT: Final = _NUMBERS["readlinkat"]
SYS_FCHMODAT: Final = _NUMBERS["fchmodat"]
SYS_UTIMENSAT: Final = _NUMBERS["utimensat"]
SYS_NAME_TO_HANDLE_AT: Final = _NUMBERS["name_to_handle_at"]
SYS_OPEN_BY_HANDLE_AT: Final = _NUMBERS["open_by_handle_at"]
SYS_SYNCFS: Final = _NUMBERS["syncfs"]
SYS_RENAMEAT2: Final = _NUMBERS["renameat2"]
SYS_STATX: Final = _NUMBERS["statx"]
SYS_CLOSE: Final = _NUMBERS["close"]
SYS_OPENAT2: Final = _NUMBERS["openat2"]
SYS_SIGNALFD4: Final = _NUMBERS["signalfd4"]
SYS_FANOTIFY_INIT: Final = _NUMBERS["fanotify_init"]
SYS_FANOTIFY_MARK: Final = _NUMBERS["fanotify_mark"]
SYS_INOTIFY_ADD_WATCH: Final = _NUMBERS["inotify_add_watch"]
SYS_INOTIFY_INIT1: Final = _NUMBERS["inotify_init1"]
SYS_INOTIFY_RM_WATCH: Final = _NUMBERS["inotify_rm_watch"]
SYS_FACCESSAT2: Final = _NUMBERS["faccessat2"]
SYS_FALLOCATE: Final = _NUMBERS["fallocate"]
SYS_COPY_FILE_RANGE: Final = _NUMBERS["copy_file_range"]
SYS_FADVISE64: Final = _NUMBERS["fadvise64"]
SYS_SETXATTR: Final = _NUMBERS["setxattr"]
SYS_GETXATTR: Final = _NUMBERS["getxattr"]
SYS_LISTXATTR: Final = _NUMBERS["listxattr"]
SYS_REMOVEXATTR: Final = _NUMBERS["removexattr"]
SYS_QUOTACTL_FD: Final = 443
"""Everywhere; since Linux 5.14."""
SYS_CACHESTAT: Final = 451
"""Everywhere; since Linux 6.5."""

AT_FDCWD: Final = -100
AT_SYMLINK_NOFOLLOW: Final = 0x100
AT_REMOVEDIR: Final = 0x200
AT_EACCESS: Final = 0x200
AT_SYMLINK_FOLLOW: Final = 0x400
AT_EMPTY_PATH: Final = 0x1000
AT_HANDLE_FID: Final = 0x200
"""Of name_to_handle_at, since Linux 6.5: the handle is only to tell the file from others."""

O_PATH: Final = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
"""How a file is named without being opened: never through a symbolic link."""

RESOLVE_NO_XDEV: Final = 0x01
RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_BENEATH: Final = 0x08
RESOLVE_CACHED: Final = 0x20
RESOLVE_COMPONENT: Final = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS
"""One name below a directory, and nowhere else."""

OPEN_HOW_SIZE: Final = 24

STATX_MASK: Final = 0x7FF | 0x800 | 0x1000
"""Basic statistics, birth time and mount id."""


UTIME_NOW: Final = (1 << 30) - 1
UTIME_OMIT: Final = (1 << 30) - 2

F_OFD_GETLK: Final = 36
F_OFD_SETLK: Final = 37
F_RDLCK: Final = 0
F_WRLCK: Final = 1
F_UNLCK: Final = 2

MAX_HANDLE: Final = 128


class Naming:
    """How files of a mount are told apart: flags for name_to_handle_at, or none."""

    HANDLE: Final = AT_EMPTY_PATH
    """By the handles that open_by_handle_at takes."""
    FID: Final = AT_EMPTY_PATH | AT_HANDLE_FID
    """By handles that only tell them apart, generation included where there is one."""
    NUMBER: Final = 0
    """By inode number."""


NUMBERED: Final = 0xFD
"""Stands for the kernel's type of handle where files are told apart by inode number. The kernel has none such."""
FUSE_MAGIC: Final = 0x65735546
OVERLAY_MAGIC: Final = 0x794C7630
FS_IOC_GETFLAGS: Final = 0x80086601
FS_CASEFOLD_FL: Final = 0x40000000
FS_IOC_GETFSUUID: Final = 0x80111500
FICLONERANGE: Final = 0x4020940D
FALLOC_FL_KEEP_SIZE: Final = 0x01
FALLOC_FL_PUNCH_HOLE: Final = 0x02
POSIX_FADV_WILLNEED: Final = 3
POSIX_FADV_DONTNEED: Final = 4
XATTR_CREATE: Final = 1
XATTR_REPLACE: Final = 2
XATTR_NAME_MAX: Final = 255
XATTR_SIZE_MAX: Final = 65536
XATTR_LIST_MAX: Final = 65536
ACCESS_READ: Final = 4
ACCESS_WRITE: Final = 2
ACCESS_EXECUTE: Final = 1

TMPFS_MAGIC: Final = 0x01021994
RAMFS_MAGIC: Final = 0x858458F6
EXT_MAGIC: Final = 0xEF53
XFS_MAGIC: Final = 0x58465342
BTRFS_MAGIC: Final = 0x9123683E
F2FS_MAGIC: Final = 0xF2F52010
MSDOS_MAGIC: Final = 0x4D44
EXFAT_MAGIC: Final = 0x2011BAB0

OFFSET_MAX: Final = (1 << 63) - 1

_open_how = struct.Struct("<QQQ")
_timespec_pair = struct.Struct("<qqqq")
_flock = struct.Struct("<hhxxxxqqixxxx")
_statfs = struct.Struct("<qqQQQQQiiqqq")
_dirent = struct.Struct("<QQHB")
_handle_head = struct.Struct("<Ii")
_clone_range = struct.Struct("<qQQQ")
_offset = struct.Struct("<q")
_number = struct.Struct(">QII")


def open_how(flags: int, mode: int = 0, resolve: int = RESOLVE_COMPONENT) -> bytes:
    """A ``struct open_how``."""
    return _open_how.pack(flags, mode, resolve)


def timespecs(atime: tuple[int, int], mtime: tuple[int, int]) -> bytes:
    """The two ``struct timespec`` of utimensat."""
    return _timespec_pair.pack(*atime, *mtime)


def clone_range(source: int, source_offset: int, length: int, target_offset: int) -> bytes:
    """A ``struct file_clone_range``."""
    return _clone_range.pack(source, source_offset, length, target_offset)


def offset_buffer(offset: int) -> bytearray:
    """A ``loff_t`` the kernel may advance."""
    return bytearray(_offset.pack(offset))


def flock(kind: int, start: int, length: int) -> bytearray:
    """A ``struct flock`` for open file description locks (whose pid must be 0)."""
    return bytearray(_flock.pack(kind, os.SEEK_SET, start, length, 0))


def parse_flock(buffer: bytearray) -> tuple[int, int, int, int]:
    """(kind, start, length, pid)."""
    kind, _, start, length, pid = _flock.unpack_from(buffer)
    return kind, start, length, pid


def statfs_buffer() -> bytearray:
    """Room for a ``struct statfs``."""
    return bytearray(120)


def parse_statfs(buffer: bytearray) -> tuple[int, int, int, int, int, int, int, bytes, int, int]:
    """(type, block size, blocks, free, available, files, files free, fsid, name_max, fragment size)."""
    kind, bsize, blocks, free, available, files, ffree, fsid0, fsid1, namelen, frsize, _ = _statfs.unpack_from(buffer)
    fsid = struct.pack("<ii", fsid0, fsid1)
    return kind & 0xFFFFFFFF, bsize, blocks, free, available, files, ffree, fsid, namelen, frsize or bsize


def handle_buffer() -> bytearray:
    """A ``struct file_handle`` with room for the largest handle."""
    buffer = bytearray(8 + MAX_HANDLE)
    buffer[0] = MAX_HANDLE
    return buffer


def parse_handle(buffer: bytearray) -> tuple[int, bytes]:
    """(type, octets) of a ``struct file_handle`` the kernel filled in."""
    length, kind = _handle_head.unpack_from(buffer)
    return kind, bytes(buffer[8 : 8 + length])


def pack_handle(kind: int, octets: bytes) -> bytes:
    """A ``struct file_handle``."""
    return _handle_head.pack(len(octets), kind) + octets


def numbered(fileid: int, device: tuple[int, int], usual: tuple[int, int]) -> tuple[int, bytes]:
    """(type, octets) that stand for a kernel handle where files are told apart by inode number; and by device, where it
    is not the ``usual`` one of their mount: the layers of an overlay may number theirs apart."""
    major, minor = (0, 0) if device == usual else device
    return NUMBERED, _number.pack(fileid, major, minor)


def parse_dirents(buffer: memoryview, length: int) -> list[tuple[bytes, int, int]]:
    """(name, inode number, d_off) of each ``struct linux_dirent64``."""
    entries = []
    position = 0
    while position < length:
        ino, offset, size, _ = _dirent.unpack_from(buffer, position)
        name = bytes(buffer[position + 19 : position + size])
        entries.append((name[: name.index(0)], ino, offset))
        position += size
    return entries


LABEL_NAME: Final = b"security.selinux"
LABEL_MAX: Final = 2048
"""Octets of a label; as long as Linux clients take (NFS4_MAXLABELLEN)."""
XATTR_PREFIX: Final = b"user."


def descriptor_path(descriptor: int) -> bytes:
    """The name of a descriptor for calls that take only names; a symbolic link's is the link's own. (Those that take
    descriptors refuse what only names a file, as with O_PATH.)"""
    return b"/proc/self/fd/%d" % descriptor
