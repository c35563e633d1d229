"""NFSv4: READDIR with any attributes, sizes and callers, against GETATTR of each name and what the kernel lists."""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nfsd.exports import Export
from nfsd.protocol import nfs4 as p
from nfsd.v4 import attributes
from nfsd.v4.attributes import mask_of, words_of
from nfsd.v4.kept import KeptReply, give, keep
from nfsd.v4.listing import native
from rpcrdma.xdr import Encoder, codec
from rpcrdma.xdr.payload import Payload
from tests.support.nfs4 import Client4, LoopbackTransport, serving, values, with_client
from tests.unit.listing_support import ENTRIES, listed_by_kernel, make_directory
from tests.unit.test_vfs_mounts import mounted

ERROR = 1 << p.FATTR4_RDATTR_ERROR
CHANGING = {p.FATTR4_SPACE_AVAIL, p.FATTR4_SPACE_FREE, p.FATTR4_FILES_AVAIL, p.FATTR4_FILES_FREE}
LINUX = sum(1 << number for number in (1, 3, 4, 8, 11, 19, 20, 33, 35, 36, 37, 41, 45, 47, 52, 53, 55))


def readable(minor):
    mask = attributes.readable(attributes.supported(minor), minor)
    return [number for number in range(mask.bit_length()) if mask >> number & 1 and number not in CHANGING]


NATIVE = [number for number in readable(0) if native(1 << number)]
MASKS = st.one_of(st.sets(st.sampled_from(NATIVE)), st.sets(st.sampled_from(readable(2)), max_size=6))


def listing(cookie, mask, dircount=1 << 20, maxcount=1 << 20):
    return (p.OP_READDIR, p.READDIR4args(cookie, bytes(8), dircount, maxcount, words_of(mask)))


@pytest.fixture(scope="module", params=["/dev/shm", "/var/tmp"], ids=["memory", "disk"])
def server(request):
    """A server that runs as long as the module's tests, on the loop that ``run`` runs things on."""
    base = tempfile.mkdtemp(dir=request.param)
    os.chmod(base, 0o755)
    paths = [os.path.join(base, name) for name in ("export", "state")]
    for path in paths:
        os.mkdir(path)
    with asyncio.Runner() as runner:
        context = serving(paths[0], state_dir=paths[1])
        server = runner.run(context.__aenter__())
        server.run, server.path = runner.run, paths[0]
        yield server
        runner.run(context.__aexit__(None, None, None))
    shutil.rmtree(base)


def expected(client, path, args, mask, searching):
    """The entries that a server would list which asks GETATTR of every name (RFC 8881 section 18.23), and eof."""
    room, names = args.maxcount - 8 - 4 - 4, args.dircount or 1 << 40
    entries = []
    left = [found for found in listed_by_kernel(path, args.cookie) if found[0] not in (b".", b"..")]
    where = b"/0/" + os.path.basename(path).encode()
    while left:
        name, _, cookie = left[0]
        if searching:
            lookups = [(p.OP_LOOKUP, p.LOOKUP4args(part)) for part in (*where.split(b"/")[1:], name)]
            got = client.server.run(
                client.run(p.OP_PUTROOTFH, *lookups, (p.OP_GETATTR, p.GETATTR4args(words_of(mask))))
            )
            shown = got[-1].resok4.obj_attributes
        elif mask & ERROR:
            shown = p.fattr4(words_of(ERROR), p.NFS4ERR_ACCESS.to_bytes(4, "big"))
        else:
            return p.NFS4ERR_ACCESS, [], False
        entry = p.entry4(cookie, name, shown)
        encoder = codec.Encoder()
        encoder.boolean(True)
        encoder.encode(p.entry4, entry)
        names -= 12 + (len(name) + 3 & ~3)
        if encoder.size > room or (names < 0 and entries):
            break
        room -= encoder.size
        entries.append(entry)
        del left[0]
    if left and not entries:
        return p.NFS4ERR_TOOSMALL, [], False
    return p.NFS4_OK, entries, not left


@settings(max_examples=60, deadline=None)
@given(
    entries=ENTRIES,
    numbers=MASKS,
    with_error=st.booleans(),
    dircount=st.one_of(st.just(0), st.integers(1, 600), st.just(1 << 20)),
    maxcount=st.one_of(st.integers(16, 4000), st.just(1 << 20)),
    searching=st.booleans(),
    data=st.data(),
)
def test_listings_are_what_getattr_tells_to_the_octet(
    server, entries, numbers, with_error, dircount, maxcount, searching, data
):
    path = make_directory(server.path, entries)
    mask = sum(1 << number for number in numbers) | (ERROR if with_error else 0)
    root = Client4(server, 0)
    client = root
    if not searching and server.service.executor.can_switch:
        os.chmod(path, 0o744)
        client = Client4(server, 0, uid=4321, gid=4321)
    # Only 4.0 is without a session; what it does not know it leaves out, here as there.
    here = client.path(f"/0/{os.path.basename(path)}")
    cookie = 0
    for _ in range(100):
        number, args = listing(cookie, mask, dircount, maxcount)
        status, results = server.run(client.raw(*here, (number, args)))
        found = results[-1][1].resok4.reply if not status else None
        wanted, entries, eof = expected(root, path, args, mask, client is root)
        if wanted == p.NFS4ERR_TOOSMALL and status == p.NFS4ERR_TOOSMALL:
            return
        assert status == wanted
        if status:
            return
        if server.path.startswith("/dev/shm"):
            assert found.entries == entries
        else:
            # ext4 has two offsets for the gap between two names, depending on where a reader's block ends.
            assert [(entry.name, entry.attrs) for entry in found.entries] == [
                (entry.name, entry.attrs) for entry in entries
            ]
        assert found.eof == eof
        if eof:
            return
        cookie = found.entries[-1].cookie
        names = sorted(os.listdir(os.fsencode(path)))
        if names and data.draw(st.booleans(), label="remove one meanwhile"):
            gone = os.path.join(os.fsencode(path), data.draw(st.sampled_from(names)))
            os.rmdir(gone) if os.path.isdir(gone) and not os.path.islink(gone) else os.unlink(gone)
    pytest.fail("the listing has no end")


@pytest.mark.parametrize("minor", [1, 2])
def test_every_attribute_by_itself(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"content")
        (export / "d").mkdir()
        for number in readable(minor):
            *_, listed = await client.run(*client.path("/0"), listing(0, 1 << number))
            for entry in listed.resok4.reply.entries:
                here = client.path(f"/0/{entry.name.decode()}")
                *_, got = await client.run(*here, (p.OP_GETATTR, p.GETATTR4args(words_of(1 << number))))
                assert got.resok4.obj_attributes == entry.attrs, number

    with_client(tmp_path, minor, test)


def test_the_change_attribute_is_the_same_to_list_as_to_getattr(tmp_path):
    """Where ctime does not tell every change, what is remembered of a file counts."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:

        async def test(client, export, server):
            stateid, handle = await client.open("/0", b"f", create=p.fattr4([], b""))
            seen = set()
            for number in range(20):
                write = p.WRITE4args(stateid, number, p.stable_how4.UNSTABLE4, b"x")
                ask = p.GETATTR4args(words_of(1 << p.FATTR4_CHANGE))
                [_, got] = await client.on(handle, (p.OP_WRITE, write), (p.OP_GETATTR, ask))
                *_, listed = await client.run(*client.path("/0"), listing(0, 1 << p.FATTR4_CHANGE))
                [entry] = listed.resok4.reply.entries
                assert entry.attrs == got.resok4.obj_attributes
                seen.add(entry.attrs.attr_vals)
            assert len(seen) == 20
            # Never looked at before, and just made: from now on it must differ with each change.
            (export / "g").touch()
            *_, listed = await client.run(*client.path("/0"), listing(0, 1 << p.FATTR4_CHANGE))
            before = {entry.name: entry.attrs.attr_vals for entry in listed.resok4.reply.entries}[b"g"]
            ask = p.GETATTR4args(words_of(1 << p.FATTR4_CHANGE))
            *_, got = await client.run(*client.path("/0/g"), (p.OP_GETATTR, ask))
            assert got.resok4.obj_attributes.attr_vals == before

        os.chmod(path, 0o777)
        (Path(path) / "export").mkdir()
        with_client(Path(path), 1, test)


def test_names_that_lead_on_are_listed_as_the_places_they_lead_to(tmp_path):
    """A directory of an export whose name is that of another export's place below it."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "in it").touch()

    async def test(client, export, server):
        (export / "below").mkdir()
        (export / "beside").mkdir()
        mask = 1 << p.FATTR4_FSID | 1 << p.FATTR4_FILEID | 1 << p.FATTR4_FILEHANDLE | 1 << p.FATTR4_MOUNTED_ON_FILEID
        for asked in (mask, mask | 1 << p.FATTR4_MAXNAME):
            *_, listed = await client.run(*client.path("/0"), listing(0, asked))
            found = {entry.name: entry.attrs for entry in listed.resok4.reply.entries}
            assert set(found) == {b"below", b"beside"}
            for name, attrs in found.items():
                here = client.path(f"/0/{name.decode()}")
                *_, got = await client.run(*here, (p.OP_GETATTR, p.GETATTR4args(words_of(asked))))
                assert got.resok4.obj_attributes == attrs
            assert found[b"below"].attr_vals[:16] != found[b"beside"].attr_vals[:16]

    more = [Export(9, str(inner), "/0/below", squash="none")]
    with_client(tmp_path, 1, test, more=more)


def test_mount_points_are_listed_as_what_is_mounted_there(tmp_path):
    async def test(client, export, server):
        (export / "mounted").mkdir()
        (export / "plain").mkdir()
        covered = os.stat(export / "mounted").st_ino
        with mounted(str(export / "mounted"), "-t", "tmpfs", "none"):
            for mask in (LINUX, 1 << p.FATTR4_FILEID | 1 << p.FATTR4_MOUNTED_ON_FILEID, LINUX | 1 << p.FATTR4_MAXNAME):
                *_, listed = await client.run(*client.path("/across"), listing(0, mask))
                found = {entry.name: entry.attrs for entry in listed.resok4.reply.entries}
                for name in ("mounted", "plain"):
                    here = client.path(f"/across/{name}")
                    *_, got = await client.run(*here, (p.OP_GETATTR, p.GETATTR4args(words_of(mask))))
                    assert found[name.encode()] == got.resok4.obj_attributes
            *_, listed = await client.run(*client.path("/across"), listing(0, 1 << p.FATTR4_MOUNTED_ON_FILEID))
            found = {entry.name: values(entry.attrs).uint64() for entry in listed.resok4.reply.entries}
            assert found == {b"mounted": covered, b"plain": os.stat(export / "plain").st_ino}
            # An export that is not to be crossed shows that there is something, and not what.
            assert await client.status(*client.path("/0"), listing(0, LINUX & ~ERROR)) == p.NFS4ERR_STALE
            *_, listed = await client.run(*client.path("/0"), listing(0, LINUX))
            found = {entry.name: entry.attrs for entry in listed.resok4.reply.entries}
            assert mask_of(found[b"mounted"].attrmask) == ERROR
            assert values(found[b"mounted"]).uint32() == p.NFS4ERR_STALE

    more = [Export(9, str(tmp_path / "export"), "/across", squash="none", cross_mounts=True)]
    with_client(tmp_path, 1, test, more=more)


def test_an_entry_without_attributes_fails_the_listing_only_where_its_error_is_not_asked_for(tmp_path):
    async def test(client, export, server):
        if not server.service.executor.can_switch:
            pytest.skip("needs the privilege to act as others")
        (export / "f").touch()
        stranger = await Client4(server, 1, uid=4321, gid=4321, name=b"stranger").connect()
        export.chmod(0o744)
        for mask in (1 << p.FATTR4_SIZE, 1 << p.FATTR4_SIZE | 1 << p.FATTR4_FILEHANDLE, 1 << p.FATTR4_MAXNAME):
            here = p.OP_PUTROOTFH, (p.OP_LOOKUP, p.LOOKUP4args(b"0"))
            assert await stranger.status(*here, listing(0, mask)) == p.NFS4ERR_ACCESS
            *_, listed = await stranger.run(*here, listing(0, mask | ERROR))
            [entry] = listed.resok4.reply.entries
            assert (mask_of(entry.attrs.attrmask), values(entry.attrs).uint32()) == (ERROR, p.NFS4ERR_ACCESS)

    with_client(tmp_path, 1, test)


@pytest.mark.parametrize("extra", [0, 1 << p.FATTR4_MAXNAME], ids=["native", "python"])
def test_several_long_listings_in_one_compound(tmp_path, extra):
    """Each has memory of its own, which all goes back; what there is no room for comes with the next call."""

    async def test(client, export, server):
        names = {b"name %05d" % number for number in range(4000)}
        for name in names:
            os.mknod(os.fsencode(export) + b"/" + name)
        transport = client.transport = LoopbackTransport()
        here = client.path("/0")
        *_, first, second = await client.run(*here, listing(0, LINUX | extra, 0, 300_000), listing(0, LINUX | extra, 0))
        for part, size in ((first, 300_000), (second, 1 << 20)):
            reply = part.resok4.reply
            encoder = codec.Encoder()
            encoder.encode(p.READDIR4resok, part.resok4)
            assert size - 400 < encoder.size <= size or not reply.eof or size == 1 << 20
            assert encoder.size <= size
        assert first.resok4.reply.entries == second.resok4.reply.entries[: len(first.resok4.reply.entries)]
        seen, cookie = set(), 0
        while True:
            *_, part = await client.run(*here, listing(cookie, LINUX | extra, 0, 100_000))
            reply = part.resok4.reply
            assert not seen & {entry.name for entry in reply.entries}
            seen |= {entry.name for entry in reply.entries}
            if reply.eof:
                break
            cookie = reply.entries[-1].cookie
        assert seen == names
        assert transport._account.in_use == 0

    with_client(tmp_path, 1, test)


def test_a_listing_in_a_kept_reply_is_no_item(tmp_path):
    results = Encoder()
    results.uint32(1)
    results.splice(Payload(memoryview(b"listing."), eligible=False))
    assert type(keep(results.getvalue(), results.payloads)) is bytes
    results.bulk(Payload(memoryview(b"item")))
    results.uint32(2)
    kept = keep(results.getvalue(), results.payloads)
    assert isinstance(kept, KeptReply)
    again = Encoder()
    give(kept, again)
    assert [(offset, bytes(item.view)) for offset, item in again.payloads] == [(16, b"item")]
    assert again.getvalue() == b"\0\0\0\1listing.\0\0\0\4\0\0\0\2"
