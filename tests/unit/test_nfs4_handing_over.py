"""COMPOUNDs that native operations begin and others go on with: nothing is done twice, no slot stays in use."""

import os

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.v4 import compound
from tests.support.nfs4 import Client4, wanted
from tests.support.nfs4_native import RARE, handle_of
from tests.unit.test_nfs4_native import ANONYMOUS, OF_CONTENT, access, getattr_, lookup, on, putfh, read, write

READDIR = (p.OP_READDIR, p.READDIR4args(0, bytes(8), 4096, 4096, wanted(1, 4).attr_request))
OK = 0


def status_of(reply):
    return Client4.parse(reply)[0]


def test_what_stands_before_an_operation_is_not_done_again(tmp_path, minor, done_in_python):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        root = await handle_of(both)
        await handle_of(both, b"a")
        before = [putfh(root), getattr_(OF_CONTENT), lookup(b"a"), p.OP_GETFH, access(0x1F)]
        await both.native.call(None, both.message(2, putfh(root)))
        for rare in (p.OP_READLINK, p.OP_LOOKUPP, 9999):
            done_in_python.clear()
            await both.native.call(None, both.message(2, *before, rare))
            assert done_in_python == [rare] * (rare != 9999)
        await both.same(*before, p.OP_SAVEFH, getattr_(), p.OP_RESTOREFH, p.OP_GETFH)
        await both.same(*before, p.OP_READLINK, getattr_())
        await both.same(*before, 9999)
        await both.same(putfh(root), READDIR, getattr_(OF_CONTENT))
        await both.same(putfh(root), READDIR, getattr_(OF_CONTENT), cache=True)
        await both.same(putfh(root), lookup(b"none"), getattr_(OF_CONTENT), cache=True)
        await both.same(putfh(root), putfh(b"no handle"), getattr_(OF_CONTENT))
        await both.same(putfh(root), *[getattr_(OF_CONTENT)] * 6, p.OP_LOOKUPP, p.OP_GETFH)
        both.same_slots()

    on("memory", tmp_path, minor, scenario)


def test_data_that_stand_beside_the_results_are_read_again(tmp_path, minor, done_in_python):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content" * 10000)
        stateid, handle = await both.client.open("/0", b"a")
        for size in (700, 70000):
            done_in_python.clear()
            await both.native.call(None, both.message(2, putfh(handle), read(stateid, 0, size), RARE))
            assert done_in_python == [p.OP_NVERIFY]  # READ has one body
            await both.same(putfh(handle), read(stateid, 0, size), RARE, getattr_(OF_CONTENT))
            await both.same(putfh(handle), read(stateid, 0, size), putfh(b"none"), getattr_(OF_CONTENT))

    on("memory", tmp_path, minor, scenario)


@pytest.mark.parametrize("minor", [1, 2])
def test_the_slot_has_the_whole_reply(tmp_path, minor):
    async def scenario(both):
        (both.path / "sub").mkdir()
        root = await handle_of(both)
        rare = (p.OP_REMOVE, p.REMOVE4args(b"sub"))
        message = both.message(0, putfh(root), getattr_(OF_CONTENT), rare, p.OP_SAVEFH, cache=True)
        first = await both.native.call(None, message)
        assert status_of(first) == OK
        assert not (both.path / "sub").exists()
        (both.path / "sub").mkdir()
        for way in (both.native, both.general):
            assert (await way.call(None, bytes(4) + message[4:]))[4:] == first[4:]
        assert (both.path / "sub").exists()

    on("memory", tmp_path, minor, scenario)


def test_an_operation_that_waits_holds_the_slot(tmp_path, monkeypatch):
    """The rare operation is held up in its first step: a retransmission finds the slot in use."""

    async def scenario(both):
        root = await handle_of(both)
        answers = []

        async def slow(c, row, *arguments, original=compound.carry_out):
            if not answers:
                answers.append(c.session.slots[1].in_use)
                answers.append(status_of(await both.general.call(None, message)))
            return await original(c, row, *arguments)

        message = both.message(0, putfh(root), RARE)
        monkeypatch.setattr(compound, "carry_out", slow)
        assert status_of(await both.native.call(None, message)) == OK
        assert answers == [True, p.NFS4ERR_DELAY]
        assert not both.session.slots[1].in_use

    on("memory", tmp_path, 1, scenario)


def test_a_slot_that_nobody_takes_up_is_given_back(tmp_path):
    """The COMPOUND says that it has one operation more than there are."""

    async def scenario(both):
        root = await handle_of(both)
        reply = await both.native.call(None, both.message(0, putfh(root), p.OP_SAVEFH)[:-4])
        assert int.from_bytes(reply[20:24], "big") == 4  # GARBAGE_ARGS
        assert not both.session.slots[1].in_use
        assert status_of(await both.native.call(None, both.message(0, putfh(root), READDIR))) == OK

    on("memory", tmp_path, 1, scenario)


def test_operations_are_counted_once(tmp_path, minor):
    async def scenario(both):
        root = await handle_of(both)
        before = both.server.nfs4.counts.all()
        await both.native.call(None, both.message(0, putfh(root), getattr_(OF_CONTENT), READDIR))
        after = both.server.nfs4.counts.all()
        counted = {number: count - before.get(number, 0) for number, count in after.items()}
        counted = {number: count for number, count in counted.items() if count}
        expected = {p.OP_PUTFH: 1, p.OP_GETATTR: 1, p.OP_READDIR: 1}
        assert counted == (expected | {p.OP_SEQUENCE: 1} if minor else expected)

    on("memory", tmp_path, minor, scenario)


def test_a_rare_write_behind_native_operations(tmp_path, minor):
    """What changes files goes on as well, with the caller, the room and the stateid that it would have had."""

    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        (both.path / "a").chmod(0o666)
        handle = await handle_of(both, b"a")
        status = status_of(
            await both.native.call(None, both.message(0, putfh(handle), getattr_(), write(ANONYMOUS, 0, b"C")))
        )
        assert (status, (both.path / "a").read_bytes()) == (OK, b"Content")
        os.chown(both.path / "a", 0, 0)
        (both.path / "a").chmod(0o600)
        message = both.message(0, putfh(handle), getattr_(), write(ANONYMOUS, 0, b"lost"), caller=(1001, 1001))
        assert status_of(await both.native.call(None, message)) == p.NFS4ERR_ACCESS
        assert (both.path / "a").read_bytes() == b"Content"

    on("memory", tmp_path, minor, scenario)


def test_what_fails_is_answered_natively_and_counted(tmp_path, minor, done_in_python):
    async def scenario(both):
        (both.path / "closed").mkdir(mode=0o700)
        root, closed = await handle_of(both), await handle_of(both, b"closed")
        usage = both.server.nfs4.exports.usage
        tally = both.server.nfs4.exports.tally(both.server.service.exports.exports[0], "127.0.0.1")
        for directory, status in ((root, p.NFS4ERR_NOENT), (closed, p.NFS4ERR_ACCESS)):
            asked = [putfh(directory), getattr_(OF_CONTENT), lookup(b"none"), p.OP_GETFH, getattr_()]
            for cache in (False, True):
                await both.same(*asked, cache=cache, caller=(1001, 1001))
            counted, errors = sum(usage.statuses.values()), tally.errors
            answered, calls = both.answered, both.server.nfs4.counts.all()[p.OP_LOOKUP]
            done_in_python.clear()
            reply = await both.native.call(None, both.message(2, *asked, caller=(1001, 1001)))
            assert (status_of(reply), both.answered, done_in_python) == (status, answered + 1, [])
            assert sum(usage.statuses.values()) == counted + 1
            assert usage.statuses[4, "LOOKUP", p.nfsstat4(status).name.removeprefix("NFS4ERR_")] >= 1
            assert tally.errors == errors + 1
            assert both.server.nfs4.counts.all()[p.OP_LOOKUP] == calls + 1

    on("memory", tmp_path, minor, scenario)


def test_a_name_that_is_not_in_memory_is_waited_for(tmp_path, minor, done_in_python):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        root = await handle_of(both)
        await both.same(putfh(root), getattr_(OF_CONTENT))
        for name, status in ((b"a", OK), (b"none", p.NFS4ERR_NOENT)):
            done_in_python.clear()
            reply = await both.native.call(None, both.message(2, putfh(root), lookup(name), p.OP_GETFH))
            assert (status_of(reply), done_in_python) == (status, [])
            await both.same(putfh(root), lookup(name), p.OP_GETFH, cache=True)

    on("disk", tmp_path, minor, scenario)
