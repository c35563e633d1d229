"""A :class:`~nfsd.backends.simple.Status` as the ``struct statx`` that native code reads (statx(2)). Makes no call."""

from __future__ import annotations

import struct
from typing import Final

from nfsd.backends.simple import Status
from nfsd.vfs.attributes import statx_buffer
from nfsd.vfs.types import FileType

_BASIC: Final = 0x7FF
"""STATX_BASIC_STATS: all but a birth time."""
_HEAD: Final = struct.Struct("=II8xIIIH2xQQQ8x")
_TIME: Final = struct.Struct("=qI4x")
_DEVICE: Final = struct.Struct("=II")
_BLOCK: Final = 4096
_KINDS: Final = {
    FileType.FIFO: 0o010000, FileType.CHR: 0o020000, FileType.DIR: 0o040000, FileType.BLK: 0o060000,
    FileType.REG: 0o100000, FileType.LNK: 0o120000, FileType.SOCK: 0o140000,
}  # fmt: skip


def look_of(status: Status) -> bytearray:
    """The ``struct statx``, of device 0:0 and mount 0."""
    look = statx_buffer()
    _HEAD.pack_into(
        look, 0, _BASIC, _BLOCK, status.nlink, status.uid, status.gid, _KINDS[status.type] | status.mode & 0o7777,
        status.fileid, status.size, -(-status.size // _BLOCK) * (_BLOCK // 512),
    )  # fmt: skip
    ctime = status.mtime if status.ctime is None else status.ctime
    atime = status.mtime if status.atime is None else status.atime
    # atime, btime, ctime, mtime
    for at, time in ((64, atime), (96, ctime), (112, status.mtime)):
        _TIME.pack_into(look, at, *divmod(time, 1_000_000_000))
    _DEVICE.pack_into(look, 128, *status.rdev)
    return look
