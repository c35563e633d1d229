"""GETATTR, SETATTR, VERIFY, NVERIFY and ACCESS: every attribute, asked for, compared, set, and refused."""

import os

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.v4 import attributes
from nfsd.v4.attributes import words_of
from rpcrdma.xdr import Encoder
from tests.support.nfs4 import Client4, LoopbackTransport, mode, values, wanted, with_client

MINORS = [0, 1, 2]
ANONYMOUS = p.stateid4(0, bytes(12))
CHANGING = {p.FATTR4_RDATTR_ERROR, p.FATTR4_SPACE_AVAIL, p.FATTR4_SPACE_FREE, p.FATTR4_FILES_AVAIL, p.FATTR4_FILES_FREE}
"""What cannot be compared, or may have changed by itself between two requests."""


def fattr(number, value=b""):
    return p.fattr4(words_of(1 << number), value)


def setting(given, stateid=ANONYMOUS):
    return (p.OP_SETATTR, p.SETATTR4args(stateid, given))


def encoded(method, *given):
    e = Encoder()
    for one in given:
        getattr(e, method)(one)
    return e.getvalue()


def readable(minor):
    mask = attributes.readable(attributes.supported(minor), minor)
    return [number for number in range(mask.bit_length()) if mask >> number & 1 and number not in CHANGING]


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("path", ["/", "/0", "/0/file", "/0/link"])
def test_every_attribute_is_the_same_to_verify_as_to_getattr(tmp_path, minor, path):
    async def test(client, export, server):
        (export / "file").write_bytes(b"content")
        (export / "link").symlink_to("file")
        here = client.path(path)
        *_, got = await client.run(*here, (p.OP_GETATTR, wanted(p.FATTR4_SUPPORTED_ATTRS)))
        d = values(got.resok4.obj_attributes)
        supported = attributes.mask_of([d.uint32() for _ in range(d.uint32())])
        # The pseudo file system has no ACLs and no births; real files have. Quotas and labels are nowhere here.
        absent = {p.FATTR4_QUOTA_AVAIL_HARD, p.FATTR4_QUOTA_AVAIL_SOFT, p.FATTR4_QUOTA_USED}
        if minor == 2:
            absent.add(p.FATTR4_SEC_LABEL)
        if path == "/":
            absent |= {p.FATTR4_ACL, p.FATTR4_TIME_CREATE}
        assert {number for number in readable(minor) if not supported >> number & 1} == absent
        for number in readable(minor):
            *_, got = await client.run(*here, (p.OP_GETATTR, wanted(number)))
            given = got.resok4.obj_attributes
            assert given.attrmask == (words_of(1 << number) if supported >> number & 1 else []), number
            if not given.attrmask:
                named = (p.OP_VERIFY, p.VERIFY4args(fattr(number, bytes(8))))
                assert await client.status(*here, named) == p.NFS4ERR_ATTRNOTSUPP
                continue
            same = (p.OP_VERIFY, p.VERIFY4args(given)), (p.OP_NVERIFY, p.NVERIFY4args(given))
            assert [await client.status(*here, one) for one in same] == [p.NFS4_OK, p.NFS4ERR_SAME], number
            other = fattr(number, bytes(len(given.attr_vals) + 4))
            differ = (p.OP_VERIFY, p.VERIFY4args(other)), (p.OP_NVERIFY, p.NVERIFY4args(other))
            assert [await client.status(*here, one) for one in differ] == [p.NFS4ERR_NOT_SAME, p.NFS4_OK], number

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_attributes_that_can_only_be_set_are_not_asked_for(tmp_path, minor):
    async def test(client, export, server):
        only_set = [p.FATTR4_TIME_ACCESS_SET, p.FATTR4_TIME_MODIFY_SET]
        for number in only_set:
            here = client.path("/0")
            given = fattr(number, bytes(4))
            assert await client.status(*here, (p.OP_GETATTR, wanted(number))) == p.NFS4ERR_INVAL
            assert await client.status(*here, (p.OP_VERIFY, p.VERIFY4args(given))) == p.NFS4ERR_INVAL
            assert await client.status(*here, (p.OP_NVERIFY, p.NVERIFY4args(given))) == p.NFS4ERR_INVAL
            listing = p.READDIR4args(0, bytes(8), 4096, 4096, words_of(1 << number))
            assert await client.status(*here, (p.OP_READDIR, listing)) == p.NFS4ERR_INVAL

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_unknown_attributes_are_left_out_or_refused(tmp_path, minor):
    async def test(client, export, server):
        unknown = 95
        here = client.path("/0")
        *_, got = await client.run(*here, (p.OP_GETATTR, wanted(p.FATTR4_SIZE, unknown)))
        assert got.resok4.obj_attributes.attrmask == words_of(1 << p.FATTR4_SIZE)
        for operation in (
            setting(fattr(unknown, bytes(4))),
            (p.OP_VERIFY, p.VERIFY4args(fattr(unknown, bytes(4)))),
            (p.OP_NVERIFY, p.NVERIFY4args(fattr(unknown, bytes(4)))),
            (p.OP_CREATE, p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4DIR), b"x", fattr(unknown, bytes(4)))),
            (p.OP_OPEN, client.open_args(b"x", create=fattr(unknown, bytes(4)))),
        ):
            assert await client.status(*here, operation) == p.NFS4ERR_ATTRNOTSUPP
        assert os.listdir(export) == []

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_what_can_only_be_read_is_not_set(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"")
        for number in readable(minor):
            if attributes.SETTABLE >> number & 1:
                continue
            assert await client.status(*client.path("/0/f"), setting(fattr(number, bytes(8)))) == p.NFS4ERR_INVAL

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_values_that_do_not_decode(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"")
        here = client.path("/0/f")
        right = encoded("uint32", 0o600)
        for bad in (b"", right[:3], right + bytes(4), right + b"\0"):
            assert await client.status(*here, setting(fattr(p.FATTR4_MODE, bad))) == p.NFS4ERR_BADXDR
        assert await client.status(*here, setting(fattr(p.FATTR4_MODE, encoded("uint32", 0x10000)))) == p.NFS4ERR_INVAL
        late = encoded("uint32", 1) + encoded("int64", 5) + encoded("uint32", 10**9)
        assert await client.status(*here, setting(fattr(p.FATTR4_TIME_MODIFY_SET, late))) == p.NFS4ERR_INVAL
        assert await client.status(*here, setting(fattr(p.FATTR4_MODE, right))) == p.NFS4_OK

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_owners_are_numbers(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"")
        here = client.path("/0/f")
        for number in (p.FATTR4_OWNER, p.FATTR4_OWNER_GROUP):
            assert await client.status(*here, setting(fattr(number, encoded("opaque", b"1234")))) == p.NFS4_OK
            assert await client.status(*here, setting(fattr(number, encoded("opaque", b"")))) == p.NFS4ERR_INVAL
            for name in (b"4294967295", b"99999999999", b"-1", b"\xff"):
                assert await client.status(*here, setting(fattr(number, encoded("opaque", name)))) == p.NFS4ERR_BADOWNER
        made = os.stat(export / "f")
        assert (made.st_uid, made.st_gid) == (1234, 1234)
        *_, got = await client.run(*here, (p.OP_GETATTR, wanted(p.FATTR4_OWNER, p.FATTR4_OWNER_GROUP)))
        d = values(got.resok4.obj_attributes)
        assert (d.opaque(99), d.opaque(99)) == (b"1234", b"1234")

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_the_mode_of_a_link_is_ignored(tmp_path, minor):
    async def test(client, export, server):
        (export / "link").symlink_to("nowhere")
        *_, done = await client.run(*client.path("/0/link"), setting(mode(0o700)))
        assert done.status == p.NFS4_OK
        assert os.lstat(export / "link").st_mode & 0o777 == 0o777

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_sizes_need_a_file_and_a_stateid_that_may_write(tmp_path, minor):
    async def test(client, export, server):
        (export / "d").mkdir()
        (export / "l").symlink_to("f")
        stateid, handle = await client.open("/0", b"f", create=mode(0o644))
        size = fattr(p.FATTR4_SIZE, encoded("uint64", 7))
        for name in ("d", "l"):
            assert await client.status(*client.path(f"/0/{name}"), setting(size)) != p.NFS4_OK
        there = (p.OP_PUTFH, p.PUTFH4args(handle))
        assert await client.status(there, setting(size, stateid)) == p.NFS4_OK
        assert (export / "f").stat().st_size == 7
        reader, _ = await client.open("/0", b"f", access=p.OPEN4_SHARE_ACCESS_READ, owner=b"reader")
        assert await client.status(there, setting(size, reader)) == p.NFS4ERR_OPENMODE
        unknown = p.stateid4(9, stateid.other)
        assert await client.status(there, setting(size, unknown)) == p.NFS4ERR_BAD_STATEID
        huge = fattr(p.FATTR4_SIZE, encoded("uint64", 2**64 - 1))
        assert await client.status(there, setting(huge, stateid)) == p.NFS4ERR_FBIG
        assert (export / "f").stat().st_size == 7

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_access_tells_what_the_caller_may(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"")
        (export / "f").chmod(0o640)
        (export / "d").mkdir()
        (export / "d").chmod(0o750)
        everything = (p.OP_ACCESS, p.ACCESS4args(0x3F))
        read, look, change, extend, delete, execute = 1, 2, 4, 8, 16, 32
        for uid, path, supported, allowed in (
            (0, "f", read | change | extend | execute, read | change | extend),
            (0, "d", read | look | change | extend | delete, read | look | change | extend | delete),
            (1000, "f", read | change | extend | execute, 0),
            (1000, "d", read | look | change | extend | delete, 0),
        ):
            client.credential = (uid, uid, ())
            *_, answer = await client.run(*client.path(f"/0/{path}"), everything)
            assert (answer.resok4.supported, answer.resok4.access) == (supported, allowed), (uid, path)
        *_, answer = await client.run(p.OP_PUTROOTFH, everything)
        assert answer.resok4.access == read | look

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_only_the_owner_changes_mode_and_owner(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"")
        (export / "f").chmod(0o666)
        user = await Client4(server, minor, uid=1000, gid=1000, name=b"u", transport=LoopbackTransport()).connect()
        here = user.path("/0/f")
        assert await user.status(*here, setting(mode(0o777))) == p.NFS4ERR_PERM
        assert await user.status(*here, setting(fattr(p.FATTR4_OWNER, encoded("opaque", b"1000")))) == p.NFS4ERR_PERM
        now = fattr(p.FATTR4_TIME_MODIFY_SET, encoded("uint32", 0))
        then = fattr(p.FATTR4_TIME_MODIFY_SET, encoded("uint32", 1) + encoded("int64", 5) + encoded("uint32", 0))
        assert await user.status(*here, setting(now)) == p.NFS4_OK
        assert await user.status(*here, setting(then)) in (p.NFS4ERR_PERM, p.NFS4ERR_ACCESS)

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_what_was_set_before_a_failure_is_told(tmp_path, minor):
    """RFC 8881 section 18.30.3, attrsset. Size, owner, mode and times are set in this order."""

    async def test(client, export, server):
        (export / "f").write_bytes(b"content")
        os.chown(export / "f", 1000, 1000)
        user = await Client4(server, minor, uid=1000, gid=1000, name=b"user").connect()
        given = p.fattr4(
            words_of(1 << p.FATTR4_SIZE | 1 << p.FATTR4_MODE | 1 << p.FATTR4_OWNER),
            encoded("uint64", 3) + encoded("uint32", 0o600) + encoded("opaque", b"0"),
        )
        status, results = await user.raw(*user.in_session(*user.path("/0/f"), setting(given)))
        assert status == p.NFS4ERR_PERM
        assert results[-1][1].attrsset == words_of(1 << p.FATTR4_SIZE)
        assert (export / "f").read_bytes() == b"con"
        assert (export / "f").stat().st_mode & 0o777 != 0o600
        only_owner = fattr(p.FATTR4_OWNER, encoded("opaque", b"0"))
        status, results = await user.raw(*user.in_session(*user.path("/0/f"), setting(only_owner)))
        assert (status, results[-1][1].attrsset) == (p.NFS4ERR_PERM, [])

    with_client(tmp_path, minor, test)
