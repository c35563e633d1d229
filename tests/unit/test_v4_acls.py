"""FATTR4_ACL over the protocol: read, set, with new files, refused; what the mode and the umask have to do with it."""

import os
import struct

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.v4 import attributes
from nfsd.v4.attributes import words_of
from nfsd.vfs import posix_acl
from nfsd.vfs.posix_acl import AclEntry, AclTag
from rpcrdma.xdr import Decoder, Encoder
from tests.support.nfs4 import Client4, Failed, LoopbackTransport, mode, values, wanted, with_client

MINORS = [0, 1, 2]
ANONYMOUS = p.stateid4(0, bytes(12))
ALLOW, DENY = p.ACE4_ACCESS_ALLOWED_ACE_TYPE, p.ACE4_ACCESS_DENIED_ACE_TYPE
READ = p.ACE4_READ_DATA
WRITE = p.ACE4_WRITE_DATA | p.ACE4_APPEND_DATA
INHERITED = p.ACE4_FILE_INHERIT_ACE | p.ACE4_DIRECTORY_INHERIT_ACE
OWNER_READS = p.nfsace4(ALLOW, 0, READ | WRITE, b"OWNER@")


def local_acl(path, name="access"):
    """The POSIX ACL as the kernel has it: [(tag, permissions, id)…], taken apart here."""
    try:
        value = os.getxattr(path, f"system.posix_acl_{name}", follow_symlinks=False)
    except OSError:
        return None
    return list(struct.iter_unpack("<HHI", value[4:]))


def acl_attribute(*aces, more=0, tail=b""):
    """A fattr4 with an ACL, and more attributes behind it."""
    e = Encoder()
    e.encode(p.fattr4_acl, list(aces))
    return p.fattr4(words_of(1 << p.FATTR4_ACL | more), e.getvalue() + tail)


def setting(given):
    return (p.OP_SETATTR, p.SETATTR4args(ANONYMOUS, given))


async def acl_of(client, path):
    *_, got = await client.run(*client.path(path), (p.OP_GETATTR, wanted(p.FATTR4_ACL)))
    assert got.resok4.obj_attributes.attrmask == words_of(1 << p.FATTR4_ACL)
    return values(got.resok4.obj_attributes).decode(p.fattr4_acl)


def word(number):
    return struct.pack(">I", number)


@pytest.mark.parametrize("minor", MINORS)
def test_an_acl_set_is_the_kernels_and_comes_back(tmp_path, minor):
    async def test(client, export, server):
        file = export / "f"
        file.write_bytes(b"")
        file.chmod(0o600)
        given = acl_attribute(
            p.nfsace4(ALLOW, 0, READ | WRITE, b"OWNER@"),
            p.nfsace4(ALLOW, 0, READ, b"1234"),
            p.nfsace4(ALLOW, p.ACE4_IDENTIFIER_GROUP, READ | WRITE, b"4321"),
            p.nfsace4(ALLOW, p.ACE4_IDENTIFIER_GROUP, 0, b"GROUP@"),
        )
        *_, done = await client.run(*client.path("/0/f"), setting(given))
        assert done.attrsset == words_of(1 << p.FATTR4_ACL)
        no_id = 0xFFFFFFFF
        assert local_acl(file) == [
            (1, 6, no_id), (2, 4, 1234), (4, 0, no_id), (8, 6, 4321), (0x10, 6, no_id), (0x20, 0, no_id),
        ]  # fmt: skip
        assert file.stat().st_mode & 0o777 == 0o660
        shown = await acl_of(client, "/0/f")
        assert [(ace.type, ace.flag, ace.who) for ace in shown] == [
            (ALLOW, 0, b"OWNER@"),
            (DENY, 0, b"1234"),
            (ALLOW, 0, b"1234"),
            (ALLOW, 0, b"GROUP@"),
            (ALLOW, p.ACE4_IDENTIFIER_GROUP, b"4321"),
            (ALLOW, 0, b"EVERYONE@"),
        ]
        # Set as it came, it is the same.
        before = local_acl(file)
        await client.run(*client.path("/0/f"), setting(acl_attribute(*shown)))
        assert local_acl(file) == before
        # And an ACL that says no more than a mode leaves no more than a mode.
        await client.run(*client.path("/0/f"), setting(acl_attribute(p.nfsace4(ALLOW, 0, READ, b"EVERYONE@"))))
        assert local_acl(file) is None
        assert file.stat().st_mode & 0o777 == 0o444

    with_client(tmp_path, minor, test)


def test_aclsupport_and_supported_attrs_say_so(tmp_path):
    async def test(client, export, server):
        (export / "link").symlink_to("x")
        for path, kept in (("/0", True), ("/0/link", True), ("/", False)):
            *_, got = await client.run(*client.path(path), (p.OP_GETATTR, wanted(p.FATTR4_ACLSUPPORT)))
            assert values(got.resok4.obj_attributes).uint32() == (3 if kept else 0)
            *_, got = await client.run(*client.path(path), (p.OP_GETATTR, wanted(p.FATTR4_SUPPORTED_ATTRS)))
            d = values(got.resok4.obj_attributes)
            mask = attributes.mask_of([d.uint32() for _ in range(d.uint32())])
            assert bool(mask >> p.FATTR4_ACL & 1) == kept

    with_client(tmp_path, 1, test)


def test_a_file_without_an_acl_shows_its_mode(tmp_path):
    async def test(client, export, server):
        (export / "f").write_bytes(b"")
        (export / "f").chmod(0o604)
        (export / "link").symlink_to("f")
        aces = await acl_of(client, "/0/f")
        assert [(ace.type, ace.access_mask & 0x27, ace.who) for ace in aces] == [
            (ALLOW, READ | WRITE, b"OWNER@"),
            (ALLOW, 0, b"GROUP@"),
            (DENY, READ, b"GROUP@"),
            (ALLOW, READ, b"EVERYONE@"),
        ]
        assert len(await acl_of(client, "/0/link")) == 3
        link = client.path("/0/link")
        assert await client.status(*link, setting(acl_attribute(OWNER_READS))) == p.NFS4ERR_ATTRNOTSUPP

    with_client(tmp_path, 2, test)


@pytest.mark.parametrize("minor", MINORS)
def test_a_default_acl_is_what_a_directory_hands_down(tmp_path, minor):
    async def test(client, export, server):
        (export / "d").mkdir()
        handed_down = INHERITED | p.ACE4_INHERIT_ONLY_ACE
        given = acl_attribute(
            p.nfsace4(ALLOW, 0, READ | WRITE | p.ACE4_EXECUTE | p.ACE4_DELETE_CHILD, b"OWNER@"),
            p.nfsace4(ALLOW, handed_down, READ | WRITE | p.ACE4_EXECUTE | p.ACE4_DELETE_CHILD, b"OWNER@"),
            p.nfsace4(ALLOW, handed_down, READ, b"1234"),
        )
        await client.run(*client.path("/0/d"), setting(given))
        assert (2, 4, 1234) in local_acl(export / "d", "default")
        assert local_acl(export / "d") is None
        flags = [ace.flag for ace in await acl_of(client, "/0/d")]
        assert flags[:3] == [0, 0, 0]
        assert set(flags[3:]) == {handed_down}
        # The kernel hands it down; the mode of the creation bounds it.
        await client.open("/0/d", b"f", create=mode(0o666))
        assert (2, 4, 1234) in local_acl(export / "d" / "f")
        assert (export / "d" / "f").stat().st_mode & 0o777 == 0o640
        made = p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4DIR), b"sub", mode(0o777))
        await client.run(*client.path("/0/d"), (p.OP_CREATE, made))
        assert local_acl(export / "d" / "sub", "default") == local_acl(export / "d", "default")
        # Without entries to hand down there is no default ACL any more.
        await client.run(*client.path("/0/d"), setting(acl_attribute(OWNER_READS)))
        assert local_acl(export / "d", "default") is None

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_files_and_directories_are_made_with_the_acl_given(tmp_path, minor):
    async def test(client, export, server):
        (export / "d").mkdir()
        default = (*posix_acl.from_mode(0o777), AclEntry(AclTag.USER, 7, 99), AclEntry(AclTag.MASK, 7))
        os.setxattr(export / "d", "system.posix_acl_default", posix_acl.encode(posix_acl.in_order(default)))
        given = acl_attribute(OWNER_READS, p.nfsace4(ALLOW, 0, READ, b"1234"))
        args = client.open_args(b"f", create=given)
        *_, opened = await client.run(*client.path("/0/d"), (p.OP_OPEN, args))
        assert opened.resok4.attrset == words_of(1 << p.FATTR4_ACL)
        # Nothing is inherited besides (RFC 8881 section 6.4.3).
        assert [entry[:2] for entry in local_acl(export / "d" / "f")] == [(1, 6), (2, 4), (4, 0), (0x10, 4), (0x20, 0)]
        made = p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4DIR), b"sub", given)
        *_, created = await client.run(*client.path("/0/d"), (p.OP_CREATE, made))
        assert created.resok4.attrset == words_of(1 << p.FATTR4_ACL)
        assert local_acl(export / "d" / "sub", "default") is None
        assert (2, 4, 1234) in local_acl(export / "d" / "sub")
        # A file that is there keeps its ACL: only its size is set.
        other = acl_attribute(p.nfsace4(ALLOW, 0, READ, b"EVERYONE@"))
        *_, opened = await client.run(*client.path("/0/d"), (p.OP_OPEN, client.open_args(b"f", create=other)))
        assert opened.resok4.attrset == []
        assert (2, 4, 1234) in local_acl(export / "d" / "f")

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", [1, 2])
def test_an_exclusive_creation_takes_an_acl_too(tmp_path, minor):
    async def test(client, export, server):
        given = acl_attribute(OWNER_READS, p.nfsace4(ALLOW, 0, READ, b"1234"))
        how = p.createhow4(p.createmode4.EXCLUSIVE4_1, ch_createboth=p.creatverfattr(b"verifier", given))
        args = client.open_args(b"f", how=how)
        *_, opened = await client.run(*client.path("/0"), (p.OP_OPEN, args))
        assert attributes.mask_of(opened.resok4.attrset) >> p.FATTR4_ACL & 1
        assert (2, 4, 1234) in local_acl(export / "f")

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_mode_and_acl_together_the_mode_comes_first(tmp_path, minor):
    async def test(client, export, server):
        file = export / "f"
        file.write_bytes(b"")
        given = acl_attribute(OWNER_READS, more=1 << p.FATTR4_MODE, tail=word(0o4777))
        await client.run(*client.path("/0/f"), setting(given))
        assert file.stat().st_mode & 0o7777 == 0o4600
        # A mode alone goes over the ACL: for the kernel its group bits are the mask.
        await client.run(
            *client.path("/0/f"), setting(acl_attribute(OWNER_READS, p.nfsace4(ALLOW, 0, READ | WRITE, b"1234")))
        )
        await client.run(*client.path("/0/f"), setting(mode(0o640)))
        assert [entry[:2] for entry in local_acl(file)] == [(1, 6), (2, 6), (4, 0), (0x10, 4), (0x20, 0)]
        shown = await acl_of(client, "/0/f")
        assert [ace.access_mask & (READ | WRITE) for ace in shown if ace.who == b"1234" and ace.type == ALLOW] == [READ]

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize(
    ("ace", "status"),
    [
        (p.nfsace4(p.ACE4_SYSTEM_AUDIT_ACE_TYPE, 0, READ, b"EVERYONE@"), p.NFS4ERR_ATTRNOTSUPP),
        (p.nfsace4(p.ACE4_SYSTEM_ALARM_ACE_TYPE, 0, READ, b"EVERYONE@"), p.NFS4ERR_ATTRNOTSUPP),
        (p.nfsace4(ALLOW, p.ACE4_DIRECTORY_INHERIT_ACE, READ, b"EVERYONE@"), p.NFS4ERR_ATTRNOTSUPP),
        (p.nfsace4(ALLOW, 0, READ, b"INTERACTIVE@"), p.NFS4ERR_BADOWNER),
        (p.nfsace4(ALLOW, 0, READ, b"somebody@elsewhere.example"), p.NFS4ERR_BADOWNER),
        (p.nfsace4(ALLOW, 0, READ, b"4294967295"), p.NFS4ERR_BADOWNER),
        (p.nfsace4(ALLOW, 0, READ, b""), p.NFS4ERR_BADOWNER),
        (p.nfsace4(ALLOW, 0, READ, b"\xff\0"), p.NFS4ERR_BADOWNER),
    ],
)
def test_acls_that_are_refused_change_and_make_nothing(tmp_path, minor, ace, status):
    async def test(client, export, server):
        file = export / "f"
        file.write_bytes(b"")
        file.chmod(0o640)
        given = acl_attribute(OWNER_READS, ace)
        assert await client.status(*client.path("/0/f"), setting(given)) == status
        assert file.stat().st_mode & 0o777 == 0o640
        assert await client.status(*client.path("/0"), (p.OP_OPEN, client.open_args(b"new", create=given))) == status
        made = p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4FIFO), b"new", given)
        assert await client.status(*client.path("/0"), (p.OP_CREATE, made)) == status
        assert os.listdir(export) == ["f"]

    with_client(tmp_path, minor, test)


def test_sizes_of_acls_are_bounded(tmp_path):
    async def test(client, export, server):
        (export / "f").write_bytes(b"")
        here = client.path("/0/f")
        lying = p.fattr4(words_of(1 << p.FATTR4_ACL), word(0x7FFFFFFF) + bytes(40))
        assert await client.status(*here, setting(lying)) == p.NFS4ERR_BADXDR
        many = [p.nfsace4(ALLOW, 0, READ, b"%d" % number) for number in range(1, 1026)]
        assert await client.status(*here, setting(acl_attribute(*many))) == p.NFS4ERR_NOSPC
        # As many as this file system takes, and a look at them.
        await client.run(*here, setting(acl_attribute(*many[:400])))
        assert len(local_acl(export / "f")) == 404
        # Deny and allow for the owner, an entry for each user, the group, everyone.
        assert len(await acl_of(client, "/0/f")) == 2 + 400 + 2

    with_client(tmp_path, 2, test)


def test_what_cannot_be_made_with_its_acl_is_not_made(tmp_path):
    async def test(client, export, server):
        # More than a block of ext4, so the kernel refuses after the file is there; where it fits, the file stays.
        many = [p.nfsace4(ALLOW, 0, READ, b"%d" % number) for number in range(1, 1000)]
        given = acl_attribute(*many)
        status = await client.status(*client.path("/0"), (p.OP_OPEN, client.open_args(b"f", create=given)))
        made = p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4DIR), b"d", given)
        assert await client.status(*client.path("/0"), (p.OP_CREATE, made)) == status
        assert sorted(os.listdir(export)) == ([] if status else ["d", "f"])
        try:
            os.setxattr(tmp_path, "system.posix_acl_access", posix_acl.encode(large()))
        except OSError:
            assert status == p.NFS4ERR_NOSPC
        else:
            assert status == p.NFS4_OK

    def large():
        users = (AclEntry(AclTag.USER, 4, number) for number in range(1, 1000))
        return posix_acl.in_order((*posix_acl.from_mode(0o700), AclEntry(AclTag.MASK, 4), *users))

    with_client(tmp_path, 2, test)


def test_only_the_owner_sets_an_acl_and_the_kernel_heeds_it(tmp_path):
    async def test(client, export, server):
        (export / "f").write_bytes(b"secret")
        os.chown(export / "f", 1001, 1001)
        (export / "f").chmod(0o600)
        alice, bob = [
            await Client4(server, 2, uid=uid, gid=uid, name=b"%d" % uid, transport=LoopbackTransport()).connect()
            for uid in (1001, 1002)
        ]
        given = acl_attribute(OWNER_READS, p.nfsace4(ALLOW, 0, READ, b"1002"))
        look = (*bob.path("/0/f"), (p.OP_ACCESS, p.ACCESS4args(3)))
        *_, seen = await bob.run(*look)
        assert seen.resok4.access == 0
        assert await bob.status(*bob.path("/0/f"), setting(given)) == p.NFS4ERR_PERM
        await alice.run(*alice.path("/0/f"), setting(given))
        *_, seen = await bob.run(*look)
        assert seen.resok4.access == p.ACCESS4_READ
        await bob.open("/0", b"f", access=1)
        with pytest.raises(Failed) as refused:
            await bob.open("/0", b"f", access=2, owner=b"another")
        assert refused.value.status == p.NFS4ERR_ACCESS

    with_client(tmp_path, 2, test)


def test_listings_show_acls(tmp_path):
    async def test(client, export, server):
        for name, bits in (("a", 0o600), ("b", 0o644)):
            (export / name).write_bytes(b"")
            (export / name).chmod(bits)
        listing = p.READDIR4args(0, bytes(8), 8192, 8192, words_of(1 << p.FATTR4_ACL | 1 << p.FATTR4_FILEID))
        *_, listed = await client.run(*client.path("/0"), (p.OP_READDIR, listing))
        found = {}
        for entry in listed.resok4.reply.entries:
            d = Decoder(memoryview(entry.attrs.attr_vals))
            found[entry.name] = d.decode(p.fattr4_acl)[-1].access_mask & READ
            assert d.uint64() == os.stat(export / entry.name.decode()).st_ino
        assert found == {b"a": 0, b"b": READ}

    with_client(tmp_path, 1, test)


def test_the_umask_is_for_directories_without_a_default_acl(tmp_path):
    """RFC 8275 section 3: MODE_UMASK in 4.2."""

    async def test(client, export, server):
        (export / "plain").mkdir()
        (export / "with").mkdir()
        default = (*posix_acl.from_mode(0o775), AclEntry(AclTag.USER, 7, 99), AclEntry(AclTag.MASK, 7))
        os.setxattr(export / "with", "system.posix_acl_default", posix_acl.encode(posix_acl.in_order(default)))
        given = p.fattr4(words_of(1 << p.FATTR4_MODE_UMASK), word(0o666) + word(0o077))
        for directory, expected in (("plain", 0o600), ("with", 0o664)):
            await client.open(f"/0/{directory}", b"f", create=given)
            assert (export / directory / "f").stat().st_mode & 0o7777 == expected, directory
        given = p.fattr4(words_of(1 << p.FATTR4_MODE_UMASK), word(0o1777) + word(0o022))
        for directory, expected in (("plain", 0o1755), ("with", 0o1775)):
            made = p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4DIR), b"d", given)
            await client.run(*client.path(f"/0/{directory}"), (p.OP_CREATE, made))
            assert (export / directory / "d").stat().st_mode & 0o7777 == expected, directory
        assert (2, 7, 99) in local_acl(export / "with" / "d")

    with_client(tmp_path, 2, test)
