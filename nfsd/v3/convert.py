"""Between the VFS's vocabulary and NFSv3's types (RFC 1813 section 2.5).

Owns the conversions and the exact sizes of what they make; imports the declarations and the VFS's types only.
"""

from __future__ import annotations

from typing import Final

from nfsd.protocol.nfs3 import (
    fattr3,
    ftype3,
    nfsstat3,
    nfstime3,
    sattr3,
    specdata3,
    time_how,
    wcc_attr,
    wcc_data,
)
from nfsd.v3.errors import Nfs3Error
from nfsd.vfs.types import Attributes, Change, FileType, SetAttributes, SetTo, Time

OFFSET_MAX: Final = (1 << 63) - 1
"""The largest offset the kernel has (loff_t); NFSv3's offsets and sizes are unsigned."""
_UINT32_MAX: Final = 0xFFFFFFFF
_UINT64_MAX: Final = (1 << 64) - 1
_NO_ID: Final = 0xFFFFFFFF

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


def wcc(change: Change) -> wcc_data:
    """Attributes around an operation that succeeded."""
    before = change.before
    return wcc_data(wcc_attr(before.size, time3(before.mtime), time3(before.ctime)), fattr(change.after))


def wcc_after(after: fattr3 | None) -> wcc_data:
    """Attributes after an operation that failed. Nothing vouches for a moment before it, so none is claimed."""
    return wcc_data(None, after)


def set_attributes(wanted: sattr3) -> SetAttributes:
    """What to set. Raises Nfs3Error for what no file can have (INVAL, FBIG)."""
    mode = None if wanted.mode is None else wanted.mode & 0o7777
    size = wanted.size
    if size is not None and size > OFFSET_MAX:
        raise Nfs3Error(nfsstat3.NFS3ERR_FBIG)
    return SetAttributes(
        mode=mode,
        uid=_identity(wanted.uid),
        gid=_identity(wanted.gid),
        size=size,
        atime=_time_to_set(wanted.atime.set_it, wanted.atime.atime),
        mtime=_time_to_set(wanted.mtime.set_it, wanted.mtime.mtime),
    )


def _identity(number: int | None) -> int | None:
    """-1 means "leave it alone" to chown(), so nobody can own a file under it. A client that wants an owner to stay
    says so with set_it (RFC 1813 section 2.5): an OK would claim that the file has this owner now."""
    if number == _NO_ID:
        raise Nfs3Error(nfsstat3.NFS3ERR_INVAL)
    return number


def _time_to_set(how: time_how, time: nfstime3 | None) -> Time | SetTo | None:
    if how == time_how.SET_TO_SERVER_TIME:
        return SetTo.SERVER_TIME
    if how == time_how.SET_TO_CLIENT_TIME and time is not None:
        if time.nseconds > 999_999_999:
            raise Nfs3Error(nfsstat3.NFS3ERR_INVAL)
        return Time(time.seconds, time.nseconds)
    return None
