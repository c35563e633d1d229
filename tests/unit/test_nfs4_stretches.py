"""Operations with a native body are carried out by it, however their call comes."""

import asyncio
import struct

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.v4 import attribute_errands
from tests.support.nfs4 import Client4
from tests.support.nfs4_native import handle_of
from tests.unit.test_nfs4_native import OF_CONTENT, access, getattr_, lookup, on, putfh, read


def status_of(reply):
    return Client4.parse(reply)[0]


def test_places_of_the_pseudo_file_system_are_handles_like_others(tmp_path, minor, done_in_python):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        root = both.server.nfs4.pseudo.root.handle
        saved = [
            putfh(root),
            p.OP_SAVEFH,
            lookup(b"0"),
            p.OP_GETFH,
            p.OP_RESTOREFH,
            p.OP_GETFH,
            lookup(b"0"),
            lookup(b"a"),
        ]
        answered = both.answered
        done_in_python.clear()
        assert status_of(await both.native.call(None, both.message(2, *saved, getattr_(OF_CONTENT)))) == p.NFS4_OK
        assert status_of(await both.native.call(None, both.message(2, putfh(root), lookup(b"none")))) == p.NFS4ERR_NOENT
        assert status_of(await both.native.call(None, both.message(2, putfh(root), lookup(b"..")))) == p.NFS4ERR_BADNAME
        stale = root[:1] + bytes(len(root) - 1)
        assert status_of(await both.native.call(None, both.message(2, putfh(stale)))) == p.NFS4ERR_STALE
        without = p.NFS4ERR_NOFILEHANDLE if minor else p.NFS4ERR_RESTOREFH
        assert status_of(await both.native.call(None, both.message(2, p.OP_RESTOREFH))) == without
        assert (both.answered - answered, done_in_python) == (5, [])
        await both.same(*saved, getattr_(OF_CONTENT))

    on("memory", tmp_path, minor, scenario)


def test_more_operations_than_fit_into_one_stretch(tmp_path, minor, done_in_python):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content" * 1000)
        stateid, handle = await both.client.open("/0", b"a")
        one = [putfh(handle), read(stateid, 0, 7000), getattr_(OF_CONTENT), access(0x1F)]
        for operations in (one * 3, [p.OP_PUTROOTFH, *one, p.OP_PUTROOTFH, *one]):
            await both.same(*operations)
            await both.same(*operations, cache=True)
        done_in_python.clear()
        await both.native.call(None, both.message(2, *one * 3))
        assert set(done_in_python) <= {p.OP_PUTROOTFH}

    on("memory", tmp_path, minor, scenario)


def test_callers_whose_groups_the_server_looks_up(tmp_path, minor, done_in_python):
    """With 16 groups the server's own list counts, and what the caller is there is not known at once."""

    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        handle = await handle_of(both, b"a")
        encoded = both.client.message

        def of_many_groups(*operations):
            both.client.credential = (0, 0, tuple(range(100, 116)))
            return encoded(*operations)

        both.client.message = of_many_groups
        message = both.message(2, putfh(handle), getattr_(OF_CONTENT), access(0x1F))
        done_in_python.clear()
        answered = both.answered
        assert status_of(await both.native.call(None, message)) == p.NFS4_OK
        assert (both.answered - answered, done_in_python) == (1, [])

    on("memory", tmp_path, minor, scenario)


@pytest.mark.parametrize("size", [6000, 300000])
def test_results_that_need_more_room_than_most(tmp_path, minor, size, monkeypatch):
    """A GETATTR has waited when it is known that its result needs more room; others are answered before it goes on.
    What it has found is not asked for again."""

    async def scenario(both):
        root = await handle_of(both)
        (connection,) = both.listeners[0].connections
        asked = (p.OP_GETATTR, p.GETATTR4args([1 << p.FATTR4_ACL]))
        offered = []

        def another():
            message = both.message(3, p.OP_PUTROOTFH, putfh(root), p.OP_READLINK)
            both.dispatcher.dispatch(connection, memoryview(message), (), [], lambda reply: reply.release())

        async def fattr(*_):
            await asyncio.sleep(0)
            offered.append(None)
            asyncio.get_running_loop().call_soon(another)
            return struct.pack(">III", 1, 1 << p.FATTR4_ACL, size) + bytes(size)

        monkeypatch.setattr(attribute_errands, "fattr", fattr)
        reply = await both.native.call(None, both.message(0, p.OP_PUTROOTFH, putfh(root), asked))
        assert (reply[24:28], len(offered)) == (bytes(4), 1)
        assert reply[-size - 4 :] == struct.pack(">I", size) + bytes(size)

    on("memory", tmp_path, minor, scenario)


@pytest.mark.parametrize("short_of", [0, 1, 20, 24, 28])
def test_a_result_may_have_all_that_is_left_of_the_reply(tmp_path, short_of, monkeypatch):
    async def scenario(both):
        root = await handle_of(both)
        asked = (p.OP_GETATTR, p.GETATTR4args([1 << p.FATTR4_ACL]))
        size = 0

        async def fattr(*_):
            await asyncio.sleep(0)
            return struct.pack(">III", 1, 1 << p.FATTR4_ACL, size) + bytes(size)

        monkeypatch.setattr(attribute_errands, "fattr", fattr)
        length = len(await both.native.call(None, both.message(0, p.OP_PUTROOTFH, putfh(root), asked)))
        size = both.session.fore.maxresponsesize - length - short_of & ~3
        reply = await both.native.call(None, both.message(0, p.OP_PUTROOTFH, putfh(root), asked))
        assert (reply[24:28], len(reply)) == (bytes(4), length + size)

    on("memory", tmp_path, 1, scenario)
