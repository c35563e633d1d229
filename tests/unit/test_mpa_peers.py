"""Peers of every kind of MPA set-up call a running server: what they may have read, they write with Read chunks.

RFC 5044 section 7.1 (revision 1, CRC, Markers), RFC 6581 section 9 (enhanced frames, IRD and ORD).
"""

import struct

import pytest

from rpcrdma.peer import wire
from rpcrdma.verbs.softiwarp.crc import crc32c
from tests.peer.rig import DEVICE_ADDRESS, LINUX
from tests.unit import vfs_support
from tests.unit.rdma_native_support import WRITE, handle, rpc, run
from tests.unit.softiwarp_support import (
    READ_REQUEST,
    READ_RESPONSE,
    SEND,
    SEND_INVALIDATE,
    Raw,
    enhanced,
    request,
    tagged,
)

pytestmark = pytest.mark.skipif(bool(DEVICE_ADDRESS), reason="these peers speak MPA themselves")

MARKERS, CRC, ENHANCED = 0x80, 0x40, 0x10
NOT_NEGOTIATED = 0x3FFF
STAG, PLACE = 0x1234, 1 << 33
"""Where these peers offer their data."""


class MpaPeer(Raw):
    """A client that knows no library: it sees the server's stream as it is, with Markers if it asked for them."""

    def __init__(self, marked):
        super().__init__()
        self.marked = marked
        self.at = 0
        """Octets of the server's stream since MPA's Reply."""
        self.raw = b""

    async def octets(self, count):
        """The next octets but Markers; these go to ``raw`` too."""
        taken = b""
        while len(taken) < count:
            if self.marked and self.at % 512 == 0:
                self.raw += await self.exactly(4)
                self.at += 4
            step = min(count - len(taken), 512 - self.at % 512)
            piece = await self.exactly(step)
            self.at += step
            self.raw += piece
            taken += piece
        return taken

    async def next_ulpdu(self):
        self.raw = b""
        length = int.from_bytes(await self.octets(2), "big")
        ulpdu = await self.octets(length)
        assert not any(await self.octets(-(length + 2) % 4))
        if self.marked and self.at % 512 == 0:
            self.raw += await self.exactly(4)  # between pad and CRC: this FPDU's
            self.at += 4
        wanted = struct.pack("<I", crc32c(self.raw)) if self.crc else bytes(4)
        assert await self.exactly(4) == wanted
        self.at += 4
        return ulpdu

    async def call(self, octets, data=b""):
        """The reply, and how many Reads came before it; they get ``data``."""
        await self.message(octets)
        reads = 0
        while True:
            ulpdu = await self.next_ulpdu()
            opcode = ulpdu[1] & 15
            if opcode in (SEND, SEND_INVALIDATE):
                return wire.ReplyHeader.parse(ulpdu[18:]), reads
            assert opcode == READ_REQUEST
            reads += 1
            sink, at, size, source, where = struct.unpack(">IQIIQ", ulpdu[18:])
            assert source == STAG
            start = where - PLACE
            await self.frame(tagged(READ_RESPONSE, sink, at, data[start : start + size]))


async def connected(both, which, sent):
    peer = MpaPeer(bool(sent[16] & MARKERS))
    await peer.connect(both.listeners[which].address)
    await peer.send(sent)
    peer.reply = await peer.mpa_frame()
    peer.crc = bool(peer.reply[16] & CRC)
    assert peer.crc == bool(sent[16] & CRC)
    return peer


def write(node, xid, data, segments=1):
    """A WRITE with its data in a Read chunk, and its message."""
    message = rpc(xid, WRITE, handle(node) + struct.pack(">QIII", 0, len(data), 2, len(data)))
    size = len(data) // segments
    reads = [(len(message), wire.Segment(STAG, size, PLACE + number * size)) for number in range(segments)]
    return wire.header(xid, reads=reads), message


def status(header):
    assert (header.procedure, header.error) == (wire.MSG, 0)
    accepted, outcome = struct.unpack_from(">2I", header.payload, 20)
    assert accepted == 0
    return outcome


@pytest.mark.parametrize("extra", [0, CRC, MARKERS, MARKERS | CRC], ids=["plain", "crc", "markers", "markers and crc"])
@pytest.mark.parametrize(
    ("flags", "revision", "ends", "told"),
    [
        (0, 1, b"", None),
        (0, 2, b"", None),
        (ENHANCED, 2, enhanced(NOT_NEGOTIATED, NOT_NEGOTIATED), (NOT_NEGOTIATED, NOT_NEGOTIATED)),
        (ENHANCED, 2, enhanced(NOT_NEGOTIATED, 0), (0, NOT_NEGOTIATED)),
        (ENHANCED, 2, enhanced(1, 0), (0, 1)),
        (ENHANCED, 2, enhanced(128, 0), (0, 16)),
    ],
    ids=["revision 1", "revision 2 without S", "left to the consumers", "IRD left", "IRD 1", "as Linux"],
)
@pytest.mark.parametrize("which", [0, 1], ids=["native", "general"])
def test_peers_of_every_kind_write(tmp_path, which, flags, revision, ends, told, extra):
    data = bytes(range(256)) * 20

    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"f", mode=0o666)
        peer = await connected(both, which, request(flags | extra, revision, ends + LINUX))
        assert peer.reply[16] == (flags | extra) & ~MARKERS, "not rejected, and no Markers asked for"
        assert peer.reply[17] == revision
        if told is not None:
            assert peer.reply[20:24] == enhanced(*told)
        header, _ = await peer.call(wire.header(1) + rpc(1, 0, b""))
        assert (header.xid, header.payload[4:]) == (1, struct.pack(">5I", 1, 0, 0, 0, 0))
        for xid, segments in ((2, 1), (3, 20)):
            header, reads = await peer.call(b"".join(write(node, xid, data, segments)), data)
            assert (header.xid, status(header), reads) == (xid, 0, segments)
        assert (await vfs_support.read_file(both.service, node))[0] == data
        peer.close()

    run("memory", tmp_path, scenario)


@pytest.mark.parametrize(
    ("flags", "revision", "ends", "most"),
    [(0, 1, b"", 8), (0, 2, b"", 8), (ENHANCED, 2, enhanced(NOT_NEGOTIATED, 0), 8), (ENHANCED, 2, enhanced(3, 0), 3)],
    ids=["revision 1", "revision 2 without S", "IRD left", "IRD 3"],
)
def test_no_more_reads_are_outstanding_than_are_safe(tmp_path, flags, revision, ends, most):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"f", mode=0o666)
        peer = await connected(both, 1, request(flags, revision, ends + LINUX))
        data = bytes(2000)
        await peer.message(b"".join(write(node, 5, data, 20)))
        waiting = [await peer.next_ulpdu() for _ in range(most)]
        await peer.message(wire.header(6) + rpc(6, 0, b""))
        assert (await peer.next_ulpdu())[18:22] == struct.pack(">I", 6), "another Read instead"
        for ulpdu in waiting:
            sink, at, size, _, _ = struct.unpack(">IQIIQ", ulpdu[18:])
            await peer.frame(tagged(READ_RESPONSE, sink, at, bytes(size)))
        peer.close()

    run("memory", tmp_path, scenario)


@pytest.mark.parametrize("extra", [0, CRC, MARKERS, 0x8000], ids=["plain", "crc", "markers", "peer to peer"])
@pytest.mark.parametrize("which", [0, 1], ids=["native", "general"])
def test_a_peer_that_allows_no_read_is_told_so_call_by_call(tmp_path, which, extra):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"f", mode=0o666)
        model = extra & 0x8000
        peer = await connected(
            both, which, request(ENHANCED | extra & 0xFF, 2, enhanced(model, model and 0xC000) + LINUX)
        )
        assert not peer.reply[16] & 0x20
        assert peer.reply[22:24] == struct.pack(">H", model and 0xC000), "no ORD beyond the initiator's IRD"
        if model:
            await peer.frame(tagged(0, 1, 0))  # ready to receive
        for xid in (1, 4):
            header, _ = await peer.call(wire.header(xid) + rpc(xid, 0, b""))
            assert header.payload[4:] == struct.pack(">5I", 1, 0, 0, 0, 0)
            # What needs no Read works, on the same connection as what does.
            inline = rpc(xid + 1, WRITE, handle(node) + struct.pack(">QIII4s", 0, 4, 2, 4, b"%04d" % xid))
            header, _ = await peer.call(wire.header(xid + 1) + inline)
            assert status(header) == 0
            header, reads = await peer.call(b"".join(write(node, xid + 2, b"data")), b"data")
            assert (header.xid, header.procedure, header.error) == (xid + 2, wire.ERROR, wire.ERR_CHUNK)
            assert reads == 0
        # So is a Long Call, all of which would have to be read.
        octets = wire.header(9, procedure=wire.NOMSG, reads=[(0, wire.Segment(STAG, 80, PLACE))])
        header, reads = await peer.call(octets)
        assert (header.xid, header.error, reads) == (9, wire.ERR_CHUNK, 0)
        # What has no octets needs none.
        header, _ = await peer.call(b"".join(write(node, 10, b"")))
        assert (header.xid, status(header)) == (10, 0)
        assert (await vfs_support.read_file(both.service, node))[0] == b"0004"
        assert both.servers[which].rejected == 0
        peer.close()

    run("memory", tmp_path, scenario)
