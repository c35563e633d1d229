"""POSIX access control lists as values, and their form in the kernel's extended attributes (acl(5)).

Owns :class:`AclEntry` and the two directions of the encoding; imports nothing of the project, makes no call. An ACL is
a tuple of entries in the kernel's order: owner, named users by id, owning group, named groups by id, mask, others.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

READ: Final = 4
WRITE: Final = 2
EXECUTE: Final = 1
NO_ID: Final = 0xFFFFFFFF
"""The id of entries that need none."""

ACCESS_NAME: Final = b"system.posix_acl_access"
DEFAULT_NAME: Final = b"system.posix_acl_default"
_VERSION: Final = 2
_HEAD: Final = struct.Struct("<I")
_ENTRY: Final = struct.Struct("<HHI")
MAX_ENTRIES: Final = (65536 - _HEAD.size) // _ENTRY.size
"""As many as fit into the largest extended attribute; file systems stop earlier."""


class AclTag(enum.IntEnum):
    """Whom an entry is for, numbered as in the kernel."""

    USER_OBJ = 0x01
    USER = 0x02
    GROUP_OBJ = 0x04
    GROUP = 0x08
    MASK = 0x10
    OTHER = 0x20


_NAMED: Final = (AclTag.USER, AclTag.GROUP)


class AclEntry(NamedTuple):
    """One entry; ``permissions`` is of READ, WRITE and EXECUTE."""

    tag: int
    permissions: int
    id: int = NO_ID


PosixAcl = tuple[AclEntry, ...]


class Acls(NamedTuple):
    """What a file has: its own ACL, and the one that what is made in it (a directory) starts with."""

    access: PosixAcl
    default: PosixAcl | None


def in_order(entries: Iterable[AclEntry]) -> PosixAcl:
    """Entries in the order the kernel insists on."""
    return tuple(sorted(entries, key=lambda entry: (entry.tag, entry.id)))


def is_valid(acl: PosixAcl) -> bool:
    """Whether the kernel would take it: one owner, one owning group, one other, each name once, a mask with names."""
    tags = [entry.tag for entry in acl]
    if any(tags.count(tag) != 1 for tag in (AclTag.USER_OBJ, AclTag.GROUP_OBJ, AclTag.OTHER)):
        return False
    if tags.count(AclTag.MASK) > 1 or len(acl) > MAX_ENTRIES:
        return False
    named = [(entry.tag, entry.id) for entry in acl if entry.tag in _NAMED]
    if named and AclTag.MASK not in tags:
        return False
    if len(set(named)) != len(named) or any(number == NO_ID for _, number in named):
        return False
    return all(entry.tag in AclTag._value2member_map_ and entry.permissions & ~7 == 0 for entry in acl)


def from_mode(mode: int) -> PosixAcl:
    """The ACL that says no more than the mode."""
    return (
        AclEntry(AclTag.USER_OBJ, mode >> 6 & 7),
        AclEntry(AclTag.GROUP_OBJ, mode >> 3 & 7),
        AclEntry(AclTag.OTHER, mode & 7),
    )


def mode_of(acl: PosixAcl) -> int:
    """The nine permission bits that go with an ACL: those of the mask, if there is one, stand for the group's."""
    by_tag = {entry.tag: entry.permissions for entry in acl}
    group = by_tag.get(AclTag.MASK, by_tag[AclTag.GROUP_OBJ])
    return by_tag[AclTag.USER_OBJ] << 6 | group << 3 | by_tag[AclTag.OTHER]


def encode(acl: PosixAcl) -> bytes:
    """The value of the extended attribute; an ACL without entries removes it."""
    return _HEAD.pack(_VERSION) + b"".join(_ENTRY.pack(tag, permissions, number) for tag, permissions, number in acl)


def decode(value: bytes) -> PosixAcl:
    """The ACL in the value of an extended attribute. Raises ValueError for one the kernel would not give."""
    if len(value) < _HEAD.size or (len(value) - _HEAD.size) % _ENTRY.size or _HEAD.unpack_from(value)[0] != _VERSION:
        raise ValueError("no POSIX ACL")
    return tuple(
        AclEntry(tag, permissions, number)
        for tag, permissions, number in _ENTRY.iter_unpack(memoryview(value)[_HEAD.size :])
    )
