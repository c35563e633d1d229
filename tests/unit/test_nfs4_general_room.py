"""General COMPOUNDs whose results need more room than most, and what they hold while they wait for that."""

import struct

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.v4 import compound
from rpcrdma.rpc import program
from rpcrdma.wire.private_data import PrivateData
from tests.support import nfs4_native
from tests.support.nfs4 import Client4, wanted
from tests.support.nfs4_native import RARE, handle_of
from tests.unit.test_nfs4_native import OF_CONTENT, getattr_, on, putfh, read
from tests.unit.test_waiting_calls import until

HEAD = 4096
"""Octets of a general reply's head at first."""
READDIR = (p.OP_READDIR, p.READDIR4args(0, bytes(8), 4096, 4096, wanted(1).attr_request))


class Frugal(Client4):
    """Has replies kept that are no longer than a PUTFH's."""

    async def connect(self, *arguments, **how):
        self.cached_reply = 64
        return await super().connect(*arguments, **how)


def statuses(reply):
    status, results = Client4.parse(reply)
    return status, len(results)


@pytest.mark.parametrize("minor", [1])
def test_results_longer_than_a_head_are_counted_once(tmp_path, minor):
    """What was read beside the results of another COMPOUND counts for that one alone."""

    async def scenario(both):
        (both.path / "a").write_bytes(bytes(2 << 20))
        stateid, handle = await both.client.open("/0", b"a")
        await both.native.call(None, both.message(2, putfh(handle), read(stateid, 0, 100)))
        long = [putfh(handle), read(stateid, 0, 7000), RARE, putfh(handle), getattr_(OF_CONTENT)]
        both.native.send(both.message(0, *long))
        both.native.send(both.message(3, putfh(handle), read(stateid, 0, 1 << 20)))
        replies = [await both.native.reply() for _ in range(2)]
        assert sorted(map(statuses, replies)) == [(p.NFS4_OK, 3), (p.NFS4_OK, 6)]

    on("memory", tmp_path, minor, scenario)


@pytest.mark.parametrize("minor", [1])
def test_who_holds_data_waits_for_more_room_with_patience_only(tmp_path, minor, monkeypatch):
    asked = []
    original = program.Call.lease

    async def lease(call, size):
        asked.append((size, call.holding))
        return await original(call, size)

    monkeypatch.setattr(program.Call, "lease", lease)

    async def scenario(both):
        (both.path / "a").write_bytes(bytes(100000))
        stateid, handle = await both.client.open("/0", b"a")
        many = [getattr_()] * (HEAD // 100)
        reply = await both.general.call(
            None, both.message(0, putfh(handle), read(stateid, 0, 70000), *many, read(stateid, 0, 70000))
        )
        assert statuses(reply) == (p.NFS4_OK, 4 + len(many))
        assert [holding for _, holding in asked] == [False, True, True]

    on("memory", tmp_path, minor, scenario)


@pytest.mark.parametrize("length", range(880, 904, 4))
def test_a_retransmission_whose_reply_was_not_kept_is_refused_where_there_is_no_room(tmp_path, length, monkeypatch):
    """Behind SEQUENCE there may be no room for another result: who goes on must not take the request for a new one."""
    monkeypatch.setattr(nfs4_native, "LINUX", PrivateData(send_size=1024, receive_size=1024).encode())

    async def scenario(both):
        root = await handle_of(both)
        encoded = both.client.message
        both.client.message = lambda *operations: encoded(*operations, tag=bytes(length))
        first = await both.call(0, 0, putfh(root), getattr_(), reply=4096)
        assert first[4][20:24] == struct.pack(">I", p.NFS4_OK)
        both.sequences[1] -= 1
        again = await both.call(0, 0, putfh(root), getattr_(), reply=4096)
        assert again[4][20:24] == struct.pack(">I", p.NFS4ERR_RETRY_UNCACHED_REP)

    on("memory", tmp_path, 1, scenario, ways=nfs4_native.BothRdma)


@pytest.mark.parametrize("minor", [1])
def test_an_operation_in_python_never_has_more_room_than_the_reply(tmp_path, minor, monkeypatch):
    """PUTFH has used up what may be kept of the reply; the number of the next operation does not fit any more."""
    rooms = []

    def carry_out(c, row, *arguments, original=compound.carry_out):
        rooms.append(c.room)
        return original(c, row, *arguments)

    monkeypatch.setattr(compound, "carry_out", carry_out)
    monkeypatch.setattr(nfs4_native, "Client4", Frugal)

    async def scenario(both):
        root = await handle_of(both)
        rooms.clear()
        reply = await both.native.call(None, both.message(0, putfh(root), RARE, cache=True))
        assert (rooms, statuses(reply)) == ([-4], (p.NFS4ERR_REP_TOO_BIG_TO_CACHE, 3))
        reply = await both.native.call(None, both.message(0, putfh(root), READDIR, cache=True))
        assert statuses(reply) == (p.NFS4ERR_TOOSMALL, 3)

    on("memory", tmp_path, minor, scenario)


class Looked(list):
    """Chunks, with how often one of them has been looked at."""

    looks = 0

    def __getitem__(self, index):
        self.looks += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("minor", [1])
def test_many_chunks_are_gone_through_a_few_times(tmp_path, minor):
    """Not once for each of them: there may be thousands, and the loop waits."""

    async def scenario(both):
        (connection,) = both.listeners[0].connections
        message = both.message(0, p.OP_PUTROOTFH)
        chunks = Looked((len(message) + 4 * number, memoryview(b"more")) for number in range(200))
        replies = []
        both.dispatcher.dispatch(connection, memoryview(message), chunks, [], replies.append)
        await until(lambda: replies)
        assert bytes(replies[0].head)[20:24] == struct.pack(">I", 4)  # GARBAGE_ARGS
        assert len(chunks) <= chunks.looks < 10 * len(chunks)

    on("memory", tmp_path, minor, scenario)
