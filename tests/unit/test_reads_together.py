"""READs of what is not in memory, many at a time by one thread (io_uring)."""

import asyncio
import io
import os
import random
import resource
import struct

import pytest

from nfsd.vfs import service as service_module
from nfsd.vfs import uring
from nfsd.vfs.executor import Chain
from nfsd.vfs.syscalls import SYS_CLOSE, SYS_OPENAT
from tests.unit.test_nfs3_native import READ, handle
from tests.unit.test_waiting_calls import on_disk

BLOCK = 4096
BLOCKS = 1024
HANGING = 12  # exports
RESULT = 20 + 8 + 84  # octets of a READ's reply before count, eof and data, without the XID
NO_RINGS = uring.hindrance()
needs_rings = pytest.mark.skipif(bool(NO_RINGS), reason=f"io_uring: {NO_RINGS}")


def make_cold(path):
    """Nothing of the file is in memory from now on."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def prepare(both, node):
    """The file's data, none of it in memory, and the file open."""
    data = os.urandom(BLOCKS * BLOCK)
    path = os.path.join(both.path, "a")
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    await both.native.call(READ, read_of(node, 0))  # it has changed: it is opened again
    make_cold(path)
    return data


def read_of(node, block, count=BLOCK):
    return handle(node) + struct.pack(">QI", block * BLOCK, count)


def data_of(reply):
    count, _, length = struct.unpack(">III", reply[RESULT : RESULT + 12])
    assert count == length
    return reply[RESULT + 12 :][:length]


async def read_all(both, node, data, blocks):
    """Have them all under way at the same time, and look at what comes."""
    for block in blocks:
        both.native.send(READ, read_of(node, block), xid=10_000 + block)
    for _ in blocks:
        reply = await both.native.reply()
        block = int.from_bytes(reply[:4], "big") - 10_000
        assert data_of(reply[4:]) == data[block * BLOCK :][:BLOCK], block


@needs_rings
def test_many_are_made_together_each_with_its_data(tmp_path):
    async def scenario(both, node):
        data = await prepare(both, node)
        for _ in range(4):
            await read_all(both, node, data, random.sample(range(BLOCKS), 100))
            make_cold(os.path.join(both.path, "a"))
        assert both.service.executor.statistics()["together"] >= 200
        assert not both.dispatcher.held

    on_disk(tmp_path, scenario)


@needs_rings
def test_the_end_of_the_file_and_what_is_larger_than_a_page(tmp_path):
    async def scenario(both, node):
        data = await prepare(both, node)
        os.truncate(os.path.join(both.path, "a"), len(data) - 5)
        data = data[:-5]
        await both.native.call(READ, read_of(node, 0))
        for block, count in ((BLOCKS - 1, BLOCK), (BLOCKS - 20, 1 << 17), (BLOCKS, BLOCK), (17, 1 << 18)):
            make_cold(os.path.join(both.path, "a"))
            reply = await both.native.call(READ, read_of(node, block, count))
            wanted = data[block * BLOCK :][:count]
            assert data_of(reply) == wanted
            assert bool(struct.unpack(">I", reply[RESULT + 4 : RESULT + 8])[0]) == (block * BLOCK + count >= len(data))

    on_disk(tmp_path, scenario)


@needs_rings
def test_another_export_gets_the_only_thread_though_reads_never_cease(tmp_path, monkeypatch):
    monkeypatch.setattr(service_module, "threads_for", lambda exports: 1)

    async def scenario(both, node):
        await prepare(both, node)
        other = Chain()
        other.add(SYS_CLOSE, -1, keep_going=True)
        sent = answered = 0
        done = None
        while done is None or not done.done():
            while sent - answered < 40:
                both.native.send(READ, read_of(node, sent % BLOCKS), xid=10_000 + sent)
                sent += 1
            await both.native.reply()
            answered += 1
            if answered % 50 == 0:
                make_cold(os.path.join(both.path, "a"))
            if answered == 100:
                done = both.service.executor.run(other, 12345)
            assert answered < 20_000
        while answered < sent:
            await both.native.reply()
            answered += 1

    on_disk(tmp_path, scenario)


@needs_rings
def test_a_ring_that_the_kernel_takes_no_more_of_costs_nothing_but_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(service_module, "threads_for", lambda exports: 1)

    async def scenario(both, node):
        data = await prepare(both, node)
        await read_all(both, node, data, range(0, BLOCKS, 64))
        rings = [fd for fd in os.listdir("/proc/self/fd") if "[io_uring]" in linked(fd)]
        nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for fd in rings:
            os.dup2(nothing, int(fd), inheritable=False)
        make_cold(os.path.join(both.path, "a"))
        await read_all(both, node, data, range(1, BLOCKS, 16))
        os.close(nothing)
        assert rings

    on_disk(tmp_path, scenario)


def linked(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def test_without_rings_each_keeps_a_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(uring, "hindrance", lambda: "Operation not permitted (EPERM)")

    async def scenario(both, node):
        data = await prepare(both, node)
        await read_all(both, node, data, range(0, BLOCKS, 8))
        assert both.service.executor.statistics()["together"] == 0
        assert both.service.chains.way_of_reading == "one by each thread (io_uring: Operation not permitted (EPERM))"

    on_disk(tmp_path, scenario)


@needs_rings
def test_threads_that_get_no_ring_read_one_by_one(tmp_path):
    """The process may open nothing more when threads but the first want theirs."""

    async def scenario(both, node):
        data = await prepare(both, node)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        in_use = max(int(fd) for fd in os.listdir("/proc/self/fd")) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (in_use, before[1]))
        full = fill()
        try:
            await read_all(both, node, data, range(0, BLOCKS, 8))
        finally:
            for fd in full:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    on_disk(tmp_path, scenario)


def fill():
    """Descriptors, until there are no more."""
    full = []
    try:
        while True:
            full.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return full


@needs_rings
def test_a_connection_that_goes_away_leaves_nothing_behind(tmp_path):
    async def scenario(both, node):
        await prepare(both, node)
        for block in range(64):
            both.native.send(READ, read_of(node, block * 3), xid=10_000 + block)
        await asyncio.sleep(0)
        both.native.writer.transport.abort()
        async with asyncio.timeout(30):
            while both.dispatcher.held:  # noqa: ASYNC110 (a thread's doing)
                await asyncio.sleep(0.001)

    on_disk(tmp_path, scenario)


@needs_rings
@pytest.mark.parametrize("more", [True, False], ids=["more calls come", "none comes"])
def test_reads_that_hang_hold_up_no_other_export(tmp_path, monkeypatch, more):
    """One thread comes for both READs. It leaves the second one to others, since other exports wait for threads; should
    nobody be called for that, it gets the thread that was called for the next call of an export whose disk is well. If
    no call comes, it has a thread all the same."""
    monkeypatch.setattr(service_module, "threads_for", lambda exports: 64)
    monkeypatch.setattr(service_module, "SWEEP_SECONDS", 3600)  # its jobs would have threads called, too

    async def scenario(both, node):
        data = await prepare(both, node)
        await read_all(both, node, data, range(0, BLOCKS, 16))  # the threads have rings
        make_cold(os.path.join(both.path, "a"))
        executor, loop = both.service.executor, asyncio.get_running_loop()
        fifo = os.fsencode(tmp_path / "fifo")
        os.mkfifo(fifo)
        empty, end = os.pipe()
        (opened,) = [one for one in node.inode.opens.values() if one.readable]
        file = os.dup(opened.fd)
        os.dup2(empty, opened.fd, inheritable=False)  # its disk does not answer
        stuck = []

        def others():
            """Have other exports hang as well, behind the READs and in the same turn of the loop."""
            if executor.statistics()["queued"] == 0:
                loop.call_soon(others)
                return
            for lane in range(HANGING):
                chain = Chain()
                opening = chain.add(SYS_OPENAT, -1, fifo, os.O_RDONLY | os.O_CLOEXEC)
                chain.add(SYS_CLOSE, opening)
                stuck.append(executor.run(chain, 1000 + lane))

        await asyncio.sleep(0.2)  # the threads there are by now are idle
        loop.call_soon(others)
        writer, both.native.writer = both.native.writer, io.BytesIO()
        for block in (7, 14):
            both.native.send(READ, read_of(node, block), xid=10_000 + block)
        writer.write(both.native.writer.getvalue())  # at once, so that they are of one turn
        both.native.writer = writer
        try:
            async with asyncio.timeout(60):
                while executor.statistics()["running"] < HANGING + 1:  # noqa: ASYNC110 (threads' doing)
                    await asyncio.sleep(0.001)
                if not more:
                    while executor.statistics()["queued"]:  # noqa: ASYNC110 (likewise)
                        await asyncio.sleep(0.001)
                    return
                await asyncio.sleep(0.2)  # who is called has come
                for _ in range(3):
                    well = Chain()
                    well.add(SYS_CLOSE, -1, keep_going=True)
                    await executor.run(well, 12345)
        finally:
            os.write(end, bytes(2 * BLOCK))
            os.close(end)
            os.close(os.open(fifo, os.O_WRONLY))
            for _ in (7, 14):
                await both.native.reply()
            await asyncio.gather(*stuck)
            os.dup2(file, opened.fd, inheritable=False)
            os.close(file)
            os.close(empty)

    on_disk(tmp_path, scenario)
