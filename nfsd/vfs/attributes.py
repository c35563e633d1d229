"""From the kernel's ``struct statx`` to :class:`Attributes`. Owns nothing; makes no call."""

from __future__ import annotations

import stat
import struct
import time
from typing import TYPE_CHECKING, Final

from nfsd.vfs.change import ChangeRecord
from nfsd.vfs.syscalls import STATX_BTIME, STATX_SIZE_OF
from nfsd.vfs.types import Attributes, FileType, Time

if TYPE_CHECKING:
    from nfsd.vfs.mounts import Mount

_statx = struct.Struct("<IIQIIIHxxQQQQqIxxxxqIxxxxqIxxxxqIxxxxIIIIQ")
_mode_at = struct.Struct("<H")
_u32 = struct.Struct("<I")
_u64 = struct.Struct("<Q")
_ctime_at = struct.Struct("<qI")

STATX_ATTR_MOUNT_ROOT: Final = 0x2000

_TYPES: Final = {
    stat.S_IFREG: FileType.REG,
    stat.S_IFDIR: FileType.DIR,
    stat.S_IFBLK: FileType.BLK,
    stat.S_IFCHR: FileType.CHR,
    stat.S_IFLNK: FileType.LNK,
    stat.S_IFSOCK: FileType.SOCK,
    stat.S_IFIFO: FileType.FIFO,
}


def statx_buffer() -> bytearray:
    """Room for a ``struct statx``."""
    return bytearray(STATX_SIZE_OF)


def raw_type(buffer: bytearray) -> FileType:
    """The file's type."""
    return _TYPES.get(stat.S_IFMT(_mode_at.unpack_from(buffer, 28)[0]), FileType.REG)


def raw_nlink(buffer: bytearray) -> int:
    """The file's link count."""
    return int(_u32.unpack_from(buffer, 16)[0])


def raw_uid(buffer: bytearray) -> int:
    """The file's owner."""
    return int(_u32.unpack_from(buffer, 20)[0])


def raw_fileid(buffer: bytearray) -> int:
    """The inode number."""
    return int(_u64.unpack_from(buffer, 32)[0])


def raw_size(buffer: bytearray) -> int:
    """The file's size."""
    return int(_u64.unpack_from(buffer, 40)[0])


def raw_ctime(buffer: bytearray) -> int:
    """ctime in nanoseconds."""
    seconds, nanoseconds = _ctime_at.unpack_from(buffer, 96)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


def raw_device(buffer: bytearray) -> tuple[int, int]:
    """Major and minor number of the device the file is on."""
    return _u32.unpack_from(buffer, 136)[0], _u32.unpack_from(buffer, 140)[0]


def raw_mount(buffer: bytearray) -> int:
    """The id of the mount through which the file was reached."""
    return int(_u64.unpack_from(buffer, 144)[0])


def is_mount_root(buffer: bytearray) -> bool:
    """Whether the file is the root of a mount."""
    return bool(_u64.unpack_from(buffer, 8)[0] & STATX_ATTR_MOUNT_ROOT)


def attributes_of(buffer: bytearray, mount: Mount, record: ChangeRecord, *, changed: bool = False) -> Attributes:
    """The attributes in a filled ``struct statx``. ``changed``: the server changed the file since the last look."""
    (
        mask,
        _,
        flags,
        nlink,
        uid,
        gid,
        mode,
        ino,
        size,
        blocks,
        _,
        atime,
        atime_ns,
        btime,
        btime_ns,
        ctime,
        ctime_ns,
        mtime,
        mtime_ns,
        rdev_major,
        rdev_minor,
        dev_major,
        dev_minor,
        _,
    ) = _statx.unpack_from(buffer)
    fine = mount.fine
    return Attributes(
        _TYPES.get(stat.S_IFMT(mode), FileType.REG),
        mode & 0o7777,
        nlink,
        uid,
        gid,
        size,
        blocks << 9,
        (rdev_major, rdev_minor),
        mount.fsid if (dev_major, dev_minor) == mount.device else (mount.fsid[0], dev_major << 32 | dev_minor),
        ino,
        mount.mounted_on_fileid if flags & STATX_ATTR_MOUNT_ROOT and mount.mounted_on_fileid is not None else ino,
        Time(atime, atime_ns),
        Time(mtime, mtime_ns),
        Time(ctime, ctime_ns),
        Time(btime, btime_ns) if mask & STATX_BTIME else None,
        record.observe(ctime * 1_000_000_000 + ctime_ns, 0 if fine else time.time_ns(), fine=fine, changed=changed),
    )
