"""WRITEs that go on where the one before them ends are made with one system call. Each gets its own result (RFC 1813
section 3.3.7)."""

import os
import random
import resource
import signal
import struct

from tests.unit.test_nfs3_native import WRITE
from tests.unit.test_waiting_calls import (
    BLOCK,
    EFBIG,
    SUCCESS,
    before_and_after,
    on_disk,
    stalled,
    until,
    waiting,
    write_arguments,
)


async def written_in_a_row(both, node, tmp_path, pieces):
    """The replies to WRITEs of (offset, data), all of which wait behind one to the file's beginning."""
    async with stalled(both.service, both.root, tmp_path):
        for number, (offset, data) in enumerate([(0, b"early"), *pieces]):
            both.native.send(WRITE, write_arguments(node, offset, data), xid=number)
            await until(lambda count=number + 1: waiting(both) == count)
    replies = {
        int.from_bytes(reply[:4], "big"): reply for reply in [await both.native.reply() for _ in range(len(pieces) + 1)]
    }
    return [replies[number] for number in range(1, len(pieces) + 1)]


def octets_of(reply):
    """How many octets a WRITE says that it has written."""
    before_and_after(reply)
    return struct.unpack(">I", reply[-16:-12])[0]


def calls_that_write():
    """System calls of this process, so far."""
    with open("/proc/self/io") as file:
        return int(dict(line.split(": ") for line in file)["syscw"])


def test_writes_that_follow_each_other_take_one_system_call(tmp_path):
    async def scenario(both, node):
        blocks = [os.urandom(BLOCK) for _ in range(60)]
        before = calls_that_write()
        replies = await written_in_a_row(both, node, tmp_path, [(at * BLOCK, block) for at, block in enumerate(blocks)])
        assert calls_that_write() - before < len(blocks) / 2
        assert [octets_of(reply) for reply in replies] == [BLOCK] * len(blocks)
        with open(os.path.join(both.path, "a"), "rb") as file:
            assert file.read() == b"".join(blocks)

    on_disk(tmp_path, scenario)


def test_where_the_kernel_stops_among_them_each_has_its_own_result(tmp_path):
    async def scenario(both, node):
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10 * BLOCK + 100, limit[1]))
        try:
            pieces = [(at * BLOCK, bytes([at]) * BLOCK) for at in (7, 8, 9, 10, 11, 12, 1, 2)]
            replies = await written_in_a_row(both, node, tmp_path, pieces)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            signal.signal(signal.SIGXFSZ, handler)
        assert [octets_of(replies[number]) for number in (0, 1, 2, 3, 6, 7)] == [BLOCK, BLOCK, BLOCK, 100, BLOCK, BLOCK]
        for number in (4, 5):
            assert struct.unpack(">I", replies[number][24:28])[0] == EFBIG
        with open(os.path.join(both.path, "a"), "rb") as file:
            content = file.read()
        assert len(content) == 10 * BLOCK + 100
        for at in (1, 2, 7, 8, 9, 10):
            assert set(content[at * BLOCK : (at + 1) * BLOCK]) == {at}

    on_disk(tmp_path, scenario)


def test_they_are_written_in_the_order_in_which_they_came(tmp_path):
    async def scenario(both, node):
        draw = random.Random(7)
        content, pieces, end = bytearray(b"early"), [], 0
        for _ in range(100):
            offset = end if draw.random() < 0.7 else draw.randrange(20_000)
            data = draw.randbytes(draw.randrange(1, 3000))
            end = offset + len(data)
            content.extend(bytes(max(0, end - len(content))))
            content[offset:end] = data
            pieces.append((offset, data))
        replies = await written_in_a_row(both, node, tmp_path, pieces)
        assert [octets_of(reply) for reply in replies] == [len(data) for _, data in pieces]
        assert replies[0][20:24] == SUCCESS
        with open(os.path.join(both.path, "a"), "rb") as file:
            assert file.read() == content

    on_disk(tmp_path, scenario)
