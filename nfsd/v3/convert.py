"""From the VFS's vocabulary to NFSv3's types (RFC 1813 section 2.5).

Owns the conversions and the exact sizes of what they make; imports the declarations and the VFS's types only.
"""

from __future__ import annotations

from typing import Final

from nfsd.protocol.nfs3 import (
    fattr3,
    ftype3,
    nfstime3,
    specdata3,
)
from nfsd.vfs.types import Attributes, FileType, Time

_UINT32_MAX: Final = 0xFFFFFFFF
_UINT64_MAX: Final = (1 << 64) - 1

FATTR3_SIZE: Final = 84
"""Octets of a fattr3: five words, size and used, rdev, fsid and fileid, three times."""

_TYPES: Final = {kind: ftype3(int(kind)) for kind in FileType}


def time3(time: Time) -> nfstime3:
    """The nearest time NFSv3 can say: its seconds are unsigned 32 bits (section 2.5), 1970 to 2106."""
    seconds, nanoseconds = time
    if seconds < 0:
        return nfstime3(0, 0)
    if seconds > _UINT32_MAX:
        return nfstime3(_UINT32_MAX, 999_999_999)
    return nfstime3(seconds, nanoseconds)


def fsid3(fsid: tuple[int, int]) -> int:
    """128 bits of file system identity in NFSv3's 64. An odd multiplier keeps (a, b) and (b, a) apart."""
    return (fsid[0] * 0x9E3779B97F4A7C15 + fsid[1]) & _UINT64_MAX


def fattr(attributes: Attributes) -> fattr3:
    """A file's attributes; specdata3 is zero for all but devices."""
    kind = attributes.type
    device = kind in (FileType.BLK, FileType.CHR)
    return fattr3(
        _TYPES[kind],
        attributes.mode & 0o7777,
        min(attributes.nlink, _UINT32_MAX),
        attributes.uid,
        attributes.gid,
        attributes.size,
        attributes.used,
        specdata3(*attributes.rdev) if device else specdata3(0, 0),
        fsid3(attributes.fsid),
        attributes.fileid,
        time3(attributes.atime),
        time3(attributes.mtime),
        time3(attributes.ctime),
    )
