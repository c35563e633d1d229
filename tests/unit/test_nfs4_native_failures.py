"""Failures of PUTFH, LOOKUP, READ, WRITE, COMMIT and GETFH are answered natively, with the general path's octets."""

import os

from nfsd.protocol import nfs4 as p
from tests.support.nfs4_native import handle_of
from tests.unit.test_nfs4_native import (
    ANONYMOUS,
    CURRENT,
    OF_CONTENT,
    access,
    getattr_,
    lookup,
    on,
    putfh,
    read,
    write,
)

FAR = (1 << 63) - 1


def commit(offset=0, count=0):
    return (p.OP_COMMIT, p.COMMIT4args(offset, count))


def status_of(reply):
    return int.from_bytes(reply[24:28], "big")


async def fails(both, done, status, *operations, **how):
    """See that both ways say so to these, and the native one natively."""
    for cache in (False, True):
        reply = await both.same(*operations, cache=cache, **how)
        assert status_of(reply) == status, p.nfsstat4(status_of(reply)).name
    answered = both.answered
    done.clear()
    await both.native.call(None, both.message(2, *operations, **how))
    assert (both.answered, done) == (answered + 1, [])


def test_what_is_no_file_to_read_or_write(kind, tmp_path, minor, done_in_python):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        (both.path / "sub").mkdir()
        (both.path / "link").symlink_to("a")
        os.mkfifo(both.path / "pipe")
        stateid, _ = await both.client.open("/0", b"a")
        special = p.NFS4ERR_WRONG_TYPE if minor else p.NFS4ERR_INVAL
        link = p.NFS4ERR_SYMLINK if minor else p.NFS4ERR_INVAL
        for name, status in ((b"sub", p.NFS4ERR_ISDIR), (b"link", link), (b"pipe", special)):
            handle = await handle_of(both, name)
            await fails(both, done_in_python, status, putfh(handle), getattr_(OF_CONTENT), write(stateid, 0, b"x"))
            await fails(both, done_in_python, status, putfh(handle), commit())
            if minor:  # of NFSv4.0's replies with data the replay cache keeps none
                await both.same(putfh(handle), read(stateid, 0, 10))

    on(kind, tmp_path, minor, scenario)


def test_names_that_lead_nowhere(kind, tmp_path, minor, done_in_python):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        (both.path / "link").symlink_to("a")
        root, file, link = [await handle_of(both, name) for name in (b"", b"a", b"link")]
        for name, status in (
            (b"", p.NFS4ERR_INVAL),
            (b".", p.NFS4ERR_BADNAME),
            (b"..", p.NFS4ERR_BADNAME),
            (b"a/b", p.NFS4ERR_BADCHAR),
            (b"a\0b", p.NFS4ERR_BADCHAR),
            (b"none", p.NFS4ERR_NOENT),
        ):
            await fails(both, done_in_python, status, putfh(root), lookup(name), getattr_(OF_CONTENT))
        await fails(both, done_in_python, p.NFS4ERR_NOTDIR, putfh(file), lookup(b"x"), p.OP_GETFH)
        await fails(both, done_in_python, p.NFS4ERR_SYMLINK, putfh(link), lookup(b"x"), p.OP_GETFH)
        await fails(both, done_in_python, p.NFS4ERR_BADNAME, putfh(file), lookup(b"."), p.OP_GETFH)

    on(kind, tmp_path, minor, scenario)


def test_stateids_that_are_no_good(kind, tmp_path, minor, done_in_python):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        (both.path / "b").write_bytes(b"content")
        (both.path / "denied").write_bytes(b"content")
        reading, handle = await both.client.open("/0", b"a", access=1)
        _, other = await both.client.open("/0", b"b", access=3)
        await both.client.open("/0", b"denied", access=3, deny=3, owner=b"greedy")
        denied = await handle_of(both, b"denied")
        none, old = p.stateid4(1, b"none of ours"), p.stateid4(reading.seqid + 1, reading.other)
        for stateid, where, status in (
            (none, handle, p.NFS4ERR_BAD_STATEID if minor else p.NFS4ERR_STALE_STATEID),
            (reading, other, p.NFS4ERR_BAD_STATEID),
            (old, handle, p.NFS4ERR_BAD_STATEID),
            (reading, handle, p.NFS4ERR_OPENMODE),
            (ANONYMOUS, denied, p.NFS4ERR_LOCKED),
        ):
            await fails(both, done_in_python, status, putfh(where), write(stateid, 0, b"x"), getattr_(OF_CONTENT))
        if minor:
            await fails(both, done_in_python, p.NFS4ERR_BAD_STATEID, putfh(handle), write(CURRENT, 0, b"x"))
            await both.native.call(None, both.message(2, putfh(handle), read(none, 0, 10)))
            done_in_python.clear()
            reply = await both.native.call(None, both.message(2, putfh(handle), read(none, 0, 10)))
            assert (status_of(reply), done_in_python) == (p.NFS4ERR_BAD_STATEID, [])
        assert (both.path / "a").read_bytes() == b"content"

    on(kind, tmp_path, minor, scenario)


def test_offsets_beyond_every_file(kind, tmp_path, minor, done_in_python):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        stateid, handle = await both.client.open("/0", b"a", access=3)
        far = p.NFS4ERR_FBIG if minor else p.NFS4ERR_INVAL
        for offset in (FAR, FAR + 1, (1 << 64) - 1):
            await fails(both, done_in_python, far, putfh(handle), write(stateid, offset, b"x"))
        await fails(both, done_in_python, p.NFS4ERR_INVAL, putfh(handle), commit((1 << 64) - 1, 1))
        assert (both.path / "a").read_bytes() == b"content"

    on(kind, tmp_path, minor, scenario)


def test_who_may_only_read(tmp_path, minor, done_in_python):
    async def scenario(both):
        handle = await handle_of(both, b"a")
        await fails(both, done_in_python, p.NFS4ERR_ROFS, putfh(handle), write(ANONYMOUS, 0, b"x"))
        await fails(both, done_in_python, p.NFS4ERR_ROFS, putfh(handle), write(p.stateid4(1, b"none of ours"), 0, b"x"))
        await fails(both, done_in_python, p.NFS4ERR_ROFS, putfh(handle), commit())

    def prepared(both):
        (both.path / "a").write_bytes(b"content")
        return scenario(both)

    on("memory", tmp_path, minor, prepared, read_only=True)


def test_handles_of_no_file(kind, tmp_path, minor, done_in_python):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        root, handle = await handle_of(both), await handle_of(both, b"a")
        gone = p.NFS4ERR_STALE
        for wrong in (b"x", b"no handle", b"x" * 128, handle[:-1], handle[:-1] + bytes([handle[-1] ^ 1])):
            await fails(both, done_in_python, p.NFS4ERR_BADHANDLE, putfh(root), putfh(wrong), getattr_(OF_CONTENT))
        (both.path / "a").unlink()
        forget(both.server.service, handle)
        reply = await both.same(putfh(handle), getattr_(OF_CONTENT))
        assert status_of(reply) == gone
        if minor:
            await fails(both, done_in_python, p.NFS4ERR_NOFILEHANDLE, p.OP_GETFH)
        if minor == 2:
            # The source of a copy from another server is not complained of (RFC 7862 section 15.2.3).
            await both.same(putfh(b"no handle"), p.OP_SAVEFH, putfh(root), getattr_(OF_CONTENT))

    on(kind, tmp_path, minor, scenario)


def test_a_file_that_is_not_in_the_tables_is_brought(tmp_path, minor, done_in_python):
    """It may have been for long that nobody has asked for it; the COMPOUND waits for it, and goes on."""

    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        handle = await handle_of(both, b"a")
        service = both.server.service
        for _ in range(2):
            forget(service, handle)
            done_in_python.clear()
            answered = both.answered
            reply = await both.native.call(None, both.message(2, putfh(handle), access(0x1F), getattr_(OF_CONTENT)))
            assert (status_of(reply), both.answered, done_in_python) == (0, answered + 1, [])
        forget(service, handle)
        await both.same(putfh(handle), access(0x1F), getattr_(OF_CONTENT))

    on("memory", tmp_path, minor, scenario)


def forget(service, handle):
    """Have the file in no table any more, as if others had taken its place."""
    node = service.nodes.find(handle)
    assert node is not None
    service.nodes.disown(node)
    assert service.nodes.find(handle) is None
