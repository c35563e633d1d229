"""Large READs that leave from the page cache: the general path's octets, whatever becomes of file, peer and pipes."""

import asyncio
import contextlib
import fcntl
import os
import random
import struct
from types import SimpleNamespace

import pytest

from rpcrdma import pipes
from tests.support.nfs4_native import run as v4_run
from tests.support.watched_streams import watch_streams
from tests.unit import test_nfs4_native as v4
from tests.unit import vfs_support
from tests.unit.test_nfs3_native import GETATTR, READ, handle, run
from tests.unit.test_waiting_calls import stalled, until

pytestmark = pytest.mark.usefixtures("alone")
"""Where there are others, no more than one reply of this size waits at a time."""

MIB = 1 << 20
HEAD = 24 + 104  # octets of a READ's reply before its data


def read(node, offset, count):
    return handle(node) + struct.pack(">QI", offset, count)


def read_calls(both):
    return both.answered(READ)


async def file_of(both, octets, name=b"a"):
    """A file that was read before, so that it is open."""
    node = await vfs_support.write_file(both.service, both.root, name, octets, mode=0o666)
    await both.native.call(READ, read(node, 0, 10))
    return node


async def stuck(both, node, calls):
    """Send READs of 1 MiB whose replies nobody takes, until as many octets wait as the server answers."""
    both.native.writer.transport.pause_reading()
    for number in range(calls):
        both.native.send(READ, read(node, number % 2 * MIB, MIB))
    (connection,) = both.listeners[0].connections
    for _ in range(1000):
        await asyncio.sleep(0.01)
        if connection.writing and pipes.in_use():
            return connection
    raise AssertionError("nothing waits in pipes")


@pytest.fixture(params=["memory", "disk"])
def place(request):
    """From where the pages leave: by the loop, or by a worker, which may wait for them."""
    return request.param


@pytest.fixture(autouse=True)
def nothing_left():
    """All pipes are given back at the end."""
    yield
    assert pipes.in_use() == 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("most", [0, 1, 32])
def test_any_part_of_a_file_whatever_pipes_there_are(tmp_path, place, seed, most):
    rng = random.Random(seed)

    async def scenario(both):
        octets = rng.randbytes(2 * MIB + rng.choice((0, 1, 4095, 4096, 70_001)))
        node = await file_of(both, octets)
        before = read_calls(both)
        for _ in range(12):
            offset = rng.choice((0, 1, 4095, 4096, MIB, MIB + 1, len(octets) - 300_000, len(octets) - 1, len(octets)))
            count = rng.choice((65536, 200_003, 262_143, 262_144, 262_145, MIB - 4095, MIB - 1, MIB))
            reply = await both.same(READ, read(node, offset, count))
            wanted = octets[offset : offset + count]
            assert reply[HEAD - 4 :][: len(wanted)] == wanted
            (eof,) = struct.unpack(">I", reply[HEAD - 12 : HEAD - 8])
            assert eof == (offset + count >= len(octets))
        return read_calls(both) - before

    bound = pipes.bound(most)
    try:
        assert run(place, tmp_path, scenario) >= 12
    finally:
        pipes.bound(bound)


def test_a_disks_file_gives_the_same_octets(tmp_path):
    async def scenario(both):
        octets = random.Random(1).randbytes(MIB + 77)
        node = await file_of(both, octets)
        for offset in (0, 5, 4096, 100_000):
            reply = await both.same(READ, read(node, offset, MIB))
            assert reply[HEAD - 4 :][:MIB] == octets[offset : offset + MIB] + bytes(-len(octets[offset:][:MIB]) & 3)

    run("disk", tmp_path, scenario)


def test_a_hole_reads_as_zeros(tmp_path, place):
    async def scenario(both):
        node = await file_of(both, b"begin")
        os.truncate(os.path.join(both.path, "a"), 3 * MIB)
        reply = await both.same(READ, read(node, 0, MIB))
        assert reply[HEAD - 4 :] == b"begin" + bytes(MIB - 5)

    run(place, tmp_path, scenario)


def test_a_reply_is_whole_though_its_file_is_cut_before_it_has_left(tmp_path, place):
    async def scenario(both):
        octets = random.Random(2).randbytes(2 * MIB)
        node = await file_of(both, octets)
        connection = await stuck(both, node, 12)
        os.truncate(os.path.join(both.path, "a"), 0)
        both.native.writer.transport.resume_reading()
        whole, first = 0, both.native.xid - 11
        for _ in range(12):
            reply = await both.native.reply()
            (count,) = struct.unpack(">I", reply[HEAD - 4 : HEAD])
            begin = (struct.unpack(">I", reply[:4])[0] - first) % 2 * MIB
            assert reply[HEAD:] == octets[begin : begin + count] + bytes(-count & 3)
            # Those answered later find an empty file. What a worker is putting into a pipe may be cut.
            assert count in (0, MIB) or place == "disk"
            whole += count == MIB
        assert not connection.closed
        return whole

    assert run(place, tmp_path, scenario) >= 2


def test_replies_keep_their_order_among_pipes_and_small_ones(tmp_path, place):
    async def scenario(both):
        rng = random.Random(3)
        octets = rng.randbytes(2 * MIB)
        node = await file_of(both, octets)
        await stuck(both, node, 8)
        sent = []
        for _ in range(60):
            offset, count = rng.randrange(MIB), rng.choice((10, 4096, 70_000, 262_144, 300_001, MIB))
            if rng.random() < 0.3:
                both.native.send(GETATTR, handle(node))
                sent.append(None)
            else:
                both.native.send(READ, read(node, offset, count))
                sent.append(octets[offset : offset + count])
        both.native.writer.transport.resume_reading()
        for _ in range(8):
            await both.native.reply()
        replies = {}
        for _ in sent:
            reply = await both.native.reply()
            replies[struct.unpack(">I", reply[:4])[0]] = reply
        last = both.native.xid
        for xid, wanted in enumerate(sent, last - len(sent) + 1):
            if wanted is not None:
                assert replies[xid][HEAD:] == wanted + bytes(-len(wanted) & 3)
            else:
                assert len(replies[xid]) == 24 + 4 + 84

    run(place, tmp_path, scenario)


def test_a_connection_that_goes_gives_its_pipes_back(tmp_path, place):
    async def scenario(both):
        node = await file_of(both, bytes(2 * MIB))
        connection = await stuck(both, node, 12)
        connection.close()
        assert pipes.in_use() == 0

    run(place, tmp_path, scenario)


def test_a_peer_that_goes_costs_its_own_connection_only(tmp_path, place):
    async def scenario(both):
        node = await file_of(both, bytes(2 * MIB))
        connection = await stuck(both, node, 12)
        both.native.writer.transport.abort()
        for _ in range(1000):
            if connection.closed:
                break
            await asyncio.sleep(0.01)
        assert connection.closed
        assert pipes.in_use() == 0
        assert len(await both.general.call(READ, read(node, 0, MIB))) == HEAD - 4 + MIB

    run(place, tmp_path, scenario)


def test_who_captures_sees_the_data(tmp_path, place):
    async def scenario(both):
        octets = random.Random(4).randbytes(MIB)
        node = await file_of(both, octets)
        (connection,) = both.listeners[0].connections
        shown = []
        connection.set_tap(
            SimpleNamespace(
                record_in=lambda record: None,
                record_out=lambda parts: shown.append(b"".join(bytes(part) for part in parts)),
            )
        )
        before = read_calls(both)
        both.native.send(READ, read(node, 0, MIB))
        assert shown == [await both.native.reply()]
        assert shown[0].endswith(octets)
        assert read_calls(both) == before + 1
        connection.set_tap(None)
        assert (await both.native.call(READ, read(node, 0, MIB)))[HEAD - 4 :] == octets

    run(place, tmp_path, scenario)


def test_who_begins_to_capture_while_a_read_waits_sees_its_data(tmp_path):
    async def scenario(both):
        octets = random.Random(7).randbytes(MIB)
        node = await file_of(both, octets)
        (connection,) = both.listeners[0].connections
        shown = []
        async with stalled(both.service, both.root, tmp_path):
            both.native.send(READ, read(node, 0, MIB))
            await until(lambda: both.dispatcher.held)
            connection.set_tap(
                SimpleNamespace(
                    record_in=lambda record: None,
                    record_out=lambda parts: shown.append(b"".join(bytes(part) for part in parts)),
                )
            )
        assert shown == [await both.native.reply()]
        assert shown[0].endswith(octets)
        connection.set_tap(None)

    run("disk", tmp_path, scenario)


@pytest.mark.parametrize("most", [0, 32])
def test_version_4_reads_the_same(tmp_path, place, most):
    async def scenario(both):
        octets = random.Random(5).randbytes(2 * MIB + 3)
        (both.path / "a").write_bytes(octets)
        (both.path / "a").chmod(0o666)
        stateid, node = await both.client.open("/0", b"a")
        before = both.answered
        for offset in (0, 4095, MIB, MIB + 3, 2 * MIB - 300_000):
            for operations in ([], [v4.getattr_()]):
                found = await both.same(v4.putfh(node), v4.read(stateid, offset, 1_000_000), *operations)
                assert octets[offset : offset + 900_000] in found
        return both.answered - before

    bound = pipes.bound(most)
    try:
        with vfs_support.directory_on(place, tmp_path) as path:
            assert v4_run(path, tmp_path, 1, scenario) >= 10
    finally:
        pipes.bound(bound)


def test_who_asks_for_much_leaves_others_their_turn(tmp_path, monkeypatch):
    watch_streams(monkeypatch)

    async def scenario(both):
        node = await file_of(both, bytes(2 * MIB))
        (connection,) = both.listeners[0].connections
        stream = connection.stream
        stream.watch()
        for number in range(40):  # in one segment, and nothing comes after it that would wake the server
            both.native.send(READ, read(node, number % 2 * MIB, MIB))
        both.native.writer.write_eof()
        for _ in range(40):
            assert len(await both.native.reply()) == HEAD + MIB
        assert await both.native.reader.read() == b""
        assert max(stream.answers) < 6 * MIB
        return stream.answers

    assert sum(run("memory", tmp_path, scenario)) > 0


def shrink():
    """Have the pipes that are there hold less than they should, as if pages were larger. Returns how many they are."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if fcntl.fcntl(int(name), fcntl.F_GETPIPE_SZ) == MIB:
                fcntl.fcntl(int(name), fcntl.F_SETPIPE_SZ, 65536)
                found += 1
    return found


def test_what_does_not_fit_a_pipe_is_read_into_a_buffer(tmp_path, place):
    async def scenario(both):
        octets = random.Random(6).randbytes(2 * MIB)
        node = await file_of(both, octets)
        assert (await both.native.call(READ, read(node, 0, MIB)))[HEAD - 4 :] == octets[:MIB]
        assert shrink()
        for _ in range(3):  # and what is in the pipe of one is not taken for the data of the next
            assert (await both.native.call(READ, read(node, MIB, MIB)))[HEAD - 4 :] == octets[MIB:]
            shrink()

    try:
        run(place, tmp_path, scenario)
    finally:
        pipes.bound(pipes.bound(0))  # the small ones go


def test_a_disks_pages_leave_without_a_copy(tmp_path):
    async def scenario(both):
        node = await file_of(both, bytes(2 * MIB))
        await stuck(both, node, 12)
        assert pipes.in_use() > 1
        both.native.writer.transport.resume_reading()
        for _ in range(12):
            assert len(await both.native.reply()) == HEAD + MIB

    run("disk", tmp_path, scenario)
