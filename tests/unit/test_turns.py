"""How much a connection does in one turn of the loop: as much as it likes when alone, little while there are others."""

import asyncio
import itertools
import random
import struct

import pytest

from rpcrdma import turns
from rpcrdma.turns import SLICE
from rpcrdma.verbs.interface import RdmaRead, RdmaWrite, Send
from tests.support.watched_streams import watch_streams
from tests.unit.softiwarp_support import world
from tests.unit.test_nfs3_native import GETATTR, READ, WRITE, handle, run
from tests.unit.test_tcp_pages import HEAD, MIB, file_of, read

SECOND = 1_000_000_000


def test_others_are_there_if_one_had_a_turn_lately():
    turns.forget()
    one, other = object(), object()
    assert not turns.begin(one, 1 * SECOND)
    assert not turns.begin(one, 9 * SECOND)
    assert turns.begin(other, 10 * SECOND)
    assert turns.begin(one, 10 * SECOND + 1)
    assert turns.begin(one, 11 * SECOND)
    assert not turns.begin(one, 11 * SECOND + 1)
    assert turns.begin(other, 20 * SECOND)


def watch(both):
    """What the turns of the first connection move from now on."""
    (connection,) = both.listeners[0].connections
    return connection.stream.watch()


@pytest.fixture(autouse=True)
def watched(monkeypatch):
    watch_streams(monkeypatch)


def test_large_reads_are_sent_in_slices_while_there_are_others(tmp_path):
    async def scenario(both):
        octets = random.Random(1).randbytes(2 * MIB)
        node = await file_of(both, octets)
        await both.general.call(GETATTR, handle(node))  # the other
        moved = watch(both)
        for number in range(12):
            both.native.send(READ, read(node, number % 2 * MIB, MIB))
        for number in range(12):
            reply = await both.native.reply()
            assert reply[HEAD:] == octets[number % 2 * MIB :][:MIB]
        assert sum(turn.sent for turn in moved) == 12 * (4 + HEAD + MIB)
        assert max(turn.sent for turn in moved) <= SLICE
        assert max(turn.queued for turn in moved) < SLICE + 4 + HEAD + MIB, "no more is answered than can leave soon"

    run("memory", tmp_path, scenario)


def write_arguments(node, number):
    return handle(node) + struct.pack(">QIII", number * MIB, MIB, 0, MIB) + bytes([number + 1]) * MIB


async def write_much(both):
    """Eight WRITEs of 1 MiB on the first connection. Returns what its turns moved, and how many chains workers ran."""
    node = await file_of(both, b"warm-up")
    await both.native.call(WRITE, handle(node) + struct.pack(">QIII", 0, 8, 0, 8) + b"warm-up.")
    await both.general.call(GETATTR, handle(node))
    moved, before = watch(both), both.service.executor.statistics()["completed"]
    for number in range(8):
        both.native.send(WRITE, write_arguments(node, number))
    for _ in range(8):
        assert (await both.native.reply())[24:28] == bytes(4)
    with open(f"{both.path}/a", "rb") as file:
        assert file.read() == b"".join(bytes([number + 1]) * MIB for number in range(8))
    return moved, both.service.executor.statistics()["completed"] - before


def test_large_writes_arrive_in_slices_and_are_made_by_workers_while_there_are_others(tmp_path):
    moved, by_workers = run("memory", tmp_path, write_much)
    # The beginning of a record comes by way of the shared read buffer.
    assert max(turn.received for turn in moved) <= SLICE + 65536
    assert by_workers == 8


def test_who_is_the_only_one_left_is_alone(tmp_path):
    async def scenario(both):
        (one,), (other,) = (listener.connections for listener in both.listeners)
        node = await file_of(both, bytes(MIB))
        await both.general.call(GETATTR, handle(node))
        await both.native.call(GETATTR, handle(node))
        assert turns.is_crowded()
        other.close()
        await both.native.call(READ, read(node, 0, MIB))
        assert not turns.is_crowded()
        assert not one.closed

    run("memory", tmp_path, scenario)


@pytest.mark.usefixtures("alone")
def test_who_is_alone_waits_for_no_worker(tmp_path):
    _, by_workers = run("memory", tmp_path, write_much)
    assert by_workers == 0


def test_rdma_writes_are_sent_in_slices_while_there_are_others():
    async def main():
        async with world() as it:
            client, server = await it.pair()
            memory = bytearray(4 * MIB)
            key, offset = client.endpoint.register(memory, remote_write=True)
            client.endpoint.post((), Send((b"first",)), None)  # before which the other side may not send
            await server.until(lambda me: me.messages == [b"first"])
            data = random.Random(2).randbytes(4 * MIB)
            loop, sent = asyncio.get_running_loop(), []

            def look():
                sent.append(server.endpoint.statistics()["octets_out"])
                if not client.messages:
                    loop.call_soon(look)

            look()
            server.endpoint.post([RdmaWrite(key, offset, memoryview(data))], Send((b"done",)), None)
            await client.until(lambda me: me.messages == [b"done"])
            assert memory == data
            # An iteration of the loop may have three turns: what was posted, what can be written, what was received.
            assert max(after - before for before, after in itertools.pairwise(sent)) <= 3 * (SLICE + 65536)

    asyncio.run(main())


def test_what_rdma_reads_fetch_is_received_in_slices_while_there_are_others():
    """The data of WRITEs over RDMA: a turn takes no more of it than of what comes over TCP."""

    async def main():
        async with world() as it:
            client, server = await it.pair()
            data = random.Random(3).randbytes(4 * MIB)
            key, offset = client.endpoint.register(memoryview(data), remote_read=True)
            client.endpoint.post((), Send((b"first",)), None)  # before which the other side may not send
            await server.until(lambda me: me.messages == [b"first"])
            sink = bytearray(4 * MIB)
            loop, came = asyncio.get_running_loop(), []

            def look():
                came.append(server.endpoint.statistics()["octets_in"])
                if sink[-64:] != data[-64:]:
                    loop.call_soon(look)

            look()
            server.endpoint.post_reads([RdmaRead(key, offset, memoryview(sink))], "all of it")
            await server.until(lambda me: sink == data)
            assert max(after - before for before, after in itertools.pairwise(came)) <= 3 * (SLICE + 65536)

    asyncio.run(main())
