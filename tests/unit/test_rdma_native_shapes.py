"""Messages of every shape, in both versions, are answered natively as the general path answers them."""

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
from tests.unit.rdma_native_support import ACCESS, GETATTR, LOOKUP, READ, WRITE, handle, rpc, run
from tests.unit.test_rdma_native_reads import content, file_of, tail, until

READ_REPLY = 24 + 104
"""Octets of a READ's reply without its data: the RPC header, status, attributes, count, eof, and the data's length."""


def native(both):
    return both.servers[0].counters.native_calls


def reading(node, offset, count):
    return handle(node) + struct.pack(">QI", offset, count)


async def settled(both, version):
    """New connections of which the first call, which is never answered natively, has gone."""
    for which, listener in enumerate(both.listeners):
        both.peers[which] = await both.connect(listener)
        await both.shaped(which, GETATTR, handle(both.root), version=version)


def chunk_of(rng, most):
    """Lengths of segments: few or many, some empty, together about what is wanted, less, or more."""
    count = rng.choice((0, 1, 1, 1, 1, 2, 3, 9))
    return [rng.choice((0, 1, 999, 4096, most // max(count, 1), most, most, most)) for _ in range(count)]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seed", range(2))
def test_random_shapes(tmp_path, version, seed):
    rng = random.Random(seed)

    async def scenario(both):
        sizes = (0, 1, 4097, 70_000)
        nodes = [
            await vfs_support.write_file(both.service, both.root, b"f%d" % size, rng.randbytes(size)) for size in sizes
        ]
        nodes += nodes[-1:] * 4
        await settled(both, version)
        for _ in range(200):
            node = rng.choice(nodes)
            procedure = rng.choice((GETATTR, LOOKUP, ACCESS, READ, READ, READ, READ, READ))
            count = rng.choice((1, 5, 1000, 3840, 4096, 8192, 65536))
            arguments = {
                GETATTR: handle(node),
                LOOKUP: handle(both.root) + struct.pack(">I4s", 2, rng.choice((b"f0\0\0", b"f1\0\0", b"no\0\0"))),
                ACCESS: handle(node) + struct.pack(">I", 0x3F),
                READ: reading(node, rng.choice((0, 0, 0, 1, 4096, 69_990, 1 << 40)), count),
            }[procedure]
            shape = {"version": version, "long": rng.random() < 0.3}
            shape["cuts"] = sorted({rng.randrange(1, 120) for _ in range(rng.choice((0, 0, 1, 3)))})
            shape["writes"] = [chunk_of(rng, count) for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 4)))]
            if rng.random() < 0.6:
                shape["reply"] = chunk_of(rng, count + rng.choice((0, 128, 160, 4096)))
            if rng.random() < 0.3:
                shape |= {"writes": [], "reply": [count // 2, 0, count + 128]}
            offered = len(shape["cuts"]) + 1 if shape["long"] else 0
            offered += sum(map(len, shape["writes"])) + len(shape.get("reply", ()))
            shape["named"] = rng.choice((None, -1, *range(offered)))
            await both.agreed(both.shaped, procedure, arguments, **shape)
        counters = both.servers[0].counters
        return [both.answered(each) for each in (GETATTR, LOOKUP, ACCESS, READ)], counters.long_replies

    counts, long_replies = run("memory", tmp_path, scenario)
    assert min(counts[:3]) > 10, f"hardly anything was answered natively: {counts}"
    assert counts[-1] > 60
    assert long_replies > 15


@pytest.mark.parametrize("version", [1, 2])
def test_the_common_calls_of_version_two_and_all_shapes_are_native(tmp_path, version):
    async def scenario(both):
        node = await file_of(both, b"a", bytes(range(256)) * 40)
        await settled(both, version)
        for procedure, arguments, shape in (
            (GETATTR, handle(node), {}),
            (GETATTR, handle(node), {"reply": [8192]}),
            (GETATTR, handle(node), {"long": True}),
            (GETATTR, handle(node), {"long": True, "reply": [8192], "writes": [[100], [100]]}),
            (LOOKUP, handle(both.root) + struct.pack(">I4s", 1, b"a\0\0\0"), {}),
            (READ, reading(node, 0, 1000), {}),
            (READ, reading(node, 0, 4096), {"writes": [[4096]]}),
            (READ, reading(node, 0, 4096), {"writes": [[0, 1000, 0, 5000]]}),
            (READ, reading(node, 0, 4096), {"writes": [[4096], [4096, 4096], []]}),
            (READ, reading(node, 0, 4096), {"reply": [8192]}),
            (READ, reading(node, 0, 4096), {"reply": [100, 0, 4000, 4000]}),
            (READ, reading(node, 0, 4096), {"writes": [[]], "reply": [8192]}),
            (READ, reading(node, 0, 1000), {"reply": [8192]}),
            (READ, reading(node, 0, 4096), {"writes": [[4096]], "reply": [8192]}),
            (READ, reading(node, 10_000, 8192), {"reply": [10_000]}),
            (READ, reading(node, 5, 4093), {"reply": [8192], "long": True, "cuts": [1, 50]}),
            (WRITE, handle(node) + tail(8), {"data": b"AAAABBBB"}),
            (WRITE, handle(node) + tail(8), {"data": b"AAAABBBB", "cuts": [3, 4], "writes": [[8]], "reply": [8192]}),
            (WRITE, handle(node) + tail(8) + b"CCCCDDDD", {"long": True, "cuts": [3]}),
        ):
            before = native(both)
            outcome = await both.shaped(0, procedure, arguments, version=version, **shape)
            assert outcome[0][:3] in ((version, wire.MSG, 0), (version, wire.NOMSG, 0))
            assert native(both) == before + 1, (procedure, shape)
        assert content(both, "a")[:8] == b"CCCCDDDD"

    run("memory", tmp_path, scenario)


@pytest.mark.parametrize("version", [1, 2])
def test_what_just_fits_inline_and_what_just_fits_the_reply_chunk(tmp_path, version):
    """The reply goes inline whenever it fits (RFC 8166 section 4.3.3); else the Reply chunk must have room for all."""

    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", os.urandom(9000), mode=0o666)
        await settled(both, version)
        smallest = 28 if version == 1 else 36
        inline = 4096 - (smallest + 4 + 16) - READ_REPLY
        for count in range(inline - 9, inline + 9):
            outcome = await both.agreed(both.shaped, READ, reading(node, 0, count), version=version, reply=[8192])
            padded = count + -count % 4
            assert outcome[0][1] == (wire.MSG if padded <= inline else wire.NOMSG)
            assert outcome[2] == [0 if padded <= inline else READ_REPLY + padded]
        before = native(both)
        for count in (5000, 5001, 5003):
            needed = READ_REPLY + count + -count % 4
            for room in (needed - 4, needed - 1, needed, needed + 1):
                shape = {"version": version, "reply": [1000, room - 1000]}
                outcome = await both.agreed(both.shaped, READ, reading(node, 0, count), **shape)
                assert outcome[0][1] == (wire.NOMSG if room >= needed else wire.ERROR)
        assert native(both) - before >= 12
        # A payload that turns out to be short stands where it belongs.
        for offset in (8999, 8998, 8900, 9000, 10_000):
            outcome = await both.agreed(both.shaped, READ, reading(node, offset, 8192), version=version, reply=[9000])
            assert outcome[0][1] == wire.MSG
        assert both.answered(READ) > 50

    run("memory", tmp_path, scenario)


def test_data_from_a_disk_in_the_reply_chunk(tmp_path):
    data = os.urandom(300_000)

    async def scenario(both):
        path = os.path.join(both.path, "a")
        with open(path, "wb") as file:
            file.write(data)
            os.fsync(file.fileno())
        node, _ = await both.service.lookup(vfs_support.ROOT, both.root, b"a")
        await settled(both, 2)
        await both.shaped(0, READ, reading(node, 0, 8), version=2)
        waited = sum(count for _, _, count in both.dispatcher.waited())
        before = native(both)
        calls = 0
        for offset, count in ((0, 4096), (131_072, 65_537), (262_144, 1 << 20), (299_999, 65_536)):
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            for long in (False, True):
                shape = {"version": 2, "reply": [50_000, count + 200], "long": long, "named": -1}
                outcome = await both.shaped(0, READ, reading(node, offset, count), **shape)
                calls += 1
                got = data[offset : offset + count]
                if outcome[0][1] == wire.MSG:
                    assert outcome[3][-len(got) - (-len(got) & 3) :].rstrip(b"\0") == got.rstrip(b"\0")
                else:
                    assert outcome[0][1] == wire.NOMSG
                    assert outcome[6][READ_REPLY - 4 :][: len(got)] == got
                    assert sum(outcome[2]) == READ_REPLY + len(got) + (-len(got) & 3)
        assert native(both) == before + calls
        return sum(count for _, _, count in both.dispatcher.waited()) - waited

    run("disk", tmp_path, scenario)


@pytest.mark.parametrize("version", [1, 2])
def test_long_calls_that_are_none(tmp_path, version):
    async def scenario(both):
        node = await file_of(both, b"a", b"old")
        await settled(both, version)
        good = rpc(77, GETATTR, handle(node))
        make = wire.header if version == 1 else wire.header_two
        for message, position, length in (
            (rpc(78, GETATTR, handle(node)), 0, None),  # another XID
            (struct.pack(">II", 77, 1) + good[8:], 0, None),  # a reply
            (good, 4, None),
            (good, 0, 7),
            (good, 0, 0),
            (good, 0, 39),
            (good[:40], 0, None),
        ):
            answers = []
            for peer in both.peers:
                source = peer.readable(message)
                part = source.segment(0, len(message) if length is None else length)
                peer.send(make(77, procedure=wire.NOMSG, reads=[(position, part)], credit=128), b"ignored!")
                answer = await peer.reply()
                answers.append((answer.procedure, answer.error, answer.credit, answer.payload))
            assert answers[0] == answers[1]
        before = native(both)
        assert (await both.shaped(0, GETATTR, handle(node), version=version, long=True))[0][1] == wire.MSG
        assert native(both) == before + 1

    run("memory", tmp_path, scenario)


@pytest.mark.parametrize("long", [False, True])
def test_a_reply_chunk_that_is_not_exposed_costs_one_call(tmp_path, long):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", bytes(9000), mode=0o666)
        await settled(both, 2)
        peer = both.peers[0]
        message = rpc(77, READ, reading(node, 0, 8192))
        lists = {"reply": [wire.Segment(0xDEAD, 16_384, 0)]}
        if long:
            lists |= {"procedure": wire.NOMSG, "reads": [(0, peer.readable(message).segment())]}
        before = native(both)
        peer.send(wire.header_two(77, **lists), b"" if long else message)
        await peer.over()
        assert native(both) == before + 1
        assert set(both.servers[0].poisoned.of("127.0.0.1")) == {77}
        both.peers[0] = await both.connect(both.listeners[0])
        assert (await both.shaped(0, READ, reading(node, 0, 8192), reply=[16_384], xid=77))[0][1] == wire.ERROR
        assert (await both.shaped(0, READ, reading(node, 0, 8192), reply=[16_384], xid=77))[0][1] == wire.NOMSG

    run("memory", tmp_path, scenario)


def test_messages_of_version_two_that_are_not_calls(tmp_path):
    """Control messages, errors and what goes in the other direction stay the responder's."""

    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", b"x")
        await settled(both, 2)
        answers = []
        for peer in both.peers:
            peer.send(wire.header_two(9, direction=1), rpc(9, GETATTR, handle(node)))
            peer.send(wire.words(9, 2, 32, wire.ERROR, 2, 0, 0))
            peer.send(wire.header_two(9, direction=1, writes=[[wire.Segment(1, 2, 3)]])[:-4])
            peer.send(wire.option(10, 1, b"ask"))
            peer.send(wire.header_two(11, direction=2), rpc(11, GETATTR, handle(node)))
            peer.send(wire.header(12), rpc(12, GETATTR, handle(node)))
            peer.send(wire.header_two(13), rpc(14, GETATTR, handle(node)))
            peer.send(wire.header_two(15, procedure=wire.NOMSG), rpc(15, GETATTR, handle(node)))
            peer.send(wire.header_two(16, reads=[(4, wire.Segment(1, 2, 3))])[:-8])
            peer.send(wire.header_two(17, credit=128), rpc(17, GETATTR, handle(node)))
            answers.append([await peer.reply() for _ in range(7)])
        first, second = ([(each.xid, each.version, each.procedure, each.error) for each in which] for which in answers)
        assert sorted(first) == sorted(second)
        assert (17, 2, wire.MSG, 0) in first
        assert [each[0] for each in first if each[2] == wire.MSG] == [17]
        await until(lambda: all(each.responder.idle for each in both.servers[0].connections))
        assert (await both.shaped(0, GETATTR, handle(node), version=2))[0][4] == 128

    run("memory", tmp_path, scenario)


def test_who_cannot_be_invalidated_is_not_and_gets_no_more_than_it_takes(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", bytes(9000), mode=0o666)
        modest = PrivateData(remote_invalidation=False, send_size=1024, receive_size=1024).encode()
        both.peers = [await both.connect(listener, modest) for listener in both.listeners]
        for _ in range(2):
            outcome = await both.agreed(both.shaped, READ, reading(node, 0, 1000), reply=[4096])
            assert outcome[0][1] == wire.NOMSG
            assert outcome[-1] is None
        assert both.answered(READ) >= 2

    run("memory", tmp_path, scenario)


async def answers_of(both, which, probe):
    """All that comes back before the server has nothing more to say."""
    peer, answers = both.peers[which], []
    try:
        for _ in range(3):
            peer.send(probe)
            while (answer := await peer.reply()).xid != 0x7777:
                answers.append((answer.xid, answer.procedure, answer.error, answer.credit, answer.payload[24:28]))
            await until(lambda: all(each.responder.idle for each in both.servers[which].connections))
    except ConnectionError:
        return ["over"]
    return sorted(answers)


@pytest.mark.parametrize("version", [1, 2])
def test_shapes_that_are_not_quite_right(tmp_path, version):
    """Words of good messages, exchanged for others: both servers answer the same."""
    rng = random.Random(version)

    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", bytes(9000), mode=0o666)
        make = wire.header if version == 1 else wire.header_two
        for number in range(60):
            kind, xid = number % 4, 5000 + number
            at, word = rng.randrange(3, 30), rng.choice((0, 1, 2, 3, 4, 100, 0xFFFFFFFF, 0x7FFFFFFF))
            cut, outcomes = rng.choice((0, 0, 4, 8)), []
            for which in range(2):
                both.servers[which].poisoned._peers.clear()
                peer = both.peers[which] = await both.connect(both.listeners[which])
                await both.shaped(which, GETATTR, handle(node), version=version)
                message = rpc(xid, READ, reading(node, 0, 5000))
                target = peer.writable(16_384)
                lists = [
                    {"writes": [target.segments(4000, 4000)]},
                    {"reply": target.segments(100, 8000)},
                    {"writes": [target.segments(5000), []], "reply": target.segments(8000)},
                    {
                        "procedure": wire.NOMSG,
                        "reads": [(0, peer.readable(message).segment())],
                        "reply": target.segments(8000),
                    },
                ][kind]
                octets = bytearray(make(xid, credit=128, **lists) + (b"" if kind == 3 else message))
                struct.pack_into(">I", octets, min(at * 4, len(octets) - 4), word)
                peer.send(bytes(octets[: len(octets) - cut]))
                outcomes.append(
                    await answers_of(both, which, make(0x7777, credit=128) + rpc(0x7777, GETATTR, handle(node)))
                )
                peer.endpoint.close(abort=True)
            assert outcomes[0] == outcomes[1], f"kind {kind}, word {at} as {word:#x}, without the last {cut}"
        for which, listener in enumerate(both.listeners):
            both.peers[which] = await both.connect(listener)
        assert both.answered(READ) > 5

    run("memory", tmp_path, scenario)


def test_many_long_replies_with_little_memory(tmp_path):
    """Reply chunks are promises of the peer's: what stands beside a head is leased of its account, and given back."""

    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", os.urandom(1 << 20), mode=0o666)
        await settled(both, 2)
        peer = both.peers[0]
        arguments = reading(node, 0, 1 << 20)
        targets = {xid: peer.writable((1 << 20) + 4096) for xid in range(100, 124)}
        for xid, target in targets.items():
            peer.send(wire.header_two(xid, reply=[target.segment()], credit=128), rpc(xid, READ, arguments))
        replies = [await peer.reply() for _ in targets]
        assert sorted(each.xid for each in replies) == list(targets)
        for each in replies:
            assert each.procedure == wire.NOMSG
            assert content(both, "a") == bytes(targets[each.xid].memory[READ_REPLY : READ_REPLY + (1 << 20)])
        assert both.answered(READ) > 2
        for _ in range(100):
            await asyncio.sleep(0)

    run("memory", tmp_path, scenario, RdmaServerOptions(ResponderOptions(first_credits=128), 17 << 19))
