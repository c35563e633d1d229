"""NFSv4's access control lists mapped to POSIX's and back (draft-ietf-nfsv4-acl-mapping-05, RFC 8881 section 6.2).

Owns the two directions and :class:`Ace`; imports the protocol's numbers and POSIX ACLs. Makes no call.

To NFSv4. A POSIX ACL picks one entry, or one of the group entries, and nothing adds up; in an NFSv4 ACL the first
entry that mentions a right decides on it. So every ALLOW that later entries could add to comes with a DENY of what they
would add. All groups' ALLOWs come before all groups' DENYs, since any one group may let a caller in. The mask is
applied to the entries it bounds; it has no entry of its own. A default ACL becomes entries that are only inherited.

From NFSv4. There are more NFSv4 ACLs than POSIX can say. What cannot be said exactly comes out with fewer rights, never
with more: a DENY for a group is held against everybody who might be in it, and write permission needs all of
WRITE_DATA, APPEND_DATA and, for directories, DELETE_CHILD. Linux's server maps the same way: tools see no difference.

Both directions in a row give back the same POSIX ACL, its entries cut down to the mask and its mask to the entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from nfsd.protocol import nfs4 as p
from nfsd.vfs.posix_acl import EXECUTE, NO_ID, READ, WRITE, AclEntry, Acls, AclTag, PosixAcl, in_order

_READING: Final = p.ACE4_READ_DATA
_WRITING: Final = p.ACE4_WRITE_DATA | p.ACE4_APPEND_DATA
_EXECUTING: Final = p.ACE4_EXECUTE
_ANYONE: Final = p.ACE4_READ_ATTRIBUTES | p.ACE4_READ_ACL | p.ACE4_SYNCHRONIZE
"""What POSIX grants to whoever can reach the file."""
_OWNING: Final = p.ACE4_WRITE_ATTRIBUTES | p.ACE4_WRITE_ACL
"""What POSIX grants to the owner whatever the ACL says."""
_INHERITED: Final = p.ACE4_FILE_INHERIT_ACE | p.ACE4_DIRECTORY_INHERIT_ACE
_FLAGS: Final = _INHERITED | p.ACE4_INHERIT_ONLY_ACE | p.ACE4_IDENTIFIER_GROUP
_TYPES: Final = (p.ACE4_ACCESS_ALLOWED_ACE_TYPE, p.ACE4_ACCESS_DENIED_ACE_TYPE)
SUPPORT: Final = p.ACL4_SUPPORT_ALLOW_ACL | p.ACL4_SUPPORT_DENY_ACL
"""ACLSUPPORT where there are ACLs."""
SPECIAL: Final = {b"OWNER@": AclTag.USER_OBJ, b"GROUP@": AclTag.GROUP_OBJ, b"EVERYONE@": AclTag.OTHER}
"""The special identifiers POSIX has a meaning for (RFC 8881 section 6.2.1.5)."""
SPECIAL_NAMES: Final = {tag: name for name, tag in SPECIAL.items()}


class Ace(NamedTuple):
    """An nfsace4 with its ``who`` understood: ``tag`` is USER_OBJ, GROUP_OBJ and OTHER for OWNER@, GROUP@ and
    EVERYONE@, and USER or GROUP with an ``id``."""

    type: int
    flag: int
    mask: int
    tag: int
    id: int = NO_ID


class Unsupported(Exception):
    """No POSIX ACL can stand for this one, not even with fewer rights: NFS4ERR_ATTRNOTSUPP."""


def _rights(permissions: int, directory: bool) -> int:
    mask = 0
    if permissions & READ:
        mask |= _READING
    if permissions & WRITE:
        mask |= _WRITING | (p.ACE4_DELETE_CHILD if directory else 0)
    if permissions & EXECUTE:
        mask |= _EXECUTING
    return mask


def _permissions(mask: int, directory: bool) -> int:
    writing = _WRITING | (p.ACE4_DELETE_CHILD if directory else 0)
    permissions = READ if mask & _READING else 0
    if mask & writing == writing:
        permissions |= WRITE
    return permissions | (EXECUTE if mask & _EXECUTING else 0)


# -- to NFSv4 ---------------------------------------------------------------------------------------------------------
def to_nfs4(acls: Acls, *, directory: bool) -> list[Ace]:
    """What a file's ACLs are in NFSv4."""
    aces = _one_to_nfs4(acls.access, 0, directory)
    if acls.default:
        aces += _one_to_nfs4(acls.default, _INHERITED | p.ACE4_INHERIT_ONLY_ACE, directory)
    return aces


def _one_to_nfs4(acl: PosixAcl, flag: int, directory: bool) -> list[Ace]:
    bound = next((entry.permissions for entry in acl if entry.tag == AclTag.MASK), 7)
    owner, users, group, groups, other = 0, [], 0, [], 0
    for tag, permissions, number in acl:
        if tag == AclTag.USER_OBJ:
            owner = permissions
        elif tag == AclTag.USER:
            users.append((number, permissions & bound))
        elif tag == AclTag.GROUP_OBJ:
            group = permissions & bound
        elif tag == AclTag.GROUP:
            groups.append((number, permissions & bound))
        elif tag == AclTag.OTHER:
            other = permissions
    aces: list[Ace] = []

    def allow(tag: int, permissions: int, number: int = NO_ID, more: int = 0) -> None:
        mask = _rights(permissions, directory) | _ANYONE | more
        named = p.ACE4_IDENTIFIER_GROUP if tag == AclTag.GROUP else 0
        aces.append(Ace(p.ACE4_ACCESS_ALLOWED_ACE_TYPE, flag | named, mask, tag, number))

    def deny(tag: int, permissions: int, number: int = NO_ID) -> None:
        if permissions:
            named = p.ACE4_IDENTIFIER_GROUP if tag == AclTag.GROUP else 0
            mask = _rights(permissions, directory)
            aces.append(Ace(p.ACE4_ACCESS_DENIED_ACE_TYPE, flag | named, mask, tag, number))

    after_users = group | other
    for _, permissions in groups:
        after_users |= permissions
    after_owner = after_users
    for _, permissions in users:
        after_owner |= permissions
    deny(AclTag.USER_OBJ, ~owner & after_owner)
    allow(AclTag.USER_OBJ, owner, more=_OWNING)
    for number, permissions in users:
        deny(AclTag.USER, ~permissions & after_users, number)
        allow(AclTag.USER, permissions, number)
    allow(AclTag.GROUP_OBJ, group)
    for number, permissions in groups:
        allow(AclTag.GROUP, permissions, number)
    deny(AclTag.GROUP_OBJ, ~group & other)
    for number, permissions in groups:
        deny(AclTag.GROUP, ~permissions & other, number)
    allow(AclTag.OTHER, other)
    return aces


# -- from NFSv4 -------------------------------------------------------------------------------------------------------
class _Decided:
    """The rights of one principal that entries so far have allowed or denied."""

    __slots__ = ("allowed", "denied")

    def __init__(self, allowed: int = 0, denied: int = 0) -> None:
        self.allowed = allowed
        self.denied = denied

    def allow(self, mask: int) -> None:
        self.allowed |= mask & ~self.denied

    def deny(self, mask: int) -> None:
        self.denied |= mask & ~self.allowed


class _State:
    """What has been decided for everybody an ACL knows."""

    def __init__(self) -> None:
        self.empty = True
        self.owner, self.group, self.other = _Decided(), _Decided(), _Decided()
        self.anyone = _Decided()
        """For whom no entry has named yet."""
        self.users: dict[int, _Decided] = {}
        self.groups: dict[int, _Decided] = {}

    def _named(self, ace: Ace) -> _Decided:
        table = self.users if ace.tag == AclTag.USER else self.groups
        found = table.get(ace.id)
        if found is None:
            found = table[ace.id] = _Decided(self.anyone.allowed, self.anyone.denied)
        return found

    def take(self, ace: Ace) -> None:
        """The next entry."""
        self.empty = False
        allow = ace.type == p.ACE4_ACCESS_ALLOWED_ACE_TYPE
        if ace.tag == AclTag.OTHER:
            for one in self._everybody():
                one.allow(ace.mask) if allow else one.deny(ace.mask)
            return
        if ace.tag == AclTag.USER_OBJ:
            subject = self.owner
        elif ace.tag == AclTag.GROUP_OBJ:
            subject = self.group
        else:
            subject = self._named(ace)
        if allow:
            subject.allow(ace.mask)
            return
        subject.deny(ace.mask)
        if ace.tag == AclTag.USER:
            self.owner.deny(subject.denied)  # the user may be the owner, whose entry POSIX looks at first
        elif ace.tag != AclTag.USER_OBJ:
            # Anybody named may be in the group, and in several groups: for POSIX one of them suffices.
            for one in (self.owner, self.group, self.anyone, *self.users.values(), *self.groups.values()):
                one.deny(subject.denied)

    def _everybody(self) -> Iterable[_Decided]:
        return (self.owner, self.group, self.other, self.anyone, *self.users.values(), *self.groups.values())

    def complete(self, effective: _State) -> None:
        """In an ACL to be handed down that says nothing of owner, group or others they get what they have here, or new
        files would be closed to all but those it names."""
        for mine, theirs in (
            (self.owner, effective.owner),
            (self.group, effective.group),
            (self.other, effective.other),
        ):
            if not mine.allowed and not mine.denied:
                mine.allowed, mine.denied = theirs.allowed, theirs.denied

    def acl(self, directory: bool) -> PosixAcl:
        """The POSIX ACL."""
        owner, group, other = (_permissions(one.allowed, directory) for one in (self.owner, self.group, self.other))
        users = [AclEntry(AclTag.USER, _permissions(one.allowed, directory), n) for n, one in self.users.items()]
        groups = [AclEntry(AclTag.GROUP, _permissions(one.allowed, directory), n) for n, one in self.groups.items()]
        entries = [AclEntry(AclTag.USER_OBJ, owner), AclEntry(AclTag.GROUP_OBJ, group), AclEntry(AclTag.OTHER, other)]
        if users or groups:
            bound = group
            for entry in (*users, *groups):
                bound |= entry.permissions
            entries.append(AclEntry(AclTag.MASK, bound))
        return in_order((*entries, *users, *groups))


def to_posix(aces: Iterable[Ace], *, directory: bool) -> Acls:
    """The POSIX ACLs that come nearest without granting more. Raises Unsupported: audits and alarms, entries for what
    a file that is no directory has to hand down, inheritance of kinds that default ACLs do not know."""
    here, handed_down = _State(), _State()
    for ace in aces:
        if ace.type not in _TYPES or ace.flag & ~_FLAGS:
            raise Unsupported
        if not ace.flag & _INHERITED:
            if ace.flag & p.ACE4_INHERIT_ONLY_ACE:
                raise Unsupported  # RFC 8881 section 6.2.1.4.1
            here.take(ace)
            continue
        if not directory:
            raise Unsupported
        # Where only files or only directories are to inherit, both do (RFC 8881 section 6.2.1.4.1 lets us).
        handed_down.take(ace)
        if not ace.flag & p.ACE4_INHERIT_ONLY_ACE:
            here.take(ace)
    access = here.acl(directory)
    if not directory or handed_down.empty:
        return Acls(access, None)
    handed_down.complete(here)
    return Acls(access, handed_down.acl(directory))
