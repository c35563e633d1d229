"""GETATTR, SETATTR and ACCESS of what does not follow from a look: each is answered by the one native operation."""

import os

import pytest

from nfsd.idnames import IdNames
from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from nfsd.state.records import Delegation
from nfsd.v4 import attributes
from nfsd.v4.attributes import words_of
from rpcrdma.xdr import Encoder
from tests.support.callbacks import CallbackEnd
from tests.support.nfs4 import Client4, LoopbackTransport
from tests.support.nfs4_native import handle_of
from tests.unit.test_nfs4_native import on, putfh

SPARE = 2
"""A slot that need not keep step."""
ANONYMOUS, CURRENT = p.stateid4(0, bytes(12)), p.stateid4(1, bytes(12))
PASSING = (
    1 << p.FATTR4_SPACE_AVAIL | 1 << p.FATTR4_SPACE_FREE | 1 << p.FATTR4_FILES_AVAIL | 1 << p.FATTR4_FILES_FREE
)  # fmt: skip
"""What may have changed by itself between two requests."""


@pytest.fixture(params=[0, 1, 2])
def minor(request):
    return request.param


@pytest.fixture(params=["memory", "disk"])
def kind(request):
    return request.param


def encoded(*given):
    encoder = Encoder()
    for method, value in given:
        getattr(encoder, method)(value)
    return encoder.getvalue()


def getattr_(mask):
    return (p.OP_GETATTR, p.GETATTR4args(words_of(mask)))


def setattr_(values, stateid=ANONYMOUS):
    mask = sum(1 << number for number in values)
    octets = b"".join(values[number] for number in sorted(values))
    return (p.OP_SETATTR, p.SETATTR4args(stateid, p.fattr4(words_of(mask), octets)))


async def natively(both, *operations, **how):
    """The results of a COMPOUND, which is answered natively."""
    answered = both.answered
    both.client.credential = (*how.get("caller", (0, 0)), ())
    reply = await both.native.call(None, both.message(SPARE, *operations, **how))
    assert both.answered == answered + 1
    return both.client.parse(reply)


def holder_of(both):
    return next(client for client in both.server.engine.clients.all() if client.owner == b"holder")


async def status_of(both, *operations, **how):
    status, _ = await natively(both, *operations, **how)
    return status


def test_every_attribute_there_is(kind, tmp_path, minor):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        (both.path / "sub").mkdir()
        (both.path / "link").symlink_to("a")
        mask = attributes.readable(attributes.supported(minor), minor)
        for name in (b"", b"a", b"sub", b"link"):
            handle = await handle_of(both, name)
            await both.same(putfh(handle), getattr_(mask & ~PASSING), getattr_(mask & ~PASSING))
            status, results = await natively(both, putfh(handle), getattr_(mask))
            assert status == p.NFS4_OK
            told = attributes.mask_of(results[-1][1].resok4.obj_attributes.attrmask)
            assert told & PASSING == PASSING
            assert mask & ~told & ~(1 << p.FATTR4_SEC_LABEL | 1 << p.FATTR4_TIME_CREATE) == attributes.NEED_QUOTA
            # One by one, each among those that native code knows.
            for number in range(mask.bit_length()):
                if mask >> number & 1 and not PASSING >> number & 1:
                    await both.same(putfh(handle), getattr_(1 << number | 1 << p.FATTR4_TYPE | 1 << p.FATTR4_FILEID))

    on(kind, tmp_path, minor, scenario)


def test_attributes_that_are_only_set_and_those_that_nobody_knows(tmp_path, minor):
    async def scenario(both):
        handle = await handle_of(both)
        for number in (p.FATTR4_TIME_ACCESS_SET, p.FATTR4_TIME_MODIFY_SET):
            assert await status_of(both, putfh(handle), getattr_(1 << number)) == p.NFS4ERR_INVAL
        status, results = await natively(both, putfh(handle), getattr_(1 << p.FATTR4_SIZE | 1 << 95 | 1 << 200))
        assert (status, results[-1][1].resok4.obj_attributes.attrmask) == (p.NFS4_OK, words_of(1 << p.FATTR4_SIZE))

    on("memory", tmp_path, minor, scenario)


def test_an_acl_that_is_longer_than_most_replies(kind, tmp_path, minor):
    """Set and asked for: hundreds of users."""

    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        handle = await handle_of(both, b"a")
        allow = [p.nfsace4(0, 0, p.ACE4_READ_DATA, b"%d" % uid) for uid in range(70000, 70200)]
        everybody = p.nfsace4(0, 0, p.ACE4_READ_DATA, b"EVERYONE@")
        owner = p.nfsace4(0, 0, p.ACE4_READ_DATA | p.ACE4_WRITE_DATA | p.ACE4_APPEND_DATA, b"OWNER@")
        aces = [owner, *allow, everybody]
        value = encoded(("uint32", len(aces)))
        for ace in aces:
            value += encoded(
                ("uint32", ace.type), ("uint32", ace.flag), ("uint32", ace.access_mask), ("opaque", ace.who)
            )
        status, results = await natively(both, putfh(handle), setattr_({p.FATTR4_ACL: value}))
        assert (status, results[-1][1].attrsset) == (p.NFS4_OK, words_of(1 << p.FATTR4_ACL))
        asked = getattr_(1 << p.FATTR4_ACL | 1 << p.FATTR4_MODE)
        reply = await both.same(putfh(handle), asked, asked)
        assert len(reply) > 8192
        assert reply.count(b"70199") == 2
        if minor:  # what is longer than what the session keeps
            expected = p.NFS4ERR_REP_TOO_BIG_TO_CACHE
            assert await status_of(both, putfh(handle), asked, cache=True) == expected

    on(kind, tmp_path, minor, scenario)


def test_what_cannot_be_set_and_why(kind, tmp_path, minor):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        (both.path / "sub").mkdir()
        (both.path / "link").symlink_to("a")
        handle, sub, link = [await handle_of(both, name) for name in (b"a", b"sub", b"link")]
        mode, size = p.FATTR4_MODE, p.FATTR4_SIZE
        right, late = encoded(("uint32", 0o600)), encoded(("uint32", 1), ("int64", 5), ("uint32", 10**9))
        owner = {name: {p.FATTR4_OWNER: encoded(("opaque", name))} for name in (b"", b"-1", b"4294967295", b"x" * 1025)}
        for where, values, expected in (
            (handle, {95: right}, p.NFS4ERR_ATTRNOTSUPP),
            (handle, {200: right}, p.NFS4ERR_ATTRNOTSUPP),
            (handle, {p.FATTR4_TYPE: right}, p.NFS4ERR_INVAL),
            (handle, {mode: b""}, p.NFS4ERR_BADXDR),
            (handle, {mode: right[:3]}, p.NFS4ERR_BADXDR),
            (handle, {mode: right + bytes(4)}, p.NFS4ERR_BADXDR),
            (handle, {mode: right + b"\0"}, p.NFS4ERR_BADXDR),
            (handle, {mode: encoded(("uint32", 0x10000))}, p.NFS4ERR_INVAL),
            (handle, {p.FATTR4_TIME_MODIFY_SET: late}, p.NFS4ERR_INVAL),
            (handle, {p.FATTR4_TIME_MODIFY_SET: encoded(("uint32", 7))}, p.NFS4ERR_BADXDR),
            (handle, owner[b""], p.NFS4ERR_INVAL),
            (handle, owner[b"-1"], p.NFS4ERR_BADOWNER),
            (handle, owner[b"4294967295"], p.NFS4ERR_BADOWNER),
            (handle, owner[b"x" * 1025], p.NFS4ERR_BADXDR),
            (handle, {p.FATTR4_ACL: bytes(4) + b"\1"}, p.NFS4ERR_BADXDR),
            (handle, {size: encoded(("uint64", 1 << 63))}, p.NFS4ERR_FBIG),
            (sub, {size: encoded(("uint64", 1))}, p.NFS4ERR_ISDIR),
            (link, {size: encoded(("uint64", 1))}, p.NFS4ERR_SYMLINK),
        ):
            answered = both.answered
            reply = await both.same(putfh(where), setattr_(values), p.OP_GETFH)
            assert both.answered == answered + 2
            status, results = both.client.parse(reply)
            assert p.nfsstat4(status) == expected, values
            assert results[-1][1].attrsset == []
        assert (both.path / "a").read_bytes() == b"content"
        # And what takes no value.
        assert await status_of(both, putfh(handle), setattr_({})) == p.NFS4_OK
        cut = encoded(("uint32", 9))  # words of a bitmap that are not there
        answered = both.answered
        whole = both.message(SPARE, putfh(handle), setattr_({}))
        reply = await both.native.call(None, whole[:-8] + cut)
        assert both.answered == answered + 1
        assert both.client.parse(reply)[0] == p.NFS4ERR_BADXDR

    on(kind, tmp_path, minor, scenario)


def test_the_umask_is_for_what_is_made(tmp_path):
    """RFC 8275 section 3."""

    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        (both.path / "a").chmod(0o640)
        handle = await handle_of(both, b"a")
        given = {p.FATTR4_MODE_UMASK: encoded(("uint32", 0o777), ("uint32", 0o022))}
        assert await status_of(both, putfh(handle), setattr_(given)) == p.NFS4ERR_INVAL
        assert (both.path / "a").stat().st_mode & 0o777 == 0o640

    on("memory", tmp_path, 2, scenario)


def test_part_of_a_mode(kind, tmp_path):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        (both.path / "a").chmod(0o640)
        handle = await handle_of(both, b"a")
        given = {p.FATTR4_MODE_SET_MASKED: encoded(("uint32", 0o002), ("uint32", 0o006))}
        status, results = await natively(both, putfh(handle), setattr_(given))
        assert (status, results[-1][1].attrsset) == (p.NFS4_OK, words_of(1 << p.FATTR4_MODE_SET_MASKED))
        assert (both.path / "a").stat().st_mode & 0o777 == 0o642
        beyond = {p.FATTR4_MODE_SET_MASKED: encoded(("uint32", 0o010), ("uint32", 0o006))}
        assert await status_of(both, putfh(handle), setattr_(beyond)) == p.NFS4ERR_INVAL

    on(kind, tmp_path, 1, scenario)


def test_owners_by_name(kind, tmp_path, minor):
    names = IdNames(
        numeric=False, domain="here", ask=lambda question: {b"ann": 1234, 1234: b"ann"}.get(question.subject)
    )

    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        handle = await handle_of(both, b"a")
        owners = 1 << p.FATTR4_OWNER | 1 << p.FATTR4_OWNER_GROUP
        ann, nobody = encoded(("opaque", b"ann@here")), encoded(("opaque", b"bob@here"))
        given = {p.FATTR4_OWNER: ann, p.FATTR4_OWNER_GROUP: encoded(("opaque", b"77"))}
        status, results = await natively(both, putfh(handle), setattr_(given), getattr_(owners))
        assert status == p.NFS4_OK
        assert results[-2][1].attrsset == words_of(owners)
        assert results[-1][1].resok4.obj_attributes.attr_vals == ann + encoded(("opaque", b"77"))
        assert os.stat(both.path / "a").st_uid == 1234
        assert await status_of(both, putfh(handle), setattr_({p.FATTR4_OWNER: nobody})) == p.NFS4ERR_BADOWNER

    on(kind, tmp_path, minor, scenario, names=names)


def test_what_was_set_before_a_failure_is_told(kind, tmp_path, minor):
    """RFC 8881 section 18.30.3, attrsset: size, owner, mode and times are set in this order."""

    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        os.chown(both.path / "a", 1000, 1000)
        handle = await handle_of(both, b"a")
        size, other = encoded(("uint64", 3)), encoded(("opaque", b"0"))
        then = encoded(("uint32", 1), ("int64", 5), ("uint32", 0))
        given = {p.FATTR4_SIZE: size, p.FATTR4_MODE: encoded(("uint32", 0o600)), p.FATTR4_OWNER: other}
        status, results = await natively(both, putfh(handle), setattr_(given), caller=(1000, 1000))
        assert (status, results[-1][1].attrsset) == (p.NFS4ERR_PERM, words_of(1 << p.FATTR4_SIZE))
        assert (both.path / "a").read_bytes() == b"con"
        (both.path / "a").chmod(0o666)
        given = {p.FATTR4_SIZE: encoded(("uint64", 1)), p.FATTR4_TIME_MODIFY_SET: then}
        status, results = await natively(both, putfh(handle), setattr_(given), caller=(2000, 2000))
        assert (status, results[-1][1].attrsset) == (p.NFS4ERR_PERM, words_of(1 << p.FATTR4_SIZE))
        assert (both.path / "a").read_bytes() == b"c"

    on(kind, tmp_path, minor, scenario)


def test_who_may_write_sets_one_time_to_now(kind, tmp_path, minor):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        (both.path / "a").chmod(0o666)
        os.utime(both.path / "a", (5, 5))
        handle = await handle_of(both, b"a")
        now = encoded(("uint32", 0))
        given = {p.FATTR4_SIZE: encoded(("uint64", 2)), p.FATTR4_TIME_MODIFY_SET: now}
        status, results = await natively(both, putfh(handle), setattr_(given), caller=(2000, 2000))
        assert (status, results[-1][1].attrsset) == (p.NFS4_OK, words_of(sum(1 << number for number in given)))
        found = (both.path / "a").stat()
        assert (found.st_size, found.st_atime) == (2, 5)
        assert found.st_mtime > 1000
        (both.path / "a").chmod(0o644)
        one = setattr_({p.FATTR4_TIME_ACCESS_SET: now})
        status, results = await natively(both, putfh(handle), one, caller=(2000, 2000))
        assert (status, results[-1][1].attrsset) == (p.NFS4ERR_PERM, [])

    on(kind, tmp_path, minor, scenario)


def test_sizes_need_a_stateid_that_may_write(kind, tmp_path, minor):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        writing, handle = await both.client.open("/0", b"a", access=3)
        reading, _ = await both.client.open("/0", b"a", access=1, owner=b"reader")
        size = {p.FATTR4_SIZE: encoded(("uint64", 4))}
        unknown, old = p.stateid4(1, b"none of ours"), p.stateid4(writing.seqid + 1, writing.other)
        for stateid, expected in (
            (unknown, p.NFS4ERR_BAD_STATEID if minor else p.NFS4ERR_STALE_STATEID),
            (old, p.NFS4ERR_BAD_STATEID),
            (reading, p.NFS4ERR_OPENMODE),
        ):
            status, results = await natively(both, putfh(handle), setattr_(size, stateid))
            assert (p.nfsstat4(status), results[-1][1].attrsset) == (expected, [])
        assert (both.path / "a").read_bytes() == b"content"
        assert await status_of(both, putfh(handle), setattr_(size, writing)) == p.NFS4_OK
        assert (both.path / "a").read_bytes() == b"cont"
        less = {p.FATTR4_SIZE: encoded(("uint64", 2))}
        assert await status_of(both, putfh(handle), setattr_(less)) == p.NFS4_OK
        if minor:
            assert await status_of(both, putfh(handle), setattr_(less, CURRENT)) == p.NFS4ERR_BAD_STATEID
        assert (both.path / "a").read_bytes() == b"co"

    on(kind, tmp_path, minor, scenario)


@pytest.mark.parametrize("minor", [1, 2])
def test_a_file_that_somebody_else_writes_under_a_delegation(kind, tmp_path, minor):
    """It is asked for attributes, and has to give way to a change; until then that is delayed."""

    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        handle = await handle_of(both, b"a")
        end = CallbackEnd()
        holder = await Client4(both.server, 1, name=b"holder", transport=LoopbackTransport(callbacks=end)).connect()
        await holder.open("/0", b"a", access=3)
        assert both.server.engine.delegations.count == 1
        status, _ = await natively(both, putfh(handle), getattr_(1 << p.FATTR4_SIZE))
        assert p.OP_CB_GETATTR in end.operations
        assert status == p.NFS4ERR_DELAY  # it does not say
        kept = await status_of(both, putfh(handle), getattr_(1 << p.FATTR4_FILEID | 1 << p.FATTR4_MODE))
        assert (kept, end.operations.count(p.OP_CB_GETATTR)) == (p.NFS4_OK, 1)
        private = setattr_({p.FATTR4_MODE: encoded(("uint32", 0o600))})
        status, results = await natively(both, putfh(handle), private)
        assert (status, results[-1][1].attrsset) == (p.NFS4ERR_DELAY, [])
        assert p.OP_CB_RECALL in end.operations
        assert (both.path / "a").stat().st_mode & 0o777 != 0o600
        for delegation in [*holder_of(both).states.values()]:
            if isinstance(delegation, Delegation):
                both.server.engine.delegations.release(delegation)
        assert await status_of(both, putfh(handle), private) == p.NFS4_OK
        assert (both.path / "a").stat().st_mode & 0o777 == 0o600

    on(kind, tmp_path, minor, scenario, limits=Limits(grace=0))


def test_access_to_extended_attributes(kind, tmp_path):
    """RFC 8276 section 8.5: what may be done to a directory's attributes is another matter than to its entries."""

    async def scenario(both):
        (both.path / "drop").mkdir()
        (both.path / "drop").chmod(0o702)
        (both.path / "a").write_bytes(b"")
        (both.path / "a").chmod(0o604)
        everything = (p.OP_ACCESS, p.ACCESS4args(0x1FF))
        xattrs = p.ACCESS4_XAREAD | p.ACCESS4_XAWRITE | p.ACCESS4_XALIST
        for name, allowed in ((b"drop", p.ACCESS4_XAWRITE), (b"a", p.ACCESS4_XAREAD | p.ACCESS4_XALIST)):
            handle = await handle_of(both, name)
            for _ in range(2):
                status, results = await natively(both, putfh(handle), everything, caller=(1000, 1000))
                answer = results[-1][1].resok4
                assert (status, answer.access & xattrs) == (p.NFS4_OK, allowed & answer.supported)
        cut = both.message(SPARE, putfh(handle), everything)[:-2]
        answered = both.answered
        reply = await both.native.call(None, cut)
        assert (both.client.parse(reply)[0], both.answered) == (p.NFS4ERR_BADXDR, answered + 1)

    on(kind, tmp_path, 2, scenario)
