"""NFSv4's attributes for a client: which are asked for, what they mean here, and how new values are written.

Owns no state; imports the protocol's declarations. RFC 8881 section 5. A server may leave out most attributes, and some
servers leave out those that they must not: Chimera has what its file system tells, and no more.
"""

from __future__ import annotations

import errno
import grp
import pwd
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from nfsd.client.errors import Untold
from nfsd.client.types import NOW, Changes, Space, Stat
from nfsd.protocol import nfs4 as p
from rpcrdma.xdr import Decoder, Encoder, XdrError

_BILLION: Final = 1_000_000_000
NOBODY: Final = 65534
_TYPES: Final = {
    p.nfs_ftype4.NF4REG: 0o100000, p.nfs_ftype4.NF4DIR: 0o040000, p.nfs_ftype4.NF4BLK: 0o060000,
    p.nfs_ftype4.NF4CHR: 0o020000, p.nfs_ftype4.NF4LNK: 0o120000, p.nfs_ftype4.NF4SOCK: 0o140000,
    p.nfs_ftype4.NF4FIFO: 0o010000, p.nfs_ftype4.NF4ATTRDIR: 0o040000, p.nfs_ftype4.NF4NAMEDATTR: 0o100000,
}  # fmt: skip
_WANTED: Final = (
    p.FATTR4_TYPE, p.FATTR4_SIZE, p.FATTR4_FSID, p.FATTR4_FILEID, p.FATTR4_MODE, p.FATTR4_NUMLINKS, p.FATTR4_OWNER,
    p.FATTR4_OWNER_GROUP, p.FATTR4_RAWDEV, p.FATTR4_SPACE_USED, p.FATTR4_TIME_ACCESS, p.FATTR4_TIME_METADATA,
    p.FATTR4_TIME_MODIFY,
)  # fmt: skip


def words(numbers: Sequence[int]) -> list[int]:
    """A bitmap4 with these bits set (RFC 8881 section 3.3.7)."""
    made = [0] * (max(numbers, default=-1) // 32 + 1)
    for number in numbers:
        made[number // 32] |= 1 << number % 32
    return made


STAT: Final = words(_WANTED)
"""What a Stat is made of."""
ENTRY: Final = words((*_WANTED, p.FATTR4_RDATTR_ERROR, p.FATTR4_FILEHANDLE))
"""What READDIR is asked for: a Stat and the handle, of each name for itself (RFC 8881 section 18.23.3)."""

_ROOM: Final = (
    p.FATTR4_SPACE_TOTAL, p.FATTR4_SPACE_FREE, p.FATTR4_SPACE_AVAIL, p.FATTR4_FILES_TOTAL, p.FATTR4_FILES_FREE,
    p.FATTR4_FILES_AVAIL,
)  # fmt: skip
SPACE: Final = words(_ROOM)
"""What a Space is made of."""


def values(attributes: p.fattr4) -> dict[int, Any]:
    """The values in a reply, by number. Raises OSError for what is none, as for one that was never asked for."""
    try:
        return _values(attributes)
    except XdrError as error:
        raise OSError(errno.EREMOTEIO, f"the server's attributes are none: {error}") from error


def _values(attributes: p.fattr4) -> dict[int, Any]:
    decoder = Decoder(attributes.attr_vals)
    found: dict[int, Any] = {}
    for index, word in enumerate(attributes.attrmask):
        for bit in range(32):
            if word >> bit & 1:
                number = index * 32 + bit
                if number not in p.ATTRIBUTE_TYPES:
                    raise XdrError(f"the server has sent attribute {number}, which was not asked for")
                found[number] = decoder.decode(p.ATTRIBUTE_TYPES[number])
    decoder.finish(strict=True)
    return found


def stat(attributes: p.fattr4) -> Stat:
    """A Stat from a reply. Raises OSError for what is none, and Untold."""
    return stat_of(values(attributes))


def stat_of(found: dict[int, Any]) -> Stat:
    """A Stat of what the server tells. Raises Untold without the type, and without a regular file's size: to take that
    for nothing would have a file read as empty, or overwritten at its beginning."""
    kind = _TYPES.get(found[p.FATTR4_TYPE]) if p.FATTR4_TYPE in found else None
    if kind is None:
        raise Untold("what kind of file it is")
    size = found.get(p.FATTR4_SIZE)
    if size is None:
        if kind == 0o100000:
            raise Untold("how long the file is")
        size = 0
    owner, group = _text(found.get(p.FATTR4_OWNER)), _text(found.get(p.FATTR4_OWNER_GROUP))
    device, fsid = found.get(p.FATTR4_RAWDEV), found.get(p.FATTR4_FSID)
    return Stat(
        st_mode=kind | found.get(p.FATTR4_MODE, 0o755 if kind == 0o040000 else 0o644) & 0o7777,
        st_ino=found.get(p.FATTR4_FILEID),
        st_nlink=found.get(p.FATTR4_NUMLINKS),
        st_uid=NOBODY if owner is None else user_number(owner),
        st_gid=NOBODY if group is None else group_number(group),
        st_size=size,
        st_blocks=(found.get(p.FATTR4_SPACE_USED, size) + 511) // 512,
        st_atime_ns=_nanoseconds(found.get(p.FATTR4_TIME_ACCESS)),
        st_mtime_ns=_nanoseconds(found.get(p.FATTR4_TIME_MODIFY)),
        st_ctime_ns=_nanoseconds(found.get(p.FATTR4_TIME_METADATA)),
        st_rdev=(device.specdata1, device.specdata2) if device is not None else (0, 0),
        fsid=None if fsid is None else (fsid.major, fsid.minor),
        owner=owner,
        group=group,
    )


def space_of(found: dict[int, Any]) -> Space:
    """A Space, of whatever the server supports."""
    return Space(*(found.get(number) for number in _ROOM))


def _nanoseconds(time: p.nfstime4 | None) -> int | None:
    return None if time is None else time.seconds * _BILLION + time.nseconds


def _text(name: bytes | None) -> str | None:
    return None if name is None else name.decode(errors="replace")


@lru_cache(4096)
def user_number(owner: str) -> int:
    """The uid that an owner string means on this host: a number, or the name before the ``@`` (RFC 8881 section 5.9).
    The domain is not compared: it is the server that decides who may what."""
    if owner.isdecimal():
        return int(owner)
    try:
        return pwd.getpwnam(owner.partition("@")[0]).pw_uid
    except KeyError:
        return NOBODY


@lru_cache(4096)
def group_number(group: str) -> int:
    """As :func:`user_number`, for groups."""
    if group.isdecimal():
        return int(group)
    try:
        return grp.getgrnam(group.partition("@")[0]).gr_gid
    except KeyError:
        return NOBODY


def fattr(changes: Changes) -> p.fattr4:
    """Changes as the values of a SETATTR, in the order of the attributes' numbers (RFC 8881 section 3.3.7)."""
    encoder = Encoder()
    numbers = []
    if changes.size is not None:
        numbers.append(p.FATTR4_SIZE)
        encoder.uint64(changes.size)
    if changes.mode is not None:
        numbers.append(p.FATTR4_MODE)
        encoder.uint32(changes.mode)
    for number, value in ((p.FATTR4_OWNER, changes.uid), (p.FATTR4_OWNER_GROUP, changes.gid)):
        if value is not None:
            # Numbers, as every server takes them with AUTH_SYS (RFC 8881 section 5.9, paragraph on numeric strings).
            numbers.append(number)
            encoder.opaque(str(value).encode())
    for number, value in (
        (p.FATTR4_TIME_ACCESS_SET, changes.atime_ns),
        (p.FATTR4_TIME_MODIFY_SET, changes.mtime_ns),
    ):
        if value is not None:
            numbers.append(number)
            encoder.encode(p.settime4, _settime(value))
    return p.fattr4(words(numbers), encoder.getvalue())


def _settime(value: int) -> p.settime4:
    if value == NOW:
        return p.settime4(p.time_how4.SET_TO_SERVER_TIME4)
    seconds, rest = divmod(value, _BILLION)
    return p.settime4(p.time_how4.SET_TO_CLIENT_TIME4, p.nfstime4(seconds, rest))
