"""POSIX ACLs as NFSv4 ACLs and back: the round trip, and who may do what under either, judged independently."""

import os
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nfsd.protocol import nfs4 as p
from nfsd.v4 import acl
from nfsd.v4.acl import Ace
from nfsd.vfs import posix_acl
from nfsd.vfs.posix_acl import NO_ID, AclEntry, Acls, AclTag

USERS, GROUPS = (11, 12, 13), (21, 22, 23)
OWNER, GROUP = 11, 21
"""The file's; they may be named in the ACL as well."""
ALLOW, DENY = p.ACE4_ACCESS_ALLOWED_ACE_TYPE, p.ACE4_ACCESS_DENIED_ACE_TYPE
INHERITED = p.ACE4_FILE_INHERIT_ACE | p.ACE4_DIRECTORY_INHERIT_ACE
WRITING = p.ACE4_WRITE_DATA | p.ACE4_APPEND_DATA
CALLERS = [(uid, gids) for uid in (10, *USERS) for gids in ((), (21,), (22,), (21, 22), (22, 23), (20,), (21, 22, 23))]


def rights_of(permission, directory):
    if permission == posix_acl.READ:
        return p.ACE4_READ_DATA
    if permission == posix_acl.EXECUTE:
        return p.ACE4_EXECUTE
    return WRITING | (p.ACE4_DELETE_CHILD if directory else 0)


def posix_allows(entries, uid, gids, wanted):
    """The access check of acl(5), as the manual states it."""
    by_tag = {entry.tag: entry.permissions for entry in entries}
    bound = by_tag.get(AclTag.MASK, 7)
    if uid == OWNER:
        return by_tag[AclTag.USER_OBJ] & wanted == wanted
    for entry in entries:
        if entry.tag == AclTag.USER and entry.id == uid:
            return entry.permissions & bound & wanted == wanted
    matching = [entry.permissions for entry in entries if entry.tag == AclTag.GROUP and entry.id in gids]
    if GROUP in gids:
        matching.append(by_tag[AclTag.GROUP_OBJ])
    if matching:
        return any(permissions & bound & wanted == wanted for permissions in matching)
    return by_tag[AclTag.OTHER] & wanted == wanted


def nfs4_allows(aces, uid, gids, mask, *, inherited=False):
    """RFC 8881 section 6.2.1: entries in order, until every bit is allowed or one is denied."""
    left = mask
    for ace in aces:
        if bool(ace.flag & INHERITED) != inherited:
            continue
        concerned = {
            AclTag.USER_OBJ: uid == OWNER,
            AclTag.USER: uid == ace.id,
            AclTag.GROUP_OBJ: GROUP in gids,
            AclTag.GROUP: ace.id in gids,
            AclTag.OTHER: True,
        }[AclTag(ace.tag)]
        if not concerned:
            continue
        if ace.type == DENY and ace.mask & left:
            return False
        if ace.type == ALLOW:
            left &= ~ace.mask
            if not left:
                return True
    return False


bits = st.integers(0, 7)


@st.composite
def posix_acls(draw):
    users = draw(st.dictionaries(st.sampled_from(USERS), bits))
    groups = draw(st.dictionaries(st.sampled_from(GROUPS), bits))
    entries = [
        AclEntry(AclTag.USER_OBJ, draw(bits)),
        AclEntry(AclTag.GROUP_OBJ, draw(bits)),
        AclEntry(AclTag.OTHER, draw(bits)),
        *(AclEntry(AclTag.USER, permissions, uid) for uid, permissions in users.items()),
        *(AclEntry(AclTag.GROUP, permissions, gid) for gid, permissions in groups.items()),
    ]
    if users or groups or draw(st.booleans()):
        entries.append(AclEntry(AclTag.MASK, draw(bits)))
    return posix_acl.in_order(entries)


def cut_down(entries):
    """The same rights, without what the mask takes away, and without more mask than there is to bound."""
    bound = next((entry.permissions for entry in entries if entry.tag == AclTag.MASK), 7)
    bounded = (AclTag.USER, AclTag.GROUP_OBJ, AclTag.GROUP)
    kept = [
        entry._replace(permissions=entry.permissions & bound) if entry.tag in bounded else entry
        for entry in entries
        if entry.tag != AclTag.MASK
    ]
    if any(entry.tag in (AclTag.USER, AclTag.GROUP) for entry in kept):
        union = 0
        for entry in kept:
            if entry.tag in bounded:
                union |= entry.permissions
        kept.append(AclEntry(AclTag.MASK, union))
    return posix_acl.in_order(kept)


@settings(max_examples=120, deadline=None)
@given(posix_acls(), st.none() | posix_acls(), st.booleans())
def test_there_and_back_again(access, default, directory):
    acls = Acls(access, default if directory else None)
    back = acl.to_posix(acl.to_nfs4(acls, directory=directory), directory=directory)
    assert back == Acls(cut_down(access), cut_down(default) if directory and default else None)
    # What is cut down comes back as it is.
    assert acl.to_posix(acl.to_nfs4(back, directory=directory), directory=directory) == back


@settings(max_examples=120, deadline=None)
@given(posix_acls(), st.booleans())
def test_every_caller_has_the_same_single_rights(access, directory):
    aces = acl.to_nfs4(Acls(access, None), directory=directory)
    for uid, gids in CALLERS:
        for permission in (posix_acl.READ, posix_acl.WRITE, posix_acl.EXECUTE):
            here = nfs4_allows(aces, uid, gids, rights_of(permission, directory))
            assert here == posix_allows(access, uid, gids, permission), (uid, gids, permission, access, aces)
        assert nfs4_allows(aces, uid, gids, p.ACE4_READ_ATTRIBUTES | p.ACE4_READ_ACL)
        assert nfs4_allows(aces, uid, gids, p.ACE4_WRITE_ACL) == (uid == OWNER)


@settings(max_examples=60, deadline=None)
@given(posix_acls(), posix_acls())
def test_what_is_handed_down_says_what_the_default_acl_says(access, default):
    aces = acl.to_nfs4(Acls(access, default), directory=True)
    for uid, gids in CALLERS:
        for permission in (posix_acl.READ, posix_acl.WRITE, posix_acl.EXECUTE):
            mask = rights_of(permission, True)
            assert nfs4_allows(aces, uid, gids, mask, inherited=True) == posix_allows(default, uid, gids, permission)
            assert nfs4_allows(aces, uid, gids, mask) == posix_allows(access, uid, gids, permission)


MASKS = st.integers(0, 0x1FF) | st.sampled_from([0, p.ACE4_READ_DATA, WRITING, p.ACE4_EXECUTE, 0x1F01FF])


@st.composite
def nfs4_acls(draw):
    aces = []
    for _ in range(draw(st.integers(0, 7))):
        tag = draw(st.sampled_from([AclTag.USER_OBJ, AclTag.GROUP_OBJ, AclTag.OTHER, AclTag.USER, AclTag.GROUP]))
        number = draw(st.sampled_from(USERS if tag == AclTag.USER else GROUPS))
        named = tag in (AclTag.USER, AclTag.GROUP)
        flag = p.ACE4_IDENTIFIER_GROUP if tag == AclTag.GROUP else 0
        aces.append(Ace(draw(st.sampled_from([ALLOW, DENY])), flag, draw(MASKS), tag, number if named else NO_ID))
    return aces


@settings(max_examples=250, deadline=None)
@given(nfs4_acls(), st.booleans())
def test_no_nfs4_acl_becomes_more_generous(aces, directory):
    access = acl.to_posix(aces, directory=directory).access
    assert posix_acl.is_valid(access)
    for uid, gids in CALLERS:
        for wanted in range(1, 8):
            if posix_allows(access, uid, gids, wanted):
                for permission in (1, 2, 4):
                    if wanted & permission:
                        mask = rights_of(permission, directory)
                        assert nfs4_allows(aces, uid, gids, mask), (uid, gids, permission, aces, access)


def test_the_owner_of_a_plain_file_and_the_mask():
    mode = acl.to_nfs4(Acls(posix_acl.from_mode(0o640), None), directory=False)
    assert [(ace.type, AclTag(ace.tag).name, ace.mask & 0x3F) for ace in mode] == [
        (ALLOW, "USER_OBJ", p.ACE4_READ_DATA | WRITING),
        (ALLOW, "GROUP_OBJ", p.ACE4_READ_DATA),
        (ALLOW, "OTHER", 0),
    ]
    masked = posix_acl.in_order(
        (*posix_acl.from_mode(0o674), AclEntry(AclTag.USER, 7, 12), AclEntry(AclTag.MASK, posix_acl.READ))
    )
    aces = acl.to_nfs4(Acls(masked, None), directory=False)
    assert not nfs4_allows(aces, 12, (), WRITING)
    assert nfs4_allows(aces, 12, (), p.ACE4_READ_DATA)


def test_a_default_acl_that_names_only_one_user_keeps_the_others_rights():
    everyone = [
        Ace(ALLOW, 0, 0x1F01FF, AclTag.USER_OBJ),
        Ace(ALLOW, 0, p.ACE4_READ_DATA | p.ACE4_EXECUTE, AclTag.OTHER),
        Ace(ALLOW, INHERITED | p.ACE4_INHERIT_ONLY_ACE, p.ACE4_READ_DATA, AclTag.USER, 12),
    ]
    default = acl.to_posix(everyone, directory=True).default
    assert default == posix_acl.in_order(
        (*posix_acl.from_mode(0o755), AclEntry(AclTag.USER, 4, 12), AclEntry(AclTag.MASK, 5))
    )


def test_inheritance_without_inherit_only_is_for_the_directory_too():
    both = [Ace(ALLOW, p.ACE4_FILE_INHERIT_ACE, p.ACE4_READ_DATA, AclTag.OTHER)]
    assert acl.to_posix(both, directory=True) == Acls(posix_acl.from_mode(0o444), posix_acl.from_mode(0o444))


@pytest.mark.parametrize(
    ("ace", "directory"),
    [
        (Ace(p.ACE4_SYSTEM_AUDIT_ACE_TYPE, 0, 1, AclTag.OTHER), False),
        (Ace(p.ACE4_SYSTEM_ALARM_ACE_TYPE, 0, 1, AclTag.OTHER), False),
        (Ace(4, 0, 1, AclTag.OTHER), False),
        (Ace(ALLOW, p.ACE4_FILE_INHERIT_ACE, 1, AclTag.OTHER), False),
        (Ace(ALLOW, p.ACE4_INHERIT_ONLY_ACE, 1, AclTag.OTHER), True),
        (Ace(ALLOW, INHERITED | p.ACE4_NO_PROPAGATE_INHERIT_ACE, 1, AclTag.OTHER), True),
        (Ace(ALLOW, p.ACE4_SUCCESSFUL_ACCESS_ACE_FLAG, 1, AclTag.OTHER), False),
        (Ace(ALLOW, p.ACE4_INHERITED_ACE, 1, AclTag.OTHER), True),
    ],
)
def test_what_posix_cannot_say_at_all_is_refused(ace, directory):
    with pytest.raises(acl.Unsupported):
        acl.to_posix([ace], directory=directory)


def test_no_entries_mean_no_rights():
    assert acl.to_posix([], directory=True) == Acls(posix_acl.from_mode(0), None)


# -- the kernel's form ------------------------------------------------------------------------------------------------
@given(posix_acls())
def test_the_kernels_form_there_and_back(entries):
    assert posix_acl.decode(posix_acl.encode(entries)) == entries
    assert posix_acl.is_valid(entries)


def test_the_kernels_form_is_what_the_kernel_takes_and_gives(tmp_path):
    file = tmp_path / "f"
    file.write_bytes(b"")
    entries = posix_acl.in_order(
        (*posix_acl.from_mode(0o640), AclEntry(AclTag.USER, 6, 1234), AclEntry(AclTag.MASK, 5))
    )
    os.setxattr(file, "system.posix_acl_access", posix_acl.encode(entries))
    assert posix_acl.decode(os.getxattr(file, "system.posix_acl_access")) == entries
    assert file.stat().st_mode & 0o777 == posix_acl.mode_of(entries) == 0o650
    assert subprocess.run(["ls", "-l", file], capture_output=True, check=True, text=True).stdout[:11] == "-rw-r-x---+"


@pytest.mark.parametrize("value", [b"", b"\2\0\0", b"\1\0\0\0", b"\2\0\0\0\1", b"\2\0\0\0" + bytes(7)])
def test_what_is_no_acl_is_not_decoded(value):
    with pytest.raises(ValueError, match="no POSIX ACL"):
        posix_acl.decode(value)


@pytest.mark.parametrize(
    "entries",
    [
        (),
        posix_acl.from_mode(0o777)[:2],
        (*posix_acl.from_mode(0o777), AclEntry(AclTag.USER, 7, 5)),
        (
            *posix_acl.from_mode(0o777),
            AclEntry(AclTag.MASK, 7),
            AclEntry(AclTag.USER, 7, 5),
            AclEntry(AclTag.USER, 1, 5),
        ),
        (*posix_acl.from_mode(0o777), AclEntry(AclTag.MASK, 7), AclEntry(AclTag.USER, 7, NO_ID)),
        (*posix_acl.from_mode(0o777), AclEntry(AclTag.MASK, 8)),
        (*posix_acl.from_mode(0o777), AclEntry(3, 7)),
    ],
)
def test_acls_the_kernel_would_not_take(entries):
    assert not posix_acl.is_valid(posix_acl.in_order(entries))
