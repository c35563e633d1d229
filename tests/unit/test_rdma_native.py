"""What is answered natively over RDMA is what the general path answers: the reply, what is written and invalidated."""

import asyncio
import os
import random
import struct

import pytest

from rpcrdma.engine.config import ResponderOptions
from rpcrdma.peer import wire
from rpcrdma.server.rdma import RdmaServerOptions
from rpcrdma.wire.private_data import PrivateData
from tests.unit import vfs_support
from tests.unit.rdma_native_support import ACCESS, GETATTR, LOOKUP, READ, READLINK, handle, rpc, run


@pytest.mark.parametrize("kind", ["disk", "memory"])
@pytest.mark.parametrize("seed", range(3))
def test_random_calls_with_random_chunks(kind, tmp_path, seed):
    rng = random.Random(seed)

    async def scenario(both):
        sizes = (0, 1, 4097, 70_000)
        nodes = [
            await vfs_support.write_file(both.service, both.root, b"f%d" % size, rng.randbytes(size)) for size in sizes
        ]
        for _ in range(150):
            node = rng.choice(nodes)
            procedure = rng.choice((GETATTR, LOOKUP, ACCESS, READ, READ, READ, READ))
            if procedure == LOOKUP:
                arguments = handle(both.root) + struct.pack(">I4s", 2, rng.choice((b"f0\0\0", b"f1\0\0", b"no\0\0")))
            elif procedure == ACCESS:
                arguments = handle(node) + struct.pack(">I", 0x3F)
            elif procedure == READ:
                count = rng.choice((0, 1, 5, 1000, 3000, 4096, 65536))
                arguments = handle(node) + struct.pack(">QI", rng.choice((0, 1, 4096, 69_990, 1 << 40)), count)
            else:
                arguments = handle(node)
            shape = {}
            if rng.random() < 0.7:
                shape["room"] = rng.choice((0, 1, 999, 4096, 4100, 65536))
                shape["cuts"] = sorted({rng.randrange(1, 65536) for _ in range(rng.choice((0, 0, 0, 1, 3, 20)))})
            if rng.random() < 0.1:
                shape["reply"] = 8192
            await both.same(procedure, arguments, **shape)
        return [both.answered(procedure) for procedure in (GETATTR, LOOKUP, ACCESS, READ)]

    counts = run(kind, tmp_path, scenario)
    assert all(count > 3 for count in counts), f"hardly anything was answered natively: {counts}"


def test_credits_are_the_same_however_calls_are_answered(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", bytes(9000), mode=0o666)
        for peer, server in zip(both.peers, both.servers, strict=True):
            grants = []
            for burst in (1, 5, 60, 120):
                for number in range(burst):
                    procedure, arguments = (
                        (GETATTR, handle(node)) if number % 3 else (21 if number % 2 else 18, handle(node))
                    )
                    if procedure == 21:
                        arguments += bytes(12)
                    peer.send(wire.header(1000 + number, credit=128), rpc(1000 + number, procedure, arguments))
                grants += [(await peer.reply()).credit for _ in range(burst)]
            assert min(grants) > 0
            (connection,) = server.connections
            ledger = connection.responder.credits
            for _ in range(100):
                await asyncio.sleep(0)
            assert (ledger.posted, ledger.outstanding, ledger.unsent) == (ledger.target, 0, 0)
            assert grants[-1] == ledger.limit
        assert both.servers[0].counters.native_calls > 100

    run("memory", tmp_path, scenario)


def test_receives_shrink_although_calls_are_answered_natively(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", b"x")

        async def ask(peer, asked):
            peer.send(wire.header(7, credit=asked), rpc(7, GETATTR, handle(node)))
            return (await peer.reply()).credit

        for peer, server in zip(both.peers, both.servers, strict=True):
            assert [await ask(peer, 128) for _ in range(200)][-1] == 128
            now = asyncio.get_running_loop().time()
            server.check_times(now + 61)
            server.check_times(now + 122)
            assert {await ask(peer, 16) for _ in range(200)} == {16}
            (connection,) = server.connections
            ledger = connection.responder.credits
            assert (ledger.limit, ledger.posted) == (16, ledger.target)
        before = both.servers[0].counters.native_calls
        for _ in range(10):
            await ask(both.peers[0], 16)
        assert both.servers[0].counters.native_calls == before + 10

    run("memory", tmp_path, scenario, RdmaServerOptions(ResponderOptions(credits=128)))


def test_without_remote_invalidation_nothing_is_invalidated(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", bytes(9000), mode=0o666)
        modest = PrivateData(remote_invalidation=False, send_size=1024, receive_size=1024).encode()
        both.peers = [await both.connect(listener, modest) for listener in both.listeners]
        outcome = await both.same(READ, handle(node) + struct.pack(">QI", 0, 4096), room=4096)
        assert outcome[-1] is None
        # 1024 octets is all that may be sent to this peer: what does not fit is an error, natively or not.
        outcome = await both.same(READ, handle(node) + struct.pack(">QI", 0, 4096))
        assert outcome[0] == wire.ERROR
        assert both.answered(READ) > 0

    run("memory", tmp_path, scenario)


def test_who_ends_its_connection_slows_no_other_of_its_host(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", bytes(9000), mode=0o666)
        arguments = handle(node) + struct.pack(">QI", 0, 4096)
        await both.same(READ, arguments, room=4096)
        for xid in range(1000, 1010):
            bad = await both.connect(both.listeners[0])
            bad.send(wire.header(xid, writes=[[wire.Segment(0xDEAD, 4096, 0)]]), rpc(xid, READ, arguments))
            await bad.over()
        # Who was there before is not even suspected of those calls.
        answered = both.answered(READ)
        for xid in (1000, 1001, 77):
            assert (await both.call(0, READ, arguments, room=4096, xid=xid))[0] == wire.MSG
        assert both.answered(READ) == answered + 3
        # A new connection gets the errors, each once, and native answers to everything else.
        both.peers[0] = await both.connect(both.listeners[0])
        assert (await both.call(0, GETATTR, handle(node)))[0] == wire.MSG  # settles the version
        for xid, procedure in ((78, wire.MSG), (1005, wire.ERROR), (79, wire.MSG), (1005, wire.MSG)):
            assert (await both.call(0, READ, arguments, room=4096, xid=xid))[0] == procedure
        assert both.answered(READ) == answered + 6

    run("memory", tmp_path, scenario)


def test_writing_to_memory_that_is_not_exposed_costs_one_call(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", bytes(9000), mode=0o666)
        await both.same(READ, handle(node) + struct.pack(">QI", 0, 4096), room=4096)
        peer = both.peers[0]
        bad = wire.Segment(0xDEAD, 4096, 0)
        arguments = handle(node) + struct.pack(">QI", 0, 4096)
        peer.send(wire.header(77, writes=[[bad]]), rpc(77, READ, arguments))
        await peer.over()
        assert set(both.servers[0].poisoned.of("127.0.0.1")) == {77}
        again = await both.connect(both.listeners[0])
        both.peers[0] = again
        good = again.writable(4096)
        again.send(wire.header(77, writes=[[good.segment()]]), rpc(77, READ, arguments))
        assert (await again.reply()).procedure == wire.ERROR
        assert (await both.call(0, READ, arguments, room=4096))[0] == wire.MSG

    run("memory", tmp_path, scenario)


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_the_text_of_a_link_goes_to_a_write_chunk(kind, tmp_path):
    """RFC 8267 section 3 lets it. Where the client has sent none, it is inline."""

    async def scenario(both):
        text = "x" * 997
        os.symlink(text, os.path.join(both.path, "link"))
        node, _ = await both.service.lookup(vfs_support.ROOT, both.root, b"link")
        await both.call(0, READLINK, handle(node))  # sets atime
        for shape in ({"room": 997}, {"room": 4096, "cuts": (3, 500)}, {}, {"reply": 2000}, {"room": 996}):
            *_, written, payload, memory, _ = await both.same(READLINK, handle(node), **shape)
            room = shape.get("room")
            if room == 996:
                continue  # the text does not fit; both say so alike
            head = payload[20:]
            assert head[:8] == struct.pack(">II", 0, 1)
            assert head[92:96] == struct.pack(">I", 997)
            if room is None:
                assert head[96:] == text.encode() + bytes(3)
            else:
                assert sum(sum(lengths) for lengths in written) == 997
                assert memory[:997] == text.encode()
                assert head[96:] == b""
        # The last call is declined: the text is longer than its chunk.
        assert both.answered(READLINK) >= 8

    run(kind, tmp_path, scenario)
