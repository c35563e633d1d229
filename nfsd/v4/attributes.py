"""NFSv4 attributes: one row for each, encoded from facts of the file service (RFC 7530 section 5, RFC 8881 section 5).

Owns the table, the bitmaps and their two directions: :func:`encode` for GETATTR, READDIR and friends, :func:`decode`
for SETATTR, CREATE and OPEN. A bitmap is a Python int, bit n standing for attribute n. Imports the protocol's numbers
and the VFS's types; the codec does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from nfsd.protocol import nfs4 as p
from nfsd.vfs.types import Attributes, FileSystemStatus, PathLimits, SetAttributes, SetTo, Time
from rpcrdma.xdr import Decoder, Encoder, XdrError


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is the same for every file."""

    lease_time: int
    """Seconds."""
    max_read: int
    max_write: int


class Facts:
    """What the attributes of one file are computed from; the costlier parts only where a bitmap asks for them."""

    __slots__ = ("attributes", "error", "handle", "limits", "minor", "server", "status")

    def __init__(
        self,
        server: ServerFacts,
        minor: int,
        attributes: Attributes,
        handle: bytes,
        status: FileSystemStatus | None = None,
        limits: PathLimits | None = None,
    ) -> None:
        self.server = server
        self.minor = minor
        self.attributes = attributes
        self.handle = handle
        self.status = status
        self.limits = limits
        self.error = 0


Write = Callable[[Encoder, Facts], None]


def mask_of(words: list[int]) -> int:
    """A bitmap4 as an int."""
    mask = 0
    for index, word in enumerate(words):
        mask |= word << (32 * index)
    return mask


def words_of(mask: int) -> list[int]:
    """An int as a bitmap4, without trailing zero words."""
    words = []
    while mask:
        words.append(mask & 0xFFFFFFFF)
        mask >>= 32
    return words


def _bits(*numbers: int) -> int:
    return sum(1 << number for number in numbers)


# -- what can be asked for --------------------------------------------------------------------------------------------
def _time(encoder: Encoder, time: Time) -> None:
    encoder.int64(time.seconds)
    encoder.uint32(time.nanoseconds)


def _status(facts: Facts) -> FileSystemStatus:
    assert facts.status is not None, "NEED_STATUS is out of step with the table"
    return facts.status


def _limits(facts: Facts) -> PathLimits:
    assert facts.limits is not None, "NEED_LIMITS is out of step with the table"
    return facts.limits


def _number(value: Callable[[Facts], int]) -> Write:
    return lambda encoder, facts: encoder.uint32(value(facts))


def _hyper(value: Callable[[Facts], int]) -> Write:
    return lambda encoder, facts: encoder.uint64(value(facts))


def _truth(value: Callable[[Facts], bool]) -> Write:
    return lambda encoder, facts: encoder.boolean(value(facts))


def _supported(encoder: Encoder, facts: Facts) -> None:
    encode_mask(encoder, supported(facts.minor))


def _exclusive_create(encoder: Encoder, facts: Facts) -> None:
    encode_mask(encoder, EXCLUSIVE_CREATE & supported(facts.minor))


def _fsid(encoder: Encoder, facts: Facts) -> None:
    major, minor = facts.attributes.fsid
    encoder.uint64(major)
    encoder.uint64(minor)


def _rawdev(encoder: Encoder, facts: Facts) -> None:
    major, minor = facts.attributes.rdev
    encoder.uint32(major)
    encoder.uint32(minor)


def _birthtime(encoder: Encoder, facts: Facts) -> None:
    # A file system without birth times answers with the oldest time it has; the attribute is not then advertised
    # per file, since SUPPORTED_ATTRS speaks for the whole server.
    made = facts.attributes.birthtime
    _time(encoder, made if made is not None else min(facts.attributes.mtime, facts.attributes.ctime))


def _owner(value: Callable[[Facts], int]) -> Write:
    # RFC 7530 section 5.9: with AUTH_SYS a numeric string stands for the number itself, which is what Linux sends.
    return lambda encoder, facts: encoder.opaque(b"%d" % value(facts))


_SETTABLE_ONLY = _bits(
    p.FATTR4_TIME_ACCESS_SET, p.FATTR4_TIME_MODIFY_SET, p.FATTR4_MODE_SET_MASKED, p.FATTR4_MODE_UMASK
)
SETTABLE = _SETTABLE_ONLY | _bits(p.FATTR4_SIZE, p.FATTR4_MODE, p.FATTR4_OWNER, p.FATTR4_OWNER_GROUP)
"""What SETATTR and creations take."""
EXCLUSIVE_CREATE = SETTABLE & ~_bits(p.FATTR4_TIME_ACCESS_SET, p.FATTR4_TIME_MODIFY_SET, p.FATTR4_MODE_SET_MASKED)
"""What EXCLUSIVE4_1 takes: the times keep the verifier (RFC 8881 section 18.16.3)."""
_TABLE: dict[int, Write] = {
    p.FATTR4_SUPPORTED_ATTRS: _supported,
    p.FATTR4_TYPE: _number(lambda f: f.attributes.type),
    p.FATTR4_FH_EXPIRE_TYPE: _number(lambda f: p.FH4_PERSISTENT),
    p.FATTR4_CHANGE: _hyper(lambda f: f.attributes.change),
    p.FATTR4_SIZE: _hyper(lambda f: f.attributes.size),
    p.FATTR4_LINK_SUPPORT: _truth(lambda f: True),
    p.FATTR4_SYMLINK_SUPPORT: _truth(lambda f: True),
    p.FATTR4_NAMED_ATTR: _truth(lambda f: False),
    p.FATTR4_FSID: _fsid,
    p.FATTR4_UNIQUE_HANDLES: _truth(lambda f: True),
    p.FATTR4_LEASE_TIME: _number(lambda f: f.server.lease_time),
    p.FATTR4_RDATTR_ERROR: _number(lambda f: f.error),
    p.FATTR4_ACLSUPPORT: _number(lambda f: 0),
    p.FATTR4_CANSETTIME: _truth(lambda f: True),
    p.FATTR4_CASE_INSENSITIVE: _truth(lambda f: _limits(f).case_insensitive),
    p.FATTR4_CASE_PRESERVING: _truth(lambda f: _limits(f).case_preserving),
    p.FATTR4_CHOWN_RESTRICTED: _truth(lambda f: _limits(f).chown_restricted),
    p.FATTR4_FILEHANDLE: lambda encoder, f: encoder.opaque(f.handle),
    p.FATTR4_FILEID: _hyper(lambda f: f.attributes.fileid),
    p.FATTR4_FILES_AVAIL: _hyper(lambda f: _status(f).available_files),
    p.FATTR4_FILES_FREE: _hyper(lambda f: _status(f).free_files),
    p.FATTR4_FILES_TOTAL: _hyper(lambda f: _status(f).total_files),
    p.FATTR4_HOMOGENEOUS: _truth(lambda f: True),
    p.FATTR4_MAXFILESIZE: _hyper(lambda f: _limits(f).max_file_size),
    p.FATTR4_MAXLINK: _number(lambda f: _limits(f).link_max),
    p.FATTR4_MAXNAME: _number(lambda f: _limits(f).name_max),
    p.FATTR4_MAXREAD: _hyper(lambda f: f.server.max_read),
    p.FATTR4_MAXWRITE: _hyper(lambda f: f.server.max_write),
    p.FATTR4_MODE: _number(lambda f: f.attributes.mode),
    p.FATTR4_NO_TRUNC: _truth(lambda f: _limits(f).no_trunc),
    p.FATTR4_NUMLINKS: _number(lambda f: f.attributes.nlink),
    p.FATTR4_OWNER: _owner(lambda f: f.attributes.uid),
    p.FATTR4_OWNER_GROUP: _owner(lambda f: f.attributes.gid),
    p.FATTR4_RAWDEV: _rawdev,
    p.FATTR4_SPACE_AVAIL: _hyper(lambda f: _status(f).available_bytes),
    p.FATTR4_SPACE_FREE: _hyper(lambda f: _status(f).free_bytes),
    p.FATTR4_SPACE_TOTAL: _hyper(lambda f: _status(f).total_bytes),
    p.FATTR4_SPACE_USED: _hyper(lambda f: f.attributes.used),
    p.FATTR4_TIME_ACCESS: lambda encoder, f: _time(encoder, f.attributes.atime),
    p.FATTR4_TIME_CREATE: _birthtime,
    p.FATTR4_TIME_DELTA: lambda encoder, f: _time(encoder, _limits(f).time_delta),
    p.FATTR4_TIME_METADATA: lambda encoder, f: _time(encoder, f.attributes.ctime),
    p.FATTR4_TIME_MODIFY: lambda encoder, f: _time(encoder, f.attributes.mtime),
    p.FATTR4_MOUNTED_ON_FILEID: _hyper(lambda f: f.attributes.mounted_on_fileid),
    p.FATTR4_SUPPATTR_EXCLCREAT: _exclusive_create,
    p.FATTR4_CHANGE_ATTR_TYPE: _number(lambda f: p.change_attr_type4.NFS4_CHANGE_TYPE_IS_MONOTONIC_INCR),
    p.FATTR4_CLONE_BLKSIZE: _number(lambda f: _limits(f).clone_block),
    # What other names or clones still use is not freed; of clones the kernel does not tell.
    p.FATTR4_SPACE_FREED: _hyper(lambda f: f.attributes.used if f.attributes.nlink <= 1 else 0),
    p.FATTR4_XATTR_SUPPORT: _truth(lambda f: _limits(f).xattrs),
}
"""How each attribute is encoded."""

NEED_STATUS = _bits(
    p.FATTR4_FILES_AVAIL, p.FATTR4_FILES_FREE, p.FATTR4_FILES_TOTAL,
    p.FATTR4_SPACE_AVAIL, p.FATTR4_SPACE_FREE, p.FATTR4_SPACE_TOTAL,
)  # fmt: skip
NEED_LIMITS = _bits(
    p.FATTR4_CASE_INSENSITIVE, p.FATTR4_CASE_PRESERVING, p.FATTR4_CHOWN_RESTRICTED, p.FATTR4_MAXFILESIZE,
    p.FATTR4_MAXLINK, p.FATTR4_MAXNAME, p.FATTR4_NO_TRUNC, p.FATTR4_TIME_DELTA,
    p.FATTR4_CLONE_BLKSIZE, p.FATTR4_XATTR_SUPPORT,
)  # fmt: skip
RDATTR_ERROR = 1 << p.FATTR4_RDATTR_ERROR
MOUNTED_ON = 1 << p.FATTR4_MOUNTED_ON_FILEID
MODE_MASKED = 1 << p.FATTR4_MODE_SET_MASKED
_SINCE_41 = _bits(p.FATTR4_SUPPATTR_EXCLCREAT, p.FATTR4_MODE_SET_MASKED)
_SINCE_42 = _bits(
    p.FATTR4_CHANGE_ATTR_TYPE, p.FATTR4_MODE_UMASK,
    p.FATTR4_CLONE_BLKSIZE, p.FATTR4_SPACE_FREED, p.FATTR4_XATTR_SUPPORT,
)  # fmt: skip
_READABLE = _bits(*_TABLE)


@lru_cache(maxsize=3)
def supported(minor: int) -> int:
    """The attributes a minor version knows, readable or settable."""
    mask = _READABLE | SETTABLE
    if minor < 1:
        mask &= ~_SINCE_41
    if minor < 2:
        mask &= ~_SINCE_42
    return mask


def readable(mask: int, minor: int) -> int:
    """The part of a request that can be answered; unknown attributes are left out, as GETATTR prescribes."""
    return mask & supported(minor) & _READABLE


def write_only(mask: int) -> bool:
    """Whether a request names an attribute that can only be set: NFS4ERR_INVAL (RFC 8881 section 5.5)."""
    return bool(mask & _SETTABLE_ONLY & ~(1 << p.FATTR4_MODE_UMASK))


@lru_cache(maxsize=256)
def _plan(mask: int) -> tuple[Write, ...]:
    return tuple(_TABLE[number] for number in range(mask.bit_length()) if mask >> number & 1)


def encode_mask(encoder: Encoder, mask: int) -> None:
    """Write a bitmap4."""
    words = words_of(mask)
    encoder.uint32(len(words))
    for word in words:
        encoder.uint32(word)


def encode(encoder: Encoder, mask: int, facts: Facts) -> None:
    """Write a fattr4 with exactly the attributes of ``mask``, which must come from :func:`readable`."""
    encode_mask(encoder, mask)
    at = encoder.position
    encoder.uint32(0)
    for write in _plan(mask):
        write(encoder, facts)
    encoder.patch_uint32(at, encoder.position - at - 4)


# -- what can be set --------------------------------------------------------------------------------------------------
class AttributeError4(Exception):
    """Attributes that cannot be set; ``status`` is the nfsstat4."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def _decode_owner(decoder: Decoder) -> int:
    text = decoder.opaque(1024)
    if not text:
        raise AttributeError4(p.NFS4ERR_INVAL)
    # A name needs the system's name service and a common domain; numbers need neither.
    if not text.isdigit() or len(text) > 10 or int(text) >= 0xFFFFFFFF:
        raise AttributeError4(p.NFS4ERR_BADOWNER)
    return int(text)


def _decode_time(decoder: Decoder) -> Time | SetTo:
    how = decoder.uint32()
    if how == p.time_how4.SET_TO_SERVER_TIME4:
        return SetTo.SERVER_TIME
    if how != p.time_how4.SET_TO_CLIENT_TIME4:
        raise AttributeError4(p.NFS4ERR_BADXDR)
    seconds, nanoseconds = decoder.int64(), decoder.uint32()
    if nanoseconds >= 1_000_000_000:
        raise AttributeError4(p.NFS4ERR_INVAL)
    return Time(seconds, nanoseconds)


def _decode_masked(decoder: Decoder, current: Attributes | None) -> int:
    value, mask = decoder.uint32(), decoder.uint32()
    if value & ~mask or mask & ~0o7777:
        raise AttributeError4(p.NFS4ERR_INVAL)
    return (current.mode if current is not None else 0) & ~mask | value


def decode(mask: int, values: bytes, minor: int, current: Attributes | None = None) -> SetAttributes:
    """The attributes of a fattr4 to be set. ``current`` is the file's state, for MODE_SET_MASKED.

    Raises AttributeError4: ATTRNOTSUPP for unknown ones, INVAL for those that only can be read or are out of range,
    BADOWNER, BADXDR when the values do not fill their octets exactly.
    """
    if mask & ~supported(minor):
        raise AttributeError4(p.NFS4ERR_ATTRNOTSUPP)
    if mask & ~SETTABLE:
        raise AttributeError4(p.NFS4ERR_INVAL)
    decoder = Decoder(values)
    size = mode = uid = gid = None
    atime = mtime = None
    try:
        if mask >> p.FATTR4_SIZE & 1:
            size = decoder.uint64()
        if mask >> p.FATTR4_MODE & 1:
            mode = decoder.uint32()
            if mode & ~0o7777:
                raise AttributeError4(p.NFS4ERR_INVAL)
        if mask >> p.FATTR4_OWNER & 1:
            uid = _decode_owner(decoder)
        if mask >> p.FATTR4_OWNER_GROUP & 1:
            gid = _decode_owner(decoder)
        if mask >> p.FATTR4_TIME_ACCESS_SET & 1:
            atime = _decode_time(decoder)
        if mask >> p.FATTR4_TIME_MODIFY_SET & 1:
            mtime = _decode_time(decoder)
        if mask >> p.FATTR4_MODE_SET_MASKED & 1:
            if mode is not None:
                raise AttributeError4(p.NFS4ERR_INVAL)  # RFC 8881 section 5.12: not together with MODE
            mode = _decode_masked(decoder, current)
        if mask >> p.FATTR4_MODE_UMASK & 1:
            # RFC 8275 section 3: not together with MODE, and only where a file is created.
            if mode is not None or current is not None:
                raise AttributeError4(p.NFS4ERR_INVAL)
            bits, umask = decoder.uint32(), decoder.uint32()
            mode = bits & 0o7777 & ~(umask & 0o777)
        if decoder.remaining:
            raise AttributeError4(p.NFS4ERR_BADXDR)
    except XdrError:
        raise AttributeError4(p.NFS4ERR_BADXDR) from None
    return SetAttributes(mode=mode, uid=uid, gid=gid, size=size, atime=atime, mtime=mtime)
