"""NFSv4 attributes: one row for each, encoded from facts of the file service (RFC 7530 section 5, RFC 8881 section 5).

Owns the bitmaps, the table of what does not follow from a ``struct statx``, and :func:`encode` for VERIFY, listings in
Python and the rare GETATTR; what follows is :mod:`nfsd.v4.fattr`'s. :mod:`nfsd.v4.settable` is the other direction. A
bitmap is a Python int, bit n standing for attribute n. Imports the protocol's numbers, the ACL mapping and the VFS's
types.

Not every file system has everything: :attr:`Facts.lacks` says what is missing where the file is, and neither is it
answered there nor does SUPPORTED_ATTRS claim it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from nfsd.exports import Place
from nfsd.idnames import IdNames
from nfsd.protocol import nfs4 as p
from nfsd.v4 import acl
from nfsd.v4.fattr import encoded, native_of
from nfsd.vfs.posix_acl import Acls, AclTag
from nfsd.vfs.types import Attributes, FileSystemStatus, FileType, PathLimits, Quota, Time
from rpcrdma.xdr import Encoder


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is the same for every file."""

    lease_time: int
    """Seconds."""
    max_read: int
    max_write: int
    names: IdNames = field(default_factory=IdNames)


class Facts:
    """What the attributes of one file are computed from; the costlier parts only where a bitmap asks for them."""

    __slots__ = (
        "acls",
        "attributes",
        "error",
        "handle",
        "kind",
        "label",
        "lacks",
        "limits",
        "locations",
        "minor",
        "quota",
        "server",
        "status",
    )

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
        self.lacks: int = _NO_BIRTH if attributes.birthtime is None else 0
        self.acls: Acls | None = None
        self.locations: Locations = ("/", ())
        self.kind = p.fs4_status_type.STATUS4_UPDATED
        """Not for clients to change, but changed now and then."""
        self.quota: Quota | None = None
        self.label = b""


_NO_BIRTH: int = 1 << p.FATTR4_TIME_CREATE
NEED_ACLS: int = 1 << p.FATTR4_ACL
NEED_LABEL: int = 1 << p.FATTR4_SEC_LABEL
NEED_QUOTA: int = 1 << p.FATTR4_QUOTA_AVAIL_HARD | 1 << p.FATTR4_QUOTA_AVAIL_SOFT | 1 << p.FATTR4_QUOTA_USED
Locations = tuple[str, tuple[Place, ...]]
"""Where the file system begins in this server's name space, and where else it is."""
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


def _quota(facts: Facts) -> Quota:
    assert facts.quota is not None, "NEED_QUOTA is out of step with the table"
    return facts.quota


def _number(value: Callable[[Facts], int]) -> Write:
    return lambda encoder, facts: encoder.uint32(value(facts))


def _hyper(value: Callable[[Facts], int]) -> Write:
    return lambda encoder, facts: encoder.uint64(value(facts))


def _truth(value: Callable[[Facts], bool]) -> Write:
    return lambda encoder, facts: encoder.boolean(value(facts))


def _supported(encoder: Encoder, facts: Facts) -> None:
    encode_mask(encoder, supported(facts.minor) & ~facts.lacks)


def _exclusive_create(encoder: Encoder, facts: Facts) -> None:
    encode_mask(encoder, EXCLUSIVE_CREATE & supported(facts.minor) & ~facts.lacks)


_OPEN_ARGUMENTS = p.open_arguments4(
    oa_share_access=[1 << p.OPEN4_SHARE_ACCESS_READ | 1 << p.OPEN4_SHARE_ACCESS_WRITE | 1 << p.OPEN4_SHARE_ACCESS_BOTH],
    oa_share_deny=[
        1 << p.OPEN4_SHARE_DENY_NONE
        | 1 << p.OPEN4_SHARE_DENY_READ
        | 1 << p.OPEN4_SHARE_DENY_WRITE
        | 1 << p.OPEN4_SHARE_DENY_BOTH
    ],
    oa_share_access_want=[
        1 << p.OPEN_ARGS_SHARE_ACCESS_WANT_ANY_DELEG
        | 1 << p.OPEN_ARGS_SHARE_ACCESS_WANT_NO_DELEG
        | 1 << p.OPEN_ARGS_SHARE_ACCESS_WANT_CANCEL
        | 1 << p.OPEN_ARGS_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS
        | 1 << p.OPEN_ARGS_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION
    ],
    oa_open_claim=[
        _bits(*p.open_claim_type4)
        & ~_bits(p.open_claim_type4.CLAIM_DELEGATE_PREV, p.open_claim_type4.CLAIM_DELEG_PREV_FH)
    ],
    oa_create_mode=[_bits(*p.createmode4)],
)
"""What OPEN takes here (RFC 9754 section 3): no wish is remembered."""


def _open_arguments(encoder: Encoder, facts: Facts) -> None:
    encoder.encode(p.open_arguments4, _OPEN_ARGUMENTS)


def _pathname(encoder: Encoder, path: str) -> None:
    parts = [part for part in path.split("/") if part]
    encoder.uint32(len(parts))
    for part in parts:
        encoder.opaque(part.encode(errors="surrogateescape"))


def _fs_locations(encoder: Encoder, facts: Facts) -> None:
    root, places = facts.locations
    hosts_of: dict[str, list[str]] = {}
    for place in places:
        hosts_of.setdefault(place.path, []).append(place.host)
    _pathname(encoder, root)
    encoder.uint32(len(hosts_of))
    for path, hosts in hosts_of.items():
        encoder.uint32(len(hosts))
        for host in hosts:
            encoder.opaque(host.encode())
        _pathname(encoder, path)


def _fs_status(encoder: Encoder, facts: Facts) -> None:
    """Where a file system's data comes from nobody told us, nor when (RFC 8881 section 11.18: a negative age)."""
    encoder.boolean(facts.kind == p.fs4_status_type.STATUS4_REFERRAL)
    encoder.uint32(facts.kind)
    encoder.opaque(b"")
    encoder.opaque(b"")
    encoder.int32(-1)
    _time(encoder, Time(0, 0))


def _label(encoder: Encoder, facts: Facts) -> None:
    # RFC 7862 section 12.2.4. Label format 0 is reserved, and what Linux uses for SELinux's labels.
    encoder.uint32(0)
    encoder.uint32(0)
    encoder.opaque(facts.label)


def _change_attr_type(facts: Facts) -> int:
    """RFC 7862 section 12.2.3. Where a local process can change a file twice within one tick of its ctime, no more can
    be promised than that the attribute comes from time_metadata."""
    kinds = p.change_attr_type4
    counts = _limits(facts).counts_changes
    return kinds.NFS4_CHANGE_TYPE_IS_MONOTONIC_INCR if counts else kinds.NFS4_CHANGE_TYPE_IS_TIME_METADATA


def _acl(encoder: Encoder, facts: Facts) -> None:
    assert facts.acls is not None, "NEED_ACLS is out of step with the table"
    names = facts.server.names
    aces = acl.to_nfs4(facts.acls, directory=facts.attributes.type is FileType.DIR)
    encoder.uint32(len(aces))
    for ace in aces:
        encoder.uint32(ace.type)
        encoder.uint32(ace.flag)
        encoder.uint32(ace.mask)
        if ace.tag == AclTag.USER:
            encoder.opaque(names.owner(ace.id))
        elif ace.tag == AclTag.GROUP:
            encoder.opaque(names.owner_group(ace.id))
        else:
            encoder.opaque(acl.SPECIAL_NAMES[AclTag(ace.tag)])


DELEGATED_TIMES = _bits(p.FATTR4_TIME_DELEG_ACCESS, p.FATTR4_TIME_DELEG_MODIFY)
"""What SETATTR takes from who has been delegated the times, and CB_GETATTR asks about (RFC 9754 section 5)."""
_SETTABLE_ONLY = DELEGATED_TIMES | _bits(
    p.FATTR4_TIME_ACCESS_SET, p.FATTR4_TIME_MODIFY_SET, p.FATTR4_MODE_SET_MASKED, p.FATTR4_MODE_UMASK
)
SETTABLE = _SETTABLE_ONLY | _bits(
    p.FATTR4_SIZE, p.FATTR4_ACL, p.FATTR4_MODE, p.FATTR4_OWNER, p.FATTR4_OWNER_GROUP, p.FATTR4_SEC_LABEL
)
"""What SETATTR and creations take."""
EXCLUSIVE_CREATE = (
    SETTABLE & ~DELEGATED_TIMES & ~_bits(p.FATTR4_TIME_ACCESS_SET, p.FATTR4_TIME_MODIFY_SET, p.FATTR4_MODE_SET_MASKED)
)
"""What EXCLUSIVE4_1 takes: the times keep the verifier (RFC 8881 section 18.16.3)."""
_TABLE: dict[int, Write] = {
    p.FATTR4_SUPPORTED_ATTRS: _supported,
    # FAT and its kin have one name per file, and no symbolic links either (Linux's server draws the same line).
    p.FATTR4_LINK_SUPPORT: _truth(lambda f: _limits(f).link_max > 1),
    p.FATTR4_SYMLINK_SUPPORT: _truth(lambda f: _limits(f).link_max > 1),
    p.FATTR4_NAMED_ATTR: _truth(lambda f: False),
    p.FATTR4_UNIQUE_HANDLES: _truth(lambda f: True),
    p.FATTR4_ACL: _acl,
    p.FATTR4_ACLSUPPORT: _number(lambda f: 0 if f.lacks & NEED_ACLS else acl.SUPPORT),
    p.FATTR4_CANSETTIME: _truth(lambda f: True),
    p.FATTR4_CASE_INSENSITIVE: _truth(lambda f: _limits(f).case_insensitive),
    p.FATTR4_CASE_PRESERVING: _truth(lambda f: _limits(f).case_preserving),
    p.FATTR4_CHOWN_RESTRICTED: _truth(lambda f: _limits(f).chown_restricted),
    p.FATTR4_FILES_AVAIL: _hyper(lambda f: _status(f).available_files),
    p.FATTR4_FILES_FREE: _hyper(lambda f: _status(f).free_files),
    p.FATTR4_FILES_TOTAL: _hyper(lambda f: _status(f).total_files),
    p.FATTR4_FS_LOCATIONS: _fs_locations,
    p.FATTR4_HOMOGENEOUS: _truth(lambda f: True),
    p.FATTR4_MAXFILESIZE: _hyper(lambda f: _limits(f).max_file_size),
    p.FATTR4_MAXLINK: _number(lambda f: _limits(f).link_max),
    p.FATTR4_MAXNAME: _number(lambda f: _limits(f).name_max),
    p.FATTR4_MAXREAD: _hyper(lambda f: f.server.max_read),
    p.FATTR4_MAXWRITE: _hyper(lambda f: f.server.max_write),
    p.FATTR4_NO_TRUNC: _truth(lambda f: _limits(f).no_trunc),
    # By name: numbers are encoded natively.
    p.FATTR4_OWNER: lambda encoder, f: encoder.opaque(f.server.names.owner(f.attributes.uid)),
    p.FATTR4_OWNER_GROUP: lambda encoder, f: encoder.opaque(f.server.names.owner_group(f.attributes.gid)),
    p.FATTR4_QUOTA_AVAIL_HARD: _hyper(lambda f: _quota(f).available_hard),
    p.FATTR4_QUOTA_AVAIL_SOFT: _hyper(lambda f: _quota(f).available_soft),
    p.FATTR4_QUOTA_USED: _hyper(lambda f: _quota(f).used),
    p.FATTR4_SPACE_AVAIL: _hyper(lambda f: _status(f).available_bytes),
    p.FATTR4_SPACE_FREE: _hyper(lambda f: _status(f).free_bytes),
    p.FATTR4_SPACE_TOTAL: _hyper(lambda f: _status(f).total_bytes),
    p.FATTR4_TIME_DELTA: lambda encoder, f: _time(encoder, _limits(f).time_delta),
    p.FATTR4_FS_STATUS: _fs_status,
    p.FATTR4_SUPPATTR_EXCLCREAT: _exclusive_create,
    p.FATTR4_CHANGE_ATTR_TYPE: _number(_change_attr_type),
    p.FATTR4_CLONE_BLKSIZE: _number(lambda f: _limits(f).clone_block),
    # What other names or clones still use is not freed; of clones the kernel does not tell.
    p.FATTR4_SPACE_FREED: _hyper(lambda f: f.attributes.used if f.attributes.nlink <= 1 else 0),
    p.FATTR4_SEC_LABEL: _label,
    p.FATTR4_XATTR_SUPPORT: _truth(lambda f: _limits(f).xattrs),
    p.FATTR4_OPEN_ARGUMENTS: _open_arguments,
}
"""How each attribute is encoded that does not follow from a ``struct statx``; those are :mod:`nfsd.v4.fattr`'s."""

NEED_STATUS = _bits(
    p.FATTR4_FILES_AVAIL, p.FATTR4_FILES_FREE, p.FATTR4_FILES_TOTAL,
    p.FATTR4_SPACE_AVAIL, p.FATTR4_SPACE_FREE, p.FATTR4_SPACE_TOTAL,
)  # fmt: skip
NEED_LIMITS = _bits(
    p.FATTR4_LINK_SUPPORT, p.FATTR4_SYMLINK_SUPPORT, p.FATTR4_CHANGE_ATTR_TYPE,
    p.FATTR4_CASE_INSENSITIVE, p.FATTR4_CASE_PRESERVING, p.FATTR4_CHOWN_RESTRICTED, p.FATTR4_MAXFILESIZE,
    p.FATTR4_MAXLINK, p.FATTR4_MAXNAME, p.FATTR4_NO_TRUNC, p.FATTR4_TIME_DELTA,
    p.FATTR4_CLONE_BLKSIZE, p.FATTR4_XATTR_SUPPORT,
)  # fmt: skip
FS_LOCATIONS = _bits(p.FATTR4_FS_LOCATIONS)
WHERE = FS_LOCATIONS | _bits(p.FATTR4_FS_STATUS)
"""A client that asks for one of these knows that the file system may be absent."""
ON_ABSENT = WHERE | _bits(p.FATTR4_RDATTR_ERROR, p.FATTR4_FSID, p.FATTR4_MOUNTED_ON_FILEID)
"""What an absent file system has (RFC 8881 section 11.4.1)."""
OWNERS = _bits(p.FATTR4_OWNER, p.FATTR4_OWNER_GROUP)
NEED_FEATURES = (
    NEED_QUOTA
    | NEED_LABEL
    | _bits(p.FATTR4_SUPPORTED_ATTRS, p.FATTR4_SUPPATTR_EXCLCREAT, p.FATTR4_ACL, p.FATTR4_ACLSUPPORT)
)
"""What depends on what the file system has."""
NEED_NODE = NEED_FEATURES | WHERE
"""What a listing has to go to the file for."""
RDATTR_ERROR = 1 << p.FATTR4_RDATTR_ERROR
MOUNTED_ON = 1 << p.FATTR4_MOUNTED_ON_FILEID
MODE_MASKED = 1 << p.FATTR4_MODE_SET_MASKED
# RFC 9754 extends 4.2, but the wishes that OPEN_ARGUMENTS tells of are 4.1's: whoever asks is answered.
_SINCE_41 = DELEGATED_TIMES | _bits(
    p.FATTR4_SUPPATTR_EXCLCREAT, p.FATTR4_MODE_SET_MASKED, p.FATTR4_FS_STATUS, p.FATTR4_OPEN_ARGUMENTS
)
_SINCE_42 = _bits(
    p.FATTR4_CHANGE_ATTR_TYPE, p.FATTR4_MODE_UMASK,
    p.FATTR4_CLONE_BLKSIZE, p.FATTR4_SPACE_FREED, p.FATTR4_XATTR_SUPPORT, p.FATTR4_SEC_LABEL,
)  # fmt: skip
_READABLE = _bits(*_TABLE) | native_of(-1)


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


def write_only(mask: int, minor: int) -> bool:
    """Whether a request names an attribute that can only be set: NFS4ERR_INVAL (RFC 8881 section 5.5)."""
    return bool(mask & _SETTABLE_ONLY & supported(minor) & ~(1 << p.FATTR4_MODE_UMASK))


@lru_cache(maxsize=256)
def _plan(mask: int) -> tuple[tuple[int, Write], ...]:
    return tuple((number, _TABLE[number]) for number in range(mask.bit_length()) if mask >> number & 1)


def encode_mask(encoder: Encoder, mask: int) -> None:
    """Write a bitmap4."""
    words = words_of(mask)
    encoder.uint32(len(words))
    for word in words:
        encoder.uint32(word)


def encode(encoder: Encoder, mask: int, facts: Facts) -> None:
    """Write a fattr4 with the attributes of ``mask``, which must come from :func:`readable`, that the file has."""
    mask &= ~facts.lacks
    server, others = facts.server, []
    for number, write in _plan(mask & ~native_of(mask, numeric=server.names.numeric)):
        value = Encoder()
        write(value, facts)
        others.append((number, value.getvalue()))
    encoder.append(encoded(mask, others, facts.attributes, facts.handle, server.lease_time, facts.error))
