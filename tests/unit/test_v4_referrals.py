"""Referrals and replicas: what clients learn of file systems elsewhere (RFC 8881 section 11, RFC 7530 section 8)."""

import asyncio

import pytest

from nfsd.checking import summary
from nfsd.config_file import ConfigError, parse
from nfsd.exports import Export, Place
from nfsd.protocol import nfs4 as p
from nfsd.v4 import attributes
from nfsd.v4.attributes import words_of
from nfsd.v4.pseudofs import PseudoNode
from tests.support.nfs4 import Client4, Failed, LoopbackTransport, serving, values, wanted

MINORS = [0, 1, 2]
AWAY = Export(
    77, "", "/deep/away",
    referral=(Place("one.example.org", "/x/y"), Place("two.example.org", "/x/y"), Place("::1", "/z")),
    clients=("127.0.0.1",),
)  # fmt: skip
HOME = Export(78, "", "/home", replicas=(Place("mirror", "/home"),))
LOCATIONS = (1 << p.FATTR4_FS_LOCATIONS) | (1 << p.FATTR4_FSID) | (1 << p.FATTR4_MOUNTED_ON_FILEID)


def with_referral(tmp_path, minor, test, address="127.0.0.1"):
    async def main():
        for name in ("export", "home", "state"):
            (tmp_path / name).mkdir(exist_ok=True)
        home = Export(78, str(tmp_path / "home"), "/home", squash="none", replicas=HOME.replicas)
        async with serving(tmp_path / "export", state_dir=tmp_path / "state", more=(AWAY, home)) as server:
            await test(await Client4(server, minor, transport=LoopbackTransport(address)).connect())

    asyncio.run(main())


def asking(mask):
    return (p.OP_GETATTR, p.GETATTR4args(words_of(mask)))


@pytest.mark.parametrize("minor", MINORS)
def test_the_way_there_is_told_and_nothing_else(tmp_path, minor):
    async def test(client):
        away = client.path("/deep/away")
        *_, got = await client.run(*away, asking(LOCATIONS | 1 << p.FATTR4_SIZE | 1 << p.FATTR4_TYPE))
        given = got.resok4.obj_attributes
        assert given.attrmask == words_of(LOCATIONS), "and not what an absent file system does not have"
        d = values(given)
        fsid = d.decode(p.fsid4)
        told = d.decode(p.fs_locations4)
        assert d.uint64() > 0
        assert told.fs_root == [b"deep", b"away"]
        assert [(one.server, one.rootpath) for one in told.locations] == [
            ([b"one.example.org", b"two.example.org"], [b"x", b"y"]),
            ([b"::1"], [b"z"]),
        ]
        others = []
        for path in ("/", "/deep", "/0", "/home"):
            *_, got = await client.run(*client.path(path), wanted_of(p.FATTR4_FSID))
            others.append(values(got.resok4.obj_attributes).decode(p.fsid4))
        assert fsid not in others
        # Asked for anything without asking where it is: it has moved.
        assert await client.status(*away, wanted_of(p.FATTR4_FSID)) == p.NFS4ERR_MOVED
        assert await client.status(*away, wanted_of(p.FATTR4_SIZE, p.FATTR4_RDATTR_ERROR)) == p.NFS4ERR_MOVED

    with_referral(tmp_path, minor, test)


def wanted_of(*numbers):
    return (p.OP_GETATTR, wanted(*numbers))


@pytest.mark.parametrize("minor", MINORS)
def test_no_other_operation_begins_there(tmp_path, minor):
    async def test(client):
        away = client.path("/deep/away")
        assert await client.status(*away) == p.NFS4_OK, "to get there is no error yet"
        mkdir = p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4DIR), b"d", p.fattr4([], b""))
        for operation in (
            p.OP_GETFH,
            p.OP_LOOKUPP,
            p.OP_SAVEFH,
            (p.OP_LOOKUP, p.LOOKUP4args(b"x")),
            (p.OP_ACCESS, p.ACCESS4args(1)),
            (p.OP_READDIR, p.READDIR4args(0, bytes(8), 4096, 4096, words_of(LOCATIONS))),
            (p.OP_OPEN, client.open_args(b"x")),
            (p.OP_CREATE, mkdir),
            (p.OP_SECINFO, p.SECINFO4args(b"x")),
            (p.OP_SETATTR, p.SETATTR4args(p.stateid4(0, bytes(12)), p.fattr4([], b""))),
        ):
            assert await client.status(*away, operation) == p.NFS4ERR_MOVED, operation
        assert await client.status(*away, p.OP_PUTROOTFH, p.OP_GETFH) == p.NFS4_OK
        assert await client.status(*client.path("/deep"), (p.OP_SECINFO, p.SECINFO4args(b"away"))) == p.NFS4_OK

    with_referral(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_verify_compares_what_there_is(tmp_path, minor):
    async def test(client):
        away = client.path("/deep/away")
        *_, got = await client.run(*away, asking(LOCATIONS))
        given = got.resok4.obj_attributes
        assert await client.status(*away, (p.OP_VERIFY, p.VERIFY4args(given))) == p.NFS4_OK
        assert await client.status(*away, (p.OP_NVERIFY, p.NVERIFY4args(given))) == p.NFS4ERR_SAME
        *_, got = await client.run(*away, asking(1 << p.FATTR4_FS_LOCATIONS))
        more = p.fattr4(words_of(1 << p.FATTR4_FS_LOCATIONS | 1 << p.FATTR4_SIZE), bytes(8))
        assert await client.status(*away, (p.OP_VERIFY, p.VERIFY4args(more))) == p.NFS4ERR_MOVED
        fsid = p.fattr4(words_of(1 << p.FATTR4_FSID), bytes(16))
        assert await client.status(*away, (p.OP_VERIFY, p.VERIFY4args(fsid))) == p.NFS4ERR_MOVED

    with_referral(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_listings_around_it(tmp_path, minor):
    """RFC 8881 section 11.4.2."""

    async def test(client):
        async def listing(mask):
            args = p.READDIR4args(0, bytes(8), 4096, 4096, words_of(mask))
            *_, listed = await client.run(*client.path("/deep"), (p.OP_READDIR, args))
            (entry,) = listed.resok4.reply.entries
            assert entry.name == b"away"
            return attributes.mask_of(entry.attrs.attrmask), values(entry.attrs)

        error = 1 << p.FATTR4_RDATTR_ERROR
        mask, _ = await listing(LOCATIONS | 1 << p.FATTR4_TYPE)
        assert mask == LOCATIONS
        mask, d = await listing(LOCATIONS | error | 1 << p.FATTR4_TYPE)
        assert mask == LOCATIONS | error
        d.decode(p.fsid4)
        assert d.uint32() == p.NFS4_OK
        mask, d = await listing(error | 1 << p.FATTR4_TYPE | 1 << p.FATTR4_MOUNTED_ON_FILEID)
        assert mask == error | 1 << p.FATTR4_MOUNTED_ON_FILEID
        assert d.uint32() == p.NFS4ERR_MOVED
        with pytest.raises(Failed) as failed:
            await listing(1 << p.FATTR4_TYPE)
        assert failed.value.status == p.NFS4ERR_MOVED
        # The directory above is no part of it.
        args = p.READDIR4args(0, bytes(8), 4096, 4096, words_of(1 << p.FATTR4_TYPE))
        *_, listed = await client.run(*client.path("/"), (p.OP_READDIR, args))
        assert [entry.name for entry in listed.resok4.reply.entries] == [b"0", b"deep", b"home"]

    with_referral(tmp_path, minor, test)


def test_present_file_systems_tell_their_replicas(tmp_path):
    async def test(client):
        for path, root, locations in (
            ("/home", [b"home"], [([b"mirror"], [b"home"])]),
            ("/0", [b"0"], []),
            ("/", [], []),
        ):
            *_, got = await client.run(*client.path(path), wanted_of(p.FATTR4_FS_LOCATIONS))
            told = values(got.resok4.obj_attributes).decode(p.fs_locations4)
            assert told.fs_root == root
            assert [(one.server, one.rootpath) for one in told.locations] == locations

    with_referral(tmp_path, 1, test)


@pytest.mark.parametrize("minor", [1, 2])
def test_fs_status_tells_what_is_absent(tmp_path, minor):
    async def test(client):
        kinds = p.fs4_status_type
        for path, absent, kind in (
            ("/deep/away", True, kinds.STATUS4_REFERRAL),
            ("/home", False, kinds.STATUS4_WRITABLE),
            ("/deep", False, kinds.STATUS4_UPDATED),
        ):
            *_, got = await client.run(*client.path(path), wanted_of(p.FATTR4_FS_STATUS))
            told = values(got.resok4.obj_attributes).decode(p.fs4_status)
            assert (told.fss_absent, told.fss_type, told.fss_age) == (absent, kind, -1)
        args = p.READDIR4args(0, bytes(8), 4096, 4096, words_of(1 << p.FATTR4_FS_STATUS))
        *_, listed = await client.run(*client.path("/deep"), (p.OP_READDIR, args))
        assert values(listed.resok4.reply.entries[0].attrs).decode(p.fs4_status).fss_absent

    with_referral(tmp_path, minor, test)


def test_who_is_not_meant_does_not_see_it(tmp_path):
    async def test(client):
        assert await client.status(*client.path("/deep")) == p.NFS4ERR_NOENT
        args = p.READDIR4args(0, bytes(8), 4096, 4096, words_of(1 << p.FATTR4_TYPE))
        *_, listed = await client.run(*client.path("/"), (p.OP_READDIR, args))
        assert [entry.name for entry in listed.resok4.reply.entries] == [b"0", b"home"]

    with_referral(tmp_path, 1, test, address="192.0.2.1")


@pytest.mark.parametrize("minor", MINORS)
def test_who_is_not_meant_learns_nothing_by_its_handle(tmp_path, minor):
    """Handles of the pseudo file system follow from paths: a stranger may know them."""

    async def test(stranger):
        meant = await Client4(stranger.server, minor, transport=LoopbackTransport("127.0.0.1"), name=b"meant").connect()
        for path, asked, status in (
            ("/deep/away", LOCATIONS, p.NFS4ERR_STALE),
            ("/home", 1 << p.FATTR4_TYPE, p.NFS4_OK),
            ("/", 1 << p.FATTR4_TYPE, p.NFS4_OK),
        ):
            there = (p.OP_PUTFH, p.PUTFH4args(PseudoNode(b"", None, path).handle))
            assert await meant.status(there, asking(asked)) == p.NFS4_OK
            assert await stranger.status(there, asking(asked)) == status, path

    with_referral(tmp_path, minor, test, address="192.0.2.1")


CONFIG = """
server:
  listen: ["tcp://127.0.0.1:2049"]
exports:
  - path: ./export
    pseudo: /here
    replicas: ["[2001:db8::1]:/here"]
  - pseudo: /there
"""
GOOD = '    referral: ["other.example.org:/there", "10.0.0.1:/a/b"]\n'


def test_the_configuration_of_referrals(tmp_path):
    (tmp_path / "export").mkdir()
    file = str(tmp_path / "exports.yaml")
    here, there = parse(CONFIG + GOOD, file).exports
    assert here.replicas == (Place("2001:db8::1", "/here"),)
    assert [str(place) for place in here.replicas] == ["[2001:db8::1]:/here"]
    assert there.referral == (Place("other.example.org", "/there"), Place("10.0.0.1", "/a/b"))
    assert (there.path, there.pseudo) == ("", "/there")
    assert "-> other.example.org:/there -> 10.0.0.1:/a/b" in summary(parse(CONFIG + GOOD, file))
    for bad, key, message in (
        ("", "exports[1].path", "is missing"),
        ('    referral: ["other"]\n', "exports[1].referral[0]", "HOST:/PATH"),
        ('    referral: ["other:there"]\n', "exports[1].referral[0]", "HOST:/PATH"),
        ('    referral: ["::1:/there"]\n', "exports[1].referral[0]", "brackets"),
        ('    referral: ["other:/x"]\n    path: ./export\n', "exports[1].path", "remove path or referral"),
        ('    referral: ["other:/x"]\n    replicas: ["other:/x"]\n', "exports[1].replicas", "in referral"),
        ('    referral: ["other:/x"]\n  - referral: ["other:/x"]\n', "exports[2].pseudo", "is missing"),
        (
            '    referral: ["other:/x"]\n  - pseudo: /there\n    referral: ["o:/x"]\n',
            "exports[2].pseudo",
            "another export",
        ),
    ):
        with pytest.raises(ConfigError) as wrong:
            parse(CONFIG + bad, file)
        assert any(problem.key == key and message in problem.message for problem in wrong.value.problems), bad
