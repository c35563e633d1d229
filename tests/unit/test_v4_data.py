"""READ, WRITE, COMMIT, READDIR, READLINK at their bounds."""

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.v4.attributes import words_of
from tests.support.nfs4 import mode, with_client

MINORS = [0, 1, 2]
ANONYMOUS = p.stateid4(0, bytes(12))
BYPASS = p.stateid4(2**32 - 1, b"\xff" * 12)
MAX = 2**64 - 1


def reading(offset, count, stateid=ANONYMOUS):
    return (p.OP_READ, p.READ4args(stateid, offset, count))


def writing(offset, data, stateid=ANONYMOUS, stable=p.stable_how4.UNSTABLE4):
    return (p.OP_WRITE, p.WRITE4args(stateid, offset, stable, data))


def listing(count, *, cookie=0, dircount=8192, attributes=0):
    return (p.OP_READDIR, p.READDIR4args(cookie, bytes(8), dircount, count, words_of(attributes)))


@pytest.mark.parametrize("minor", MINORS)
def test_reads_end_where_the_file_ends(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"0123456789")
        here = client.path("/0/f")
        for offset, count, data, eof in (
            (0, 10, b"0123456789", True),
            (0, 4, b"0123", False),
            (8, 100, b"89", True),
            (10, 1, b"", True),
            (2**40, 5, b"", True),
            (2**63, 5, b"", True),
            (MAX, 2**32 - 1, b"", True),
            (0, 0, b"", False),
        ):
            for stateid in (ANONYMOUS, BYPASS):
                *_, got = await client.run(*here, reading(offset, count, stateid))
                assert (bytes(got.resok4.data), got.resok4.eof) == (data, eof), (offset, count)

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_writes_end_where_files_can(tmp_path, minor):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o644))
        there = (p.OP_PUTFH, p.PUTFH4args(handle))
        far = p.NFS4ERR_FBIG if minor else p.NFS4ERR_INVAL
        for offset, data, status in ((MAX, b"x", far), (2**63 - 1, b"xx", far), (2**63, b"", far), (5, b"", 0)):
            assert await client.status(there, writing(offset, data, stateid)) == status, offset
        assert (export / "f").stat().st_size == 0
        for stable in p.stable_how4:
            _, done = await client.run(there, writing(3, b"data", stateid, stable))
            assert done.resok4.count == 4
            assert done.resok4.committed >= stable
        assert (export / "f").read_bytes() == b"\0\0\0data"

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_data_is_of_regular_files_only(tmp_path, minor):
    async def test(client, export, server):
        (export / "d").mkdir()
        (export / "l").symlink_to("f")
        link = p.NFS4ERR_SYMLINK if minor else p.NFS4ERR_INVAL
        for name, status in (("d", p.NFS4ERR_ISDIR), ("l", link)):
            for operation in (reading(0, 9), writing(0, b"x"), (p.OP_COMMIT, p.COMMIT4args(0, 0))):
                assert await client.status(*client.path(f"/0/{name}"), operation) == status

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_commit_takes_ranges_that_end_within_64_bits(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"0123456789")
        here = client.path("/0/f")
        *_, written = await client.run(*here, writing(0, b"x"))
        for offset, count, status in ((0, 0, 0), (2**63, 9, 0), (MAX - 1, 1, 0), (MAX, 2, p.NFS4ERR_INVAL)):
            commit = (p.OP_COMMIT, p.COMMIT4args(offset, count))
            result = (await client.raw(*client.in_session(*here, commit)))[1][-1][1]
            assert result.status == status
            if not status:
                assert result.resok4.writeverf == written.resok4.writeverf

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_a_write_carries_the_verifier_of_before_it(tmp_path, minor):
    """Data that is lost while the WRITE is under way shows as another verifier at COMMIT."""

    async def test(client, export, server):
        (export / "f").write_bytes(b"")
        service, here = server.service, client.path("/0/f")
        root = await service.root(service.exports.exports[0])
        before, really = root.write_back.verifier, service.unstable.add

        def failing_meanwhile(opened):
            really(opened)
            root.write_back.verifier = b"another."  # as an fsync does that fails

        service.unstable.add = failing_meanwhile
        *_, written = await client.run(*here, writing(0, b"x"))
        *_, committed = await client.run(*here, (p.OP_COMMIT, p.COMMIT4args(0, 0)))
        assert written.resok4.writeverf == before
        assert committed.resok4.writeverf == b"another."

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_a_share_deny_keeps_special_stateids_out(tmp_path, minor):
    async def test(client, export, server):
        deny = p.OPEN4_SHARE_DENY_BOTH
        stateid, handle = await client.open("/0", b"f", create=mode(0o666), deny=deny)
        there = (p.OP_PUTFH, p.PUTFH4args(handle))
        assert await client.status(there, writing(0, b"x")) == p.NFS4ERR_LOCKED
        assert await client.status(there, reading(0, 9)) == p.NFS4ERR_LOCKED
        assert await client.status(there, reading(0, 9, BYPASS)) == p.NFS4_OK
        await client.close(stateid, handle)
        assert await client.status(there, writing(0, b"x")) == p.NFS4_OK

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_an_empty_directory_fits_sixteen_octets(tmp_path, minor):
    async def test(client, export, server):
        (export / "d").mkdir()
        here = client.path("/0/d")
        assert await client.status(*here, listing(15)) == p.NFS4ERR_TOOSMALL
        *_, listed = await client.run(*here, listing(16))
        assert (listed.resok4.reply.entries, listed.resok4.reply.eof) == ([], True)
        (export / "d/f").write_bytes(b"")
        assert await client.status(*here, listing(16)) == p.NFS4ERR_TOOSMALL
        for cookie in (1, 2):
            assert await client.status(*here, listing(4096, cookie=cookie)) == p.NFS4ERR_BAD_COOKIE
        assert await client.status(*client.path("/0/d/f"), listing(4096)) == p.NFS4ERR_NOTDIR

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_listings_keep_to_both_counts(tmp_path, minor):
    async def test(client, export, server):
        for number in range(60):
            (export / f"{number:03}").write_bytes(b"")
        everything = 1 << p.FATTR4_TYPE | 1 << p.FATTR4_SIZE | 1 << p.FATTR4_FILEHANDLE | 1 << p.FATTR4_OWNER
        for dircount, maxcount in ((0, 512), (64, 8192), (8192, 700), (1, 8192)):
            names, cookie, eof = [], 0, False
            while not eof:
                asked = listing(maxcount, cookie=cookie, dircount=dircount, attributes=everything)
                *_, listed = await client.run(*client.path("/0"), asked)
                page = listed.resok4.reply
                assert page.entries or page.eof
                if 12 < dircount < 8192:
                    assert sum(12 + len(entry.name) + 3 & ~3 for entry in page.entries) <= dircount + 16
                names += [entry.name for entry in page.entries]
                cookie, eof = (page.entries[-1].cookie if page.entries else 0), page.eof
            assert sorted(names) == [b"%03d" % number for number in range(60)]

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_entries_that_cannot_be_looked_at_say_why(tmp_path, minor):
    async def test(client, export, server):
        (export / "d").mkdir()
        (export / "d/f").write_bytes(b"")
        (export / "d").chmod(0o744)  # to be read, not to be searched
        client.credential = (1000, 1000, ())
        here, size, why = client.path("/0/d"), 1 << p.FATTR4_SIZE, 1 << p.FATTR4_RDATTR_ERROR
        *_, listed = await client.run(*here, listing(4096, attributes=size | why))
        (entry,) = listed.resok4.reply.entries
        assert (entry.name, entry.attrs.attrmask) == (b"f", words_of(why))
        assert int.from_bytes(entry.attrs.attr_vals, "big") == p.NFS4ERR_ACCESS
        assert await client.status(*here, listing(4096, attributes=size)) == p.NFS4ERR_ACCESS

    with_client(tmp_path, minor, test)
