"""Large READs over softiwarp that leave from the page cache: the general path's octets in FPDUs that a socket buffer
holds, whatever becomes of file, peer and pipes."""

import asyncio
import os
import random
import socket
import struct

import pytest

from rpcrdma import pipes
from rpcrdma.capture.events import Kind
from tests.unit import vfs_support
from tests.unit.rdma_native_support import READ, handle, rpc, run
from tests.unit.softiwarp_support import CLIENT_REQUEST, SEND, SEND_INVALIDATE, WRITE, Raw, untagged

pytestmark = pytest.mark.usefixtures("alone")
"""Where there are others, workers read what finds no pipe."""

MIB = 1 << 20
PAGES = 15 * 4096
CRC_REQUEST = CLIENT_REQUEST[:16] + bytes((CLIENT_REQUEST[16] | 0x40,)) + CLIENT_REQUEST[17:]


def read(node, offset, count):
    return handle(node) + struct.pack(">QI", offset, count)


async def file_of(both, octets):
    """A file that was read before by both kinds of peer, so that it is open."""
    node = await vfs_support.write_file(both.service, both.root, b"a", octets, mode=0o666)
    await both.call(0, READ, read(node, 0, 10), room=10)
    return node


class Reader(Raw):
    """A peer that asks for READs into Write chunks, and takes the answers apart by hand."""

    async def begin(self, both, node, request=CLIENT_REQUEST, options=None):
        """Connect, and take some data: segments become larger with the window."""
        # As much as the server may have on the way; it grows otherwise with what the peer takes.
        both.listeners[0]._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MIB)
        self.node, self.calls, self.segments, self.sizes = node, 0, {}, []
        await self.connect(both.listeners[0].address, options)
        await self.send(request)
        self.crc = bool((await self.mpa_frame())[16] & 0x40)
        self.sizes = [0]
        while self.sizes[0] < PAGES and self.calls < 12:
            await self.ask(0, MIB)
            await self.answer()
        return self

    async def ask(self, offset, count, *lengths):
        """One READ, into a chunk of segments of these lengths."""
        self.calls += 1
        xid = 0x5000 + self.calls
        segments = [
            (self.calls << 8 | number, length, number * MIB)
            for number, length in enumerate(lengths or (count,), start=1)
        ]
        chunk = b"".join(struct.pack(">IIQ", *segment) for segment in segments)
        header = struct.pack(">5I", xid, 1, 32, 0, 0) + struct.pack(">II", 1, len(segments)) + chunk + bytes(8)
        self.segments[xid] = [(handle, length) for handle, length, _ in segments]
        await self.message(header + rpc(xid, READ, read(self.node, offset, count)))

    async def answer(self):
        """The next reply: (XID, the octets that were written, the count that it says, the end of the file)."""
        written = {}
        self.sizes = []
        while True:
            ulpdu = await self.next_ulpdu()
            opcode = ulpdu[1] & 0x0F
            if opcode != WRITE:
                break
            stag, offset = struct.unpack(">IQ", ulpdu[2:14])
            octets = written.setdefault(stag, bytearray())
            base = (stag & 0xFF) * MIB
            assert offset == base + len(octets)
            octets += ulpdu[14:]
            self.sizes.append(len(ulpdu) - 14)
        assert opcode in (SEND, SEND_INVALIDATE), opcode
        assert ulpdu[:2] == untagged(opcode, 0, 1, 0)[:2]
        reply = ulpdu[18:]
        (xid,) = struct.unpack(">I", reply[:4])
        octets = b""
        left = len(b"".join(written.values()))
        for stag, length in self.segments.pop(xid):
            part = bytes(written.pop(stag, b""))
            assert len(part) == min(length, left)
            left -= len(part)
            octets += part
        assert not written
        count, eof, size = struct.unpack(">III", reply[-12:])
        assert count == size == len(octets)
        return xid, octets, bool(eof)


async def stuck(both, reader, calls):
    """Ask for MiBs whose replies nobody takes, until they wait in pipes."""
    for number in range(calls):
        await reader.ask(number % 2 * MIB, MIB)
    for _ in range(1000):
        await asyncio.sleep(0.01)
        if pipes.in_use() > 1:
            return
    raise AssertionError(f"nothing waits in pipes: {reader.calls} calls, FPDUs of {reader.sizes[:1]}, {pipes.in_use()}")


async def until_given_back():
    for _ in range(1000):
        if pipes.in_use() == 0:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("pipes were lost")


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
        before = both.answered(READ)
        for _ in range(12):
            offset = rng.choice((0, 1, 4095, 4096, MIB, MIB + 1, len(octets) - 300_000, len(octets) - 1, len(octets)))
            count = rng.choice((65536, 200_003, 262_143, 262_144, 262_145, MIB - 4095, MIB - 1, MIB))
            cuts = sorted({rng.randrange(1, count) for _ in range(rng.choice((0, 0, 1, 3)))})
            outcome = await both.same(READ, read(node, offset, count), room=count, cuts=cuts)
            wanted = octets[offset : offset + count]
            assert outcome[5][: len(wanted)] == wanted
        return both.answered(READ) - before

    bound = pipes.bound(most)
    try:
        assert run(place, tmp_path, scenario) >= 12
    finally:
        pipes.bound(bound)


def test_an_fpdu_carries_whole_pages_as_many_as_a_socket_buffer_holds(tmp_path, place):
    async def scenario(both):
        octets = random.Random(1).randbytes(MIB + 5000)
        reader = await Reader().begin(both, await file_of(both, octets))
        await reader.ask(0, MIB)
        assert (await reader.answer())[1:] == (octets[:MIB], False)
        assert reader.sizes == [PAGES] * 17 + [4096]
        await reader.ask(5000, 600_001)  # from the middle of a page
        assert (await reader.answer())[1:] == (octets[5000:605_001], False)
        assert reader.sizes == [PAGES - 904] + [PAGES] * 8 + [600_001 - 9 * PAGES + 904]
        await reader.ask(MIB - 100_000, 300_000, 50_001, 100_000, 150_000)  # in segments, and beyond the end
        assert (await reader.answer())[1:] == (octets[MIB - 100_000 :], True)
        reader.close()

    run(place, tmp_path, scenario)


@pytest.mark.parametrize("request_frame", [CLIENT_REQUEST, CRC_REQUEST], ids=["plain", "crc"])
@pytest.mark.parametrize("mss", [1448, 32_000, 0])
def test_pages_are_for_large_segments_without_crc(tmp_path, mss, request_frame):
    async def scenario(both):
        octets = random.Random(2).randbytes(MIB)
        reader = await Reader().begin(
            both,
            await file_of(both, octets),
            request_frame,
            lambda sock: mss and sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mss + 12),
        )
        await reader.ask(0, MIB)
        assert (await reader.answer())[1:] == (octets, True)
        paged = not mss and not reader.crc
        assert (max(reader.sizes) == PAGES) == paged
        assert reader.crc == (request_frame == CRC_REQUEST)
        reader.close()

    run("memory", tmp_path, scenario)


@pytest.mark.parametrize("buffer", [200_000, 300_001, 1_000_000])
def test_a_peer_that_takes_little_at_a_time(tmp_path, place, buffer):
    rng = random.Random(buffer)

    async def scenario(both):
        octets = rng.randbytes(2 * MIB)
        reader = await Reader().begin(
            both,
            await file_of(both, octets),
            options=lambda sock: sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer),
        )
        wanted = {}
        await stuck(both, reader, 12)
        for number, xid in enumerate(reader.segments):
            wanted[xid] = octets[number % 2 * MIB :][:MIB]
        for _ in range(10):
            offset, count = rng.randrange(MIB), rng.choice((10, 4096, 70_000, 262_144, 300_001, MIB))
            await reader.ask(offset, count)
            wanted[0x5000 + reader.calls] = octets[offset : offset + count]
        while wanted:
            xid, found, _ = await reader.answer()
            assert found == wanted.pop(xid)
        reader.close()

    run(place, tmp_path, scenario)


def test_a_hole_reads_as_zeros(tmp_path, place):
    async def scenario(both):
        node = await file_of(both, b"begin")
        os.truncate(os.path.join(both.path, "a"), 3 * MIB)
        outcome = await both.same(READ, read(node, 0, MIB), room=MIB)
        assert outcome[5] == b"begin" + bytes(MIB - 5)

    run(place, tmp_path, scenario)


def test_a_reply_is_whole_though_its_file_is_cut_before_it_has_left(tmp_path, place):
    async def scenario(both):
        octets = random.Random(3).randbytes(2 * MIB)
        reader = await Reader().begin(both, await file_of(both, octets))
        await stuck(both, reader, 12)
        begins = {xid: number % 2 * MIB for number, xid in enumerate(reader.segments)}
        os.truncate(os.path.join(both.path, "a"), 0)
        whole = 0
        for _ in range(12):
            xid, found, eof = await reader.answer()
            assert found in (b"", octets[begins[xid] :][:MIB])  # those answered later find an empty file
            assert eof == (found == b"" or begins[xid] == MIB)
            whole += len(found) == MIB
        assert whole >= 2
        reader.close()

    run(place, tmp_path, scenario)


def test_a_peer_that_goes_costs_its_own_connection_only(tmp_path, place):
    async def scenario(both):
        node = await file_of(both, bytes(2 * MIB))
        reader = await Reader().begin(both, node)
        await stuck(both, reader, 12)
        reader.close()
        await until_given_back()
        assert (await both.call(0, READ, read(node, 0, MIB), room=MIB))[5] == bytes(MIB)

    run(place, tmp_path, scenario)


def test_a_server_that_closes_gives_the_pipes_back(tmp_path, place):
    async def scenario(both):
        reader = await Reader().begin(both, await file_of(both, bytes(2 * MIB)))
        await stuck(both, reader, 12)
        for connection in both.servers[0].connections:
            connection._endpoint.close(abort=True)
        await until_given_back()
        reader.close()

    run(place, tmp_path, scenario)


class Shown:
    """A tap that keeps what was written to the peer."""

    def __init__(self):
        self.written = b""

    def show(self, kind, parts, length, *where):
        if kind is Kind.WRITE_OUT:
            self.written += b"".join(bytes(part) for part in parts)

    def __getattr__(self, name):
        return lambda *arguments: None


def test_who_captures_sees_the_data(tmp_path, place):
    async def scenario(both):
        octets = random.Random(4).randbytes(MIB)
        reader = await Reader().begin(both, await file_of(both, octets))
        (connection,) = [
            each for each in both.servers[0].connections if each.peer_port == reader.socket.getsockname()[1]
        ]
        shown = Shown()
        connection.set_tap(shown)
        before = both.answered(READ)
        await reader.ask(0, MIB)
        assert (await reader.answer())[1:] == (octets, True)
        assert shown.written == octets
        assert max(reader.sizes) != PAGES
        connection.set_tap(None)
        await reader.ask(0, MIB)
        assert (await reader.answer())[1:] == (octets, True)
        assert reader.sizes[0] == PAGES
        assert both.answered(READ) == before + 2
        reader.close()

    run(place, tmp_path, scenario)
