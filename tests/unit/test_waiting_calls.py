"""Calls that wait on the native path: kept, offered again, answered once, carried through without their connection."""

import asyncio
import contextlib
import itertools
import os
import resource
import signal
import stat
import struct

import pytest

from nfsd.vfs.executor import Chain
from nfsd.vfs.syscalls import SYS_CLOSE, SYS_OPENAT
from tests.unit import vfs_support
from tests.unit.rdma_native_support import run as run_rdma
from tests.unit.test_nfs3_native import ACCESS, COMMIT, GETATTR, LOOKUP, READ, WRITE, Both, Client, handle
from tests.unit.test_nfs3_native_names import CREATE, REMOVE

BLOCK = 4096
BEYOND = 1 << 40
EFBIG = 27
SUCCESS = bytes(4)


@contextlib.asynccontextmanager
async def stalled(service, root, tmp_path):
    """The export's only worker waits, for somebody to read from a pipe, until the block ends."""
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    service.executor.set_lane(root.mount.lane, 1)
    chain = Chain()
    opened = chain.add(SYS_OPENAT, -100, os.fsencode(pipe), os.O_WRONLY | os.O_CLOEXEC)
    chain.add(SYS_CLOSE, opened)
    held = service.executor.run(chain, root.mount.lane)
    await until(lambda: service.executor.statistics()["running"])
    try:
        yield
    finally:
        reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        await held
        os.close(reading)


def write_arguments(node, offset, data, stable=0):
    return handle(node) + struct.pack(">QIII", offset, len(data), stable, len(data)) + data + bytes(-len(data) & 3)


def read_arguments(node, offset, count):
    return handle(node) + struct.pack(">QI", offset, count)


async def opened(both, node):
    """The file is open for writing and for reading, so that further calls need nothing but the disk."""
    await both.native.call(WRITE, write_arguments(node, 0, b"first"))
    await both.native.call(READ, read_arguments(node, 0, 5))


@contextlib.contextmanager
def no_file_past(size):
    """Whatever the file system allows: nobody in this process writes a larger file."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def on_disk(tmp_path, scenario):
    with vfs_support.directory_on("disk", tmp_path) as path:

        async def main(service, root):
            async with Both(service, root, path) as both:
                node = await vfs_support.write_file(service, root, b"a")
                await opened(both, node)
                return await scenario(both, node)

        vfs_support.run(path, tmp_path, main, squash="none")


def waiting(both):
    return len(both.dispatcher.held)


def in_flight(both):
    return len(both.dispatcher.held) + len(both.dispatcher.running)


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 (another connection's doing)
            await asyncio.sleep(0.001)


def before_and_after(reply):
    """ctime and size of a wcc_data, before and after."""
    assert reply[24:28] == SUCCESS
    wcc = reply[28:]
    return struct.unpack(">IQIIII", wcc[:28])[1:], struct.unpack(">Q", wcc[32 + 20 : 32 + 28])[0]


def test_many_writes_to_one_file_are_answered_natively_and_in_full(tmp_path):
    async def scenario(both, node):
        natively = both.answered(WRITE)
        blocks = {number: os.urandom(BLOCK) for number in range(64)}
        for number, block in blocks.items():
            both.native.send(WRITE, write_arguments(node, number * BLOCK, block), xid=1000 + number)
        sizes = {}
        for _ in blocks:
            reply = await both.native.reply()
            before, after = before_and_after(reply)
            sizes[int.from_bytes(reply[:4], "big") - 1000] = before[0], after
        assert sorted(sizes) == list(blocks)
        # The attributes around each are those around its row: nobody else's write came between the two looks.
        rows = sorted(set(sizes.values()))
        assert rows[0][0] == 5
        assert rows[-1][1] == len(blocks) * BLOCK
        assert all(row[1] == behind[0] for row, behind in itertools.pairwise(rows))
        assert all(before <= max(number * BLOCK, 5) < after for number, (before, after) in sizes.items())
        with open(os.path.join(both.path, "a"), "rb") as file:
            assert file.read() == b"".join(blocks.values())
        assert both.answered(WRITE) - natively == len(blocks)
        assert not waiting(both)

    on_disk(tmp_path, scenario)


def test_writes_of_one_client_share_their_looks_and_those_of_another_do_not(tmp_path):
    async def scenario(both, node):
        port = both.listeners[0].address[1]
        other = Client(*await asyncio.open_connection("127.0.0.1", port))
        natively, change = both.answered(WRITE), node.inode.change
        epoch = node.inode.epoch
        async with stalled(both.service, both.root, tmp_path):
            for number, client in enumerate((both.native, both.native, both.native, other, both.native, both.native)):
                client.send(WRITE, write_arguments(node, number * BLOCK, bytes(BLOCK)), xid=number)
                await until(lambda count=number + 1: waiting(both) == count)
        replies = {}
        for client in (both.native,) * 5 + (other,):
            reply = await client.reply()
            replies[int.from_bytes(reply[:4], "big")] = before_and_after(reply)
        sizes = {number: (before[0], after) for number, (before, after) in replies.items()}
        assert sizes[0] == (5, BLOCK)  # it has not waited for another
        assert sizes[1] == sizes[2] == (BLOCK, 3 * BLOCK)
        assert sizes[3] == (3 * BLOCK, 4 * BLOCK)
        assert sizes[4] == sizes[5] == (4 * BLOCK, 6 * BLOCK)
        assert both.answered(WRITE) - natively == 6
        # All of it was our own doing, and is known so.
        status = os.stat(os.path.join(both.path, "a"))
        assert (node.inode.epoch, node.inode.ctime) == (epoch, status.st_ctime_ns)
        if node.mount.fine:
            assert change.observe(status.st_ctime_ns, 0, fine=True, changed=False) == status.st_ctime_ns
        other.writer.close()

    on_disk(tmp_path, scenario)


def test_a_write_that_fails_costs_none_of_its_row(tmp_path):
    async def scenario(both, node):
        async with stalled(both.service, both.root, tmp_path):
            for number, offset in enumerate((0, BLOCK, BEYOND, 2 * BLOCK)):
                both.native.send(WRITE, write_arguments(node, offset, bytes(BLOCK)), xid=number)
                await until(lambda count=number + 1: waiting(both) == count)
        replies = {int.from_bytes(reply[:4], "big"): reply for reply in [await both.native.reply() for _ in range(4)]}
        assert struct.unpack(">I", replies[2][24:28])[0] == EFBIG
        for number in (1, 3):
            before, after = before_and_after(replies[number])
            assert (before[0], after) == (BLOCK, 3 * BLOCK)

    with no_file_past(BEYOND):
        on_disk(tmp_path, scenario)


def test_data_that_is_not_in_memory_is_read_natively(tmp_path):
    async def scenario(both, node):
        data = os.urandom(1 << 20)
        path = os.path.join(both.path, "a")
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        await both.native.call(READ, read_arguments(node, 0, 5))  # the file has changed: it is opened again
        natively = both.answered(READ)
        for offset, count in ((BLOCK * 9, BLOCK), (300000, 70000), (len(data) - 3, 10), (len(data) + 5, 10)):
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            reply = await both.native.call(READ, read_arguments(node, offset, count))
            wanted = data[offset : offset + count]
            length, eof, again = struct.unpack(">III", reply[20 + 8 + 84 : 20 + 8 + 84 + 12])
            assert (length, eof, again) == (len(wanted), offset + count >= len(data), len(wanted))
            assert reply[20 + 8 + 84 + 12 :][:length] == wanted
        assert both.answered(READ) - natively == 4

    on_disk(tmp_path, scenario)


def test_other_calls_of_the_connection_are_answered_meanwhile(tmp_path):
    async def scenario(both, node):
        async with stalled(both.service, both.root, tmp_path):
            both.native.send(WRITE, write_arguments(node, 0, b"x" * BLOCK), xid=7)
            await until(lambda: waiting(both) == 1)
            assert (await both.native.call(GETATTR, handle(node), xid=8))[16:20] == SUCCESS
            assert any("WRITE" in line for line in both.dispatcher.in_flight())
        assert (await both.native.reply())[:4] == struct.pack(">I", 7)
        assert not waiting(both)

    on_disk(tmp_path, scenario)


def test_a_write_outlives_its_connection_and_gives_everything_back(tmp_path):
    async def scenario(both, node):
        async with stalled(both.service, both.root, tmp_path):
            both.native.send(WRITE, write_arguments(node, 0, b"y" * BLOCK))
            await until(lambda: waiting(both) == 1)
            both.native.writer.transport.abort()
            # It is closed when nothing is in progress any more, or when it is found to be gone.
        await until(lambda: not waiting(both))
        with open(os.path.join(both.path, "a"), "rb") as file:
            assert file.read() == b"y" * BLOCK
        assert not node.inode.serial.busy

    on_disk(tmp_path, scenario)


def test_a_retransmission_waits_for_the_call_that_is_under_way(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a")
        tail = struct.pack(">QIII", 0, 8, 0, 8)
        await both.call(0, WRITE, handle(node) + tail, data=b"before..")
        natively = both.answered(WRITE)
        async with stalled(both.service, both.root, tmp_path):
            first = asyncio.ensure_future(both.call(0, WRITE, handle(node) + tail, data=b"once....", xid=99))
            await until(lambda: len(both.dispatcher.held) == 1)
            both.peers[1] = await both.connect(both.listeners[0])
            again = asyncio.ensure_future(both.call(1, WRITE, handle(node) + tail, data=b"once....", xid=99))
            await until(lambda: both.dispatcher.replay.hits)
            assert len(both.dispatcher.held) == 1
        one, two = await asyncio.gather(first, again)
        assert one[4] == two[4]
        assert one[4][16:20] == SUCCESS
        assert both.answered(WRITE) - natively == 1

    run_rdma("disk", tmp_path, scenario)


def test_an_rdma_connection_that_drains_closes_when_the_call_that_waits_is_answered(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a")
        tail = struct.pack(">QIII", 0, 8, 0, 8)
        await both.call(0, WRITE, handle(node) + tail, data=b"before..")
        (connection,) = both.servers[0].connections
        async with stalled(both.service, both.root, tmp_path):
            waits = asyncio.ensure_future(both.call(0, WRITE, handle(node) + tail, data=b"once...."))
            await until(lambda: connection.held == 1)
            draining = asyncio.ensure_future(connection.drain())
            await asyncio.sleep(0)
            assert not draining.done()
        await asyncio.wait_for(draining, 60)
        assert (await waits)[4][16:20] == SUCCESS
        assert (connection.closed, connection.held) == (True, 0)

    run_rdma("disk", tmp_path, scenario)


def test_a_removal_under_way_is_not_made_twice(tmp_path):
    async def scenario(both, node):
        text = struct.pack(">I", 1) + b"a" + bytes(3)
        await both.native.call(CREATE, handle(both.root) + struct.pack(">I", 1) + b"b" + bytes(3 + 28))
        natively = both.answered(REMOVE)
        async with stalled(both.service, both.root, tmp_path):
            both.native.send(REMOVE, handle(both.root) + text, xid=77)
            await until(lambda: waiting(both) == 1)
            # Nobody is given a delegation of it meanwhile.
            assert node.inode.changing == 1
            # The same again on this connection is dropped: the reply is on its way.
            both.native.send(REMOVE, handle(both.root) + text, xid=77)
            await until(lambda: both.dispatcher.replay.hits)
            # The export is for nobody any more: what has been begun is carried through all the same.
            both.service.exports.edition.number += 1
        assert (await both.native.reply())[24:28] == SUCCESS
        assert (await both.native.call(REMOVE, handle(both.root) + text, xid=77))[20:24] == SUCCESS
        assert both.answered(REMOVE) - natively == 1
        assert node.inode.changing == 0
        assert "a" not in os.listdir(both.path)

    on_disk(tmp_path, scenario)


def test_a_failure_is_told(tmp_path):
    async def scenario(both, node):
        with no_file_past(1 << 20):
            native = await both.native.call(WRITE, write_arguments(node, 2 << 20, b"z" * 16))
            general = await both.general.call(WRITE, write_arguments(node, 2 << 20, b"z" * 16))
        assert struct.unpack(">I", native[20:24])[0] == EFBIG
        assert native == general

    on_disk(tmp_path, scenario)


def test_a_permission_taken_away_among_writes_is_noticed(tmp_path):
    async def scenario(both, node):
        path, caller = os.path.join(both.path, "a"), (1001, 1001)
        os.chmod(path, 0o666)
        assert (await both.native.call(WRITE, write_arguments(node, 0, b"a"), caller))[20:24] == SUCCESS
        for number in range(40):
            both.native.send(WRITE, write_arguments(node, number, b"b"), caller, xid=1000 + number)
        os.chmod(path, 0o600)
        for _ in range(40):
            await both.native.reply()
        reply = await both.native.call(WRITE, write_arguments(node, 0, b"c"), caller)
        assert struct.unpack(">I", reply[20:24])[0] == 13
        reply = await both.native.call(READ, read_arguments(node, 0, 1), caller)
        assert struct.unpack(">I", reply[20:24])[0] == 13

    on_disk(tmp_path, scenario)


@pytest.mark.parametrize("stable", [1, 2])
def test_stable_writes_and_commits_wait_for_an_fsync_together(stable, tmp_path):
    async def scenario(both, node):
        natively = both.answered(WRITE) + both.answered(COMMIT)
        for number in range(8):
            both.native.send(WRITE, write_arguments(node, number * BLOCK, b"s" * BLOCK, stable), xid=1000 + number)
        both.native.send(COMMIT, handle(node) + bytes(12), xid=1008)
        for _ in range(9):
            assert (await both.native.reply())[24:28] == SUCCESS
        assert both.answered(WRITE) + both.answered(COMMIT) - natively == 9

    on_disk(tmp_path, scenario)


def test_calls_beyond_the_connections_bound_are_not_kept(tmp_path):
    async def scenario(both, node):
        count = 300  # max_calls is 128
        async with stalled(both.service, both.root, tmp_path):
            for number in range(count):
                both.native.send(WRITE, write_arguments(node, number, b"n"), xid=1000 + number)
            await until(lambda: waiting(both) + len(both.dispatcher.running) >= 128)
            await asyncio.sleep(0.05)
            assert waiting(both) + len(both.dispatcher.running) == 128
        xids = {int.from_bytes((await both.native.reply())[:4], "big") for _ in range(count)}
        assert xids == set(range(1000, 1000 + count))

    on_disk(tmp_path, scenario)


def test_the_server_waits_for_them_when_it_goes(tmp_path):
    async def scenario(both, node):
        async with stalled(both.service, both.root, tmp_path):
            both.native.send(WRITE, write_arguments(node, 0, b"last"))
            await until(lambda: waiting(both) == 1)
            assert await both.dispatcher.drain(0.01) == 1
            draining = asyncio.ensure_future(both.dispatcher.drain(30))
            await asyncio.sleep(0)
            assert not draining.done()
        assert await draining == 0

    on_disk(tmp_path, scenario)


@pytest.mark.parametrize("fails", [False, True])
def test_a_permission_taken_away_is_noticed_though_writes_never_cease(fails, tmp_path):
    async def scenario(both, node):
        path, caller = os.path.join(both.path, "a"), (1001, 1001)
        beyond = BEYOND if fails else 0
        os.chmod(path, 0o666)
        assert (await both.native.call(WRITE, write_arguments(node, 0, b"a"), caller))[20:24] == SUCCESS
        assert (await both.native.call(READ, read_arguments(node, 0, 1), caller))[20:24] == SUCCESS
        stalls = [stalled(both.service, both.root, tmp_path / name) for name in ("one", "two")]
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        await stalls[0].__aenter__()
        both.native.send(WRITE, write_arguments(node, beyond, b"b"), caller, xid=1)
        await until(lambda: waiting(both) == 1)
        os.chmod(path, 0o600)
        async with stalls[1]:
            # The next one is under way before the first is answered.
            both.native.send(WRITE, write_arguments(node, beyond, b"c"), caller, xid=2)
            await until(lambda: waiting(both) == 2)
            await stalls[0].__aexit__(None, None, None)
            reply = await both.native.reply()
            assert reply[:4] == struct.pack(">I", 1)
            assert (reply[24:28] == SUCCESS) is not fails
            assert waiting(both) == 1
            both.native.send(READ, read_arguments(node, 0, 1), caller, xid=3)
            answer = asyncio.ensure_future(both.native.reply())
            await until(lambda: in_flight(both) == 2 or answer.done())
            assert not answer.done()  # the kernel is asked, by the worker
        replies = {int.from_bytes(reply[:4], "big"): reply for reply in (await answer, await both.native.reply())}
        assert struct.unpack(">I", replies[3][24:28])[0] == 13

    with no_file_past(BEYOND):
        on_disk(tmp_path, scenario)


def test_a_permission_on_a_directory_taken_away_is_noticed_though_changes_never_cease(tmp_path):
    async def scenario(both, _):
        caller, asked = (1001, 1001), handle(both.root) + struct.pack(">I", 0x3F)
        existing = handle(both.root) + struct.pack(">I", 1) + b"a" + bytes(3) + struct.pack(">I", 1) + bytes(24)
        os.chmod(both.path, 0o777)
        await both.native.call(ACCESS, asked, caller)
        assert (await both.native.call(ACCESS, asked, caller))[-4:] == struct.pack(">I", 0x1F)
        stalls = [stalled(both.service, both.root, tmp_path / name) for name in ("one", "two")]
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        await stalls[0].__aenter__()
        both.native.send(CREATE, existing, caller, xid=1)
        await until(lambda: waiting(both) == 1)
        os.chmod(both.path, 0o700)
        async with stalls[1]:
            both.native.send(CREATE, existing, caller, xid=2)
            await until(lambda: waiting(both) == 2)
            await stalls[0].__aexit__(None, None, None)
            # The first has failed.
            reply = await both.native.reply()
            assert reply[:4] == struct.pack(">I", 1)
            assert reply[24:28] != SUCCESS
            assert waiting(both) == 1
            both.native.send(ACCESS, asked, caller, xid=3)
            answer = asyncio.ensure_future(both.native.reply())
            await until(lambda: len(both.dispatcher.running) == 1 or waiting(both) == 2 or answer.done())
            assert not answer.done()
        replies = [await answer, await both.native.reply()]
        (access,) = [reply for reply in replies if reply[:4] == struct.pack(">I", 3)]
        assert access[-4:] == bytes(4)

    on_disk(tmp_path, scenario)


def test_what_waits_begins_as_the_server(tmp_path):
    async def scenario(both, node):
        path, caller = os.path.join(both.path, "a"), (1001, 1001)
        os.chmod(both.path, 0o755)
        os.chmod(path, 0o666)
        assert (await both.native.call(WRITE, write_arguments(node, 0, b"a"), caller))[20:24] == SUCCESS
        take, seen = both.service.unstable.take, []

        def beginning(inode):
            with open("/proc/thread-self/status") as file:
                seen.extend(line.split()[-1] for line in file if line.startswith("Uid:"))
            return take(inode)

        both.service.unstable.take = beginning
        lookup = handle(both.root) + struct.pack(">I", 1) + b"a" + bytes(3)
        both.native.send(LOOKUP, lookup, caller)
        both.native.send(COMMIT, handle(node) + bytes(12), caller)
        for _ in range(2):
            assert (await both.native.reply())[24:28] == SUCCESS
        assert seen == ["0"]

    on_disk(tmp_path, scenario)


@pytest.mark.parametrize("way", ["native", "general"])
def test_a_mode_that_changes_during_a_write_is_noticed(way, tmp_path):
    async def scenario(both, node):
        path, caller, client = os.path.join(both.path, "a"), (1001, 1001), getattr(both, way)
        os.chmod(path, 0o666)
        assert (await client.call(WRITE, write_arguments(node, 0, b"a"), caller))[20:24] == SUCCESS
        epoch = node.inode.epoch
        async with stalled(both.service, both.root, tmp_path):
            client.send(WRITE, write_arguments(node, 0, b"b"), caller)
            await until(lambda: node.inode.serial.busy)
            os.chmod(path, 0o4666)
        assert (await client.reply())[24:28] == SUCCESS
        # Once before the write; and by the write, which clears the bit between its own two looks.
        assert not os.stat(path).st_mode & stat.S_ISUID
        assert node.inode.epoch == epoch + 2

    on_disk(tmp_path, scenario)
