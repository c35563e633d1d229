"""Calls whose Read chunk is fetched natively are answered as the general path answers, and so are those that it must
answer after all."""

import asyncio
import itertools
import os
import random
import struct

import pytest

from rpcrdma.engine.config import ResponderOptions
from rpcrdma.peer import wire
from rpcrdma.server.rdma import RdmaServerOptions
from tests.unit import vfs_support
from tests.unit.rdma_native_support import GETATTR, READ, WRITE, handle, rpc, run

CHUNK = 1 << 20


def tail(length, offset=0, stable=0):
    return struct.pack(">QIII", offset, length, stable, length)


async def file_of(both, name, data=b""):
    """A file that is open for writing in the server, so that nothing stands against native answers."""
    node = await vfs_support.write_file(both.service, both.root, name, data, mode=0o666)
    await both.call(0, WRITE, handle(node) + tail(8), data=b"warm-up.")
    return node


def content(both, name):
    with open(os.path.join(both.path, name), "rb") as file:
        return file.read()


def write_call(peer, xid, node, data, offset=0, cuts=()):
    """A WRITE with its data in a Read chunk: (the transport header, the RPC call)."""
    source = peer.readable(data)
    edges = [0, *cuts, len(data)]
    message = rpc(xid, WRITE, handle(node) + tail(len(data), offset))
    chunk = [(len(message), source.segment(start, end - start)) for start, end in itertools.pairwise(edges)]
    return wire.header(xid, reads=chunk, credit=128), message


async def until(condition):
    """Look at every turn of the loop, for some seconds at most."""
    for _ in range(200_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not happen")


async def until_idle(both, which, peer, node):
    """What comes back until the server has nothing more to say, or until the connection is over."""
    answers, probes = [], 0
    while probes < 2:
        peer.send(wire.header(0x7777, credit=128), rpc(0x7777, GETATTR, handle(node)))
        probes += 1
        while True:
            try:
                header = await peer.reply()
            except ConnectionError:
                return ["over", *sorted(answers)]
            if header.xid == 0x7777:
                break
            answers.append((header.xid, header.procedure, header.error or 0, header.payload[24:28]))
        await until(lambda: all(each.responder.idle for each in both.servers[which].connections))
    return sorted(answers)


@pytest.mark.parametrize("seed", range(3))
def test_random_writes_from_read_chunks(tmp_path, seed):
    rng = random.Random(seed)

    async def scenario(both):
        nodes = [await vfs_support.write_file(both.service, both.root, each, mode=0o666) for each in (b"a", b"b")]
        for _ in range(120):
            data = rng.randbytes(rng.choice((0, 1, 4, 100, 4096, 70_000)))
            count = len(data) + rng.choice((0, 0, 0, 0, 4, -4))
            offset, stable = rng.choice((0, 1, 4096, 1 << 16)), rng.choice((0, 0, 0, 2))
            tail = struct.pack(">QIII", offset, max(count, 0), stable, max(count, 0))
            shape = {
                "data": data or None,
                "cuts": sorted({rng.randrange(1, 70_000) for _ in range(rng.choice((0, 2)))}),
            }
            outcomes = [await both.call(which, WRITE, handle(node) + tail, **shape) for which, node in enumerate(nodes)]
            (first, second) = [
                (kind, error, credit, lengths, payload[20:24], payload[-12:-8], invalidated)
                for kind, error, credit, lengths, payload, _, invalidated in outcomes
            ]
            assert first == second
            contents = [open(os.path.join(both.path, each), "rb").read() for each in ("a", "b")]  # noqa: SIM115
            assert contents[0] == contents[1]
        return both.answered(WRITE)

    assert run("memory", tmp_path, scenario) > 15


def test_a_retransmitted_write_from_a_chunk_is_not_executed_again(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", b"old", mode=0o666)
        tail = struct.pack(">QIII", 0, 8, 0, 8)
        await both.call(0, WRITE, handle(node) + tail, data=b"warm-up.", xid=1)
        first = await both.call(0, WRITE, handle(node) + tail, data=b"AAAAAAAA", xid=2)
        assert both.answered(WRITE) == 1
        await both.call(0, WRITE, handle(node) + tail, data=b"BBBBBBBB", xid=3)
        # The same call again: from a chunk, and inline.
        again = await both.call(0, WRITE, handle(node) + tail, data=b"AAAAAAAA", xid=2)
        assert again[4] == first[4]
        assert (await both.call(0, WRITE, handle(node) + tail + b"AAAAAAAA", xid=2))[4] == first[4]
        with open(os.path.join(both.path, "a"), "rb") as file:
            assert file.read() == b"BBBBBBBB"

    run("memory", tmp_path, scenario)


@pytest.mark.parametrize("seed", range(3))
def test_messages_that_are_not_quite_right(tmp_path, seed):
    rng = random.Random(seed)

    async def scenario(both):
        nodes = [await file_of(both, each) for each in (b"a", b"b")]
        for number in range(40):
            at, xid = rng.randrange(4, 26) * 4, 5000 + number
            word = rng.choice((0, 1, 2, 3, 4, 100, 0xFFFFFFFF, 0x7FFFFFFF, rng.getrandbits(32)))
            cut = rng.choice((0, 0, 0, 4, 8, 60))
            outcomes = []
            for which, node in enumerate(nodes):
                both.servers[which].poisoned._peers.clear()
                peer = await both.connect(both.listeners[which])
                both.peers.append(peer)
                assert (
                    await until_idle(both, which, peer, node) == []
                )  # before there was an answer, nothing is answered natively
                octets = bytearray(b"".join(write_call(peer, xid, node, bytes(4096), 100, (1000,))))
                if number % 8:
                    struct.pack_into(">I", octets, at, word)
                peer.send(bytes(octets[: len(octets) - cut]))
                outcomes.append(await until_idle(both, which, peer, node))
                peer.endpoint.close(abort=True)
            assert outcomes[0] == outcomes[1], f"word {at // 4} as {word:#x}, without the last {cut}"
            assert content(both, "a") == content(both, "b")
        assert both.answered(WRITE) >= 3

    run("memory", tmp_path, scenario)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_what_is_to_be_stable_is_synchronised_natively(kind, tmp_path):
    async def scenario(both):
        node = await file_of(both, b"a")
        for stable in (1, 2):
            outcome = await both.call(0, WRITE, handle(node) + tail(8, 0, stable), data=b"A" * 8)
            assert outcome[4][-12:-8] == struct.pack(">I", stable)  # committed
        assert both.answered(WRITE) == 2

    run(kind, tmp_path, scenario)


def test_many_at_once_with_little_memory(tmp_path):
    async def scenario(both):
        node = await file_of(both, b"a")
        peer = both.peers[0]
        calls = 24
        before = both.answered(WRITE)
        for number in range(calls):
            peer.send(*write_call(peer, 100 + number, node, bytes([number + 1]) * CHUNK, number * CHUNK))
        replies = [await peer.reply() for _ in range(calls)]
        assert sorted(reply.xid for reply in replies) == [100 + number for number in range(calls)]
        assert all(reply.procedure == wire.MSG and reply.payload[24:32] == bytes(4) + b"\0\0\0\1" for reply in replies)
        assert content(both, "a") == b"".join(bytes([number + 1]) * CHUNK for number in range(calls))
        assert both.servers[0].counters.memory_waits
        assert 0 < both.answered(WRITE) - before < calls

    run("memory", tmp_path, scenario, RdmaServerOptions(ResponderOptions(first_credits=128), 17 << 19))


def test_credits_with_calls_that_wait_for_their_data(tmp_path):
    async def scenario(both):
        node = await file_of(both, b"a")
        for peer, server in zip(both.peers, both.servers, strict=True):
            grants = []
            for burst in (1, 30, 128):
                for number in range(burst):
                    if number % 3:
                        peer.send(*write_call(peer, 1000 + number, node, bytes(4096), 4096 * number))
                    else:
                        peer.send(wire.header(1000 + number, credit=128), rpc(1000 + number, GETATTR, handle(node)))
                grants += [(await peer.reply()).credit for _ in range(burst)]
            assert min(grants) > 0
            (connection,) = server.connections
            ledger = connection.responder.credits
            for _ in range(100):
                await asyncio.sleep(0)
            assert (ledger.posted, ledger.outstanding, ledger.unsent) == (ledger.target, 0, 0)
            assert grants[-1] == ledger.limit
        assert both.answered(WRITE) > 50

    run("memory", tmp_path, scenario)


def test_who_sends_more_than_was_granted_is_not_given_receives_for_it(tmp_path):
    async def scenario(both):
        node = await file_of(both, b"a")
        peer = both.peers[0]
        (connection,) = both.servers[0].connections
        ledger = connection.responder.credits
        for number in range(3 * ledger.unfinished_limit):
            peer.send(*write_call(peer, 1000 + number, node, bytes(64)))
        await peer.over()
        assert ledger.outstanding <= ledger.unfinished_limit + ledger.target

    run("memory", tmp_path, scenario)


def test_reading_memory_that_is_not_exposed_costs_one_call(tmp_path):
    async def scenario(both):
        node = await file_of(both, b"a")
        peer = both.peers[0]
        message = rpc(77, WRITE, handle(node) + tail(4096))
        peer.send(wire.header(77, reads=[(len(message), wire.Segment(0xDEAD, 4096, 0))]), message)
        await peer.over()
        assert set(both.servers[0].poisoned.of("127.0.0.1")) == {77}
        assert both.servers[0].counters.read_failures == 1
        again = await both.connect(both.listeners[0])
        both.peers[0] = again
        again.send(*write_call(again, 77, node, bytes(4096)))
        assert (await again.reply()).procedure == wire.ERROR
        assert (await both.call(0, WRITE, handle(node) + tail(4), data=b"done"))[0] == wire.MSG
        assert content(both, "a")[:4] == b"done"

    run("memory", tmp_path, scenario)


def test_a_client_that_goes_away_meanwhile_leaves_nothing_behind(tmp_path):
    async def scenario(both):
        node = await file_of(both, b"a")
        for turns in range(12):
            peer = await both.connect(both.listeners[0])
            for number in range(20):
                peer.send(*write_call(peer, 1000 + number, node, bytes(200_000)))
            for _ in range(turns):
                await asyncio.sleep(0)
            peer.endpoint.close(abort=True)
            await peer.over()
        await until(lambda: len(both.servers[0].connections) == 1)

    run("memory", tmp_path, scenario)


def test_a_connection_that_drains_answers_first_and_notices_when_it_has(tmp_path):
    async def scenario(both):
        node = await file_of(both, b"a")
        peer = both.peers[0]
        (connection,) = both.servers[0].connections
        for number in range(8):
            peer.send(*write_call(peer, 1000 + number, node, bytes(70_000), number * 70_000))
        await until(lambda: connection.responder.credits.outstanding)
        assert not connection.responder.draining
        before = both.servers[0].counters.replies
        taken = connection.responder.credits.outstanding
        await asyncio.wait_for(connection.drain(), 20)
        assert both.servers[0].counters.replies == before + taken
        assert [(await peer.reply()).procedure for _ in range(peer.waiting)] == [wire.MSG] * taken

    run("memory", tmp_path, scenario)


def test_a_connection_that_drains_waits_for_direct_replies_to_leave_and_notices_when_they_have(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", bytes(CHUNK))
        arguments = handle(node) + struct.pack(">QI", 0, CHUNK)
        await both.call(0, READ, arguments, room=CHUNK)
        peer = both.peers[0]
        (connection,) = both.servers[0].connections
        for number in range(16):
            memory = peer.writable(CHUNK)
            peer.send(wire.header(number, writes=[[memory.segment()]], credit=128), rpc(number, READ, arguments))
        ledger = connection.responder.credits
        await until(lambda: ledger.unsent and not ledger.outstanding)
        await asyncio.wait_for(connection.drain(), 20)
        replies = [await peer.reply() for _ in range(peer.waiting)]
        assert replies
        assert both.answered(READ) >= len(replies)

    run("memory", tmp_path, scenario)


def test_a_call_of_another_version_than_the_settled_one_is_not_answered_in_it(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", bytes(9000), mode=0o666)
        tail = struct.pack(">QIII", 0, 8, 0, 8)
        # The file is open for writing, so that nothing but the version stands against a native answer.
        await both.call(0, WRITE, handle(node) + tail, data=b"warm-up.")
        versions = []
        for listener in both.listeners:
            peer = await both.connect(listener)
            both.peers.append(peer)
            message = rpc(8, WRITE, handle(node) + tail)
            chunk = [(len(message), peer.readable(b"AAAAAAAA").segment())]
            peer.send(wire.header_two(8, reads=chunk), message)
            peer.send(wire.header(9), rpc(9, GETATTR, handle(node)))
            replies = {reply.xid: reply for reply in [await peer.reply(), await peer.reply()]}
            versions.append({xid: (reply.version, reply.procedure) for xid, reply in replies.items()})
        assert versions[0] == versions[1]
        assert versions[0][9] == (1, wire.MSG)
        assert versions[0][8][0] == 2

    run("memory", tmp_path, scenario)
