"""Attacks on RPC-over-RDMA over the embedded iWARP: credits, chunks, versions (RFC 8166, 8167, version Two)."""

from __future__ import annotations

import random
import socket
import struct
import time

from nfsd.protocol import nfs3
from rpcrdma.peer.wire import DONE, ERROR, MSGP, NOMSG, Segment, header, header_two, option, words
from tests.fuzz.corpus import kept
from tests.hostile.attack import Scene, attack, ignoring
from tests.hostile.attacks.tcp import MIB, file_of
from tests.hostile.peer import NULL3, Iwarp, long_call, nfs3_call, read_into, rpc


def _read(way: Iwarp, handle: nfs3.nfs_fh3, xid: int) -> None:
    way.post(read_into(xid, MIB), nfs3_call("READ", nfs3.READ3args(handle, 0, MIB), xid=xid))


@attack(
    "RPC-over-RDMA",
    "8 clients with 126 READs of 1 MiB each that take a few octets now and then",
    effect="READs asked for",
)
def slow_readers(scene: Scene) -> None:
    handle = file_of(scene, size=MIB)
    ways = scene.iwarps(8, window=4096)
    for way in ways:
        with ignoring():
            way.want_credits(126)
            way.socket.settimeout(0.2)
            for number in range(126):
                _read(way, handle, number + 1)
                scene.count("READs asked for")
    while not scene.over:
        for way in ways:
            with ignoring():
                scene.count("octets read slowly", len(way.socket.recv(11, socket.MSG_DONTWAIT)))
        scene.pause(0.05)


@attack("RPC-over-RDMA", "the same of eight hosts on a disk, that read nothing", effect="READs asked for")
def silent_readers(scene: Scene) -> None:
    handle = file_of(scene, b"/disk", size=MIB)
    for _ in range(8):
        for way in scene.iwarps(1, window=4096, source=scene.address()):
            with ignoring():
                way.want_credits(126)
                way.socket.settimeout(0.2)
                for number in range(126):
                    _read(way, handle, number + 1)
                    scene.count("READs asked for")


@attack(
    "RPC-over-RDMA",
    "24 hosts with all the READs of 1 MiB that there is memory for, taken at 80 KiB a second",
    effect="READs asked for",
)
def slow_hosts(scene: Scene) -> None:
    """Four of them with two connections and as many credits as there are; the others come when memory is short."""
    handle = file_of(scene, b"/disk", size=MIB)
    hosts = [scene.address() for _ in range(24)]
    ways: dict[tuple[str, int], tuple[Iwarp, float]] = {}

    def connect(source: str, number: int) -> None:
        with ignoring():
            way = scene.iwarp(source=source, window=1 << 16, patience=2)
            ways[source, number] = way, time.monotonic()
            granted = way.want_credits(126)
            way.socket.settimeout(0.2)
            for xid in range(granted - 2):
                _read(way, handle, xid + 1)
                scene.count("READs asked for")

    with scene.setting_up():
        for number, source in enumerate(hosts):
            for each in range(2 if number < 4 else 1):
                connect(source, each)
    while not scene.over:
        for (source, number), (way, last) in list(ways.items()):
            now = time.monotonic()
            left = min(int((now - last) * (80 << 10)), MIB)
            ways[source, number] = way, now
            try:
                while left > 0:
                    taken = len(way.socket.recv(left, socket.MSG_DONTWAIT))
                    if not taken:
                        raise EOFError
                    left -= taken
            except BlockingIOError:
                pass
            except (OSError, EOFError):
                scene.count("connected again")
                connect(source, number)
            if scene.over:
                break
        scene.pause(0.1)


@attack(
    "RPC-over-RDMA",
    "clients whose WRITEs come in Read chunks, and whose memory never answers an RDMA Read",
    effect="WRITEs",
)
def reads_never_answered(scene: Scene) -> None:
    handle = file_of(scene)
    arguments = nfs3.WRITE3args(handle, 0, MIB, nfs3.stable_how.UNSTABLE, memoryview(bytes(MIB)))
    call = nfs3_call("WRITE", arguments)[:-MIB]
    for way in scene.iwarps(64):
        with ignoring():
            way.want_credits(100)
            way.socket.settimeout(0.2)
            for number in range(100):
                xid = number + 1
                lists = header(xid, reads=[(len(call), Segment(number, MIB, 0))])
                way.post(lists, xid.to_bytes(4, "big") + call[4:])
                scene.count("WRITEs")


@attack("RPC-over-RDMA", "Long Calls of 1 MiB in memory that never answers", effect="Long Calls")
def long_calls_never_answered(scene: Scene) -> None:
    for way in scene.iwarps(64):
        with ignoring():
            way.want_credits(100)
            way.socket.settimeout(0.2)
            for number in range(100):
                way.post(long_call(number + 1, MIB))
                scene.count("Long Calls")


def _bad_chunks(chance: random.Random) -> list[bytes]:
    """Messages with chunk lists that nobody should send; each begins with an XID."""
    huge = Segment(1, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFF0)
    tiny = [Segment(7, 1, number) for number in range(150)]
    overlapping = [Segment(7, 65536, number * 16) for number in range(100)]
    return [
        header(1, reads=[(0, huge)] * 20, procedure=NOMSG),
        header(1, reads=[(number * 4, segment) for number, segment in enumerate(tiny)]) + NULL3,
        header(1, reads=[(4, segment) for segment in overlapping]) + NULL3,
        header(1, reads=[(0xFFFFFFFC, huge)]) + NULL3,
        header(1, writes=[[huge] * 50], reply=[huge] * 50) + NULL3,
        header(1, writes=[[segment] for segment in tiny]) + NULL3,
        header(1, writes=[[]] * 300) + NULL3,
        words(1, 1, 32, 0) + words(0, 1, 10000) + bytes(2000),
        words(1, 1, 32, 0) + words(0, 1, 0xFFFFFFFF) + bytes(2000),
        words(1, 1, 32, 0) + words(1) * 900,
        words(1, 1, 32, 0, 0, 0, 1, 0xFFFFFFFF) + bytes(500),
        header(1, reply=overlapping) + NULL3,
        header(1, reply=[]) + NULL3,
        header(1, procedure=NOMSG, reads=[(0, Segment(1, 0, 0))]),
        header(1, procedure=NOMSG),
        header(1, procedure=chance.getrandbits(32)) + NULL3,
        chance.randbytes(chance.randrange(1, 1400)),
    ]


@attack("RPC-over-RDMA", "chunk lists of ten thousand segments, of 4 GiB, overlapping, cut short", effect="handshakes")
def bad_chunk_lists(scene: Scene) -> None:
    chance = random.Random(5)
    for _ in scene.rounds(500):
        for message in _bad_chunks(chance):
            with ignoring(), Iwarp(scene.doors.rdma, scene.source, patience=1) as way:
                way.post(message)
                way.socket.settimeout(0.01)
                way.socket.recv(1000)
            if scene.over:
                return


@attack(
    "RPC-over-RDMA",
    "500 calls at once with credits of none, of 1 and of four thousand million asked for",
    effect="handshakes",
)
def credit_overrun(scene: Scene) -> None:
    for number in scene.rounds(300):
        with ignoring(), Iwarp(scene.doors.rdma, scene.source, patience=1) as way:
            credit = (0, 1, 0xFFFFFFFF)[number % 3]
            way.send(b"".join(way.message(header(xid, credit=credit) + NULL3) for xid in range(1, 501)))
            way.socket.settimeout(0.05)
            way.socket.recv(100000)


@attack(
    "RPC-over-RDMA",
    "versions 0, 3 and 99, RDMA_DONE, RDMA_MSGP, errors and replies that nobody waits for",
    effect="handshakes",
)
def wrong_versions(scene: Scene) -> None:
    reply = struct.pack(">6I", 5, 1, 0, 0, 0, 0)
    messages = [
        *(header(1, version=version) + NULL3 for version in (0, 3, 99, 0xFFFFFFFF)),
        header(1, procedure=DONE), header(1, procedure=MSGP) + NULL3, words(1, 1, 32, ERROR, 2),
        words(1, 1, 32, ERROR, 1, 1, 9),
        header(5) + reply, header(5, reads=[(0, Segment(1, 9, 9))]) + reply, header_two(5, direction=1) + reply,
        header_two(1) + NULL3, header_two(1, inv_handle=0xFFFFFFFF) + NULL3, header_two(1, direction=9) + NULL3,
        option(1, 0xFFFFFFFF, bytes(1000)), words(1, 2, 32, 5, 0, 1, 0xFFFFFFFF), words(1, 2, 0, ERROR, 3, 9, 9, 9),
    ]  # fmt: skip
    for number in scene.rounds(20000):
        with ignoring(), Iwarp(scene.doors.rdma, scene.source, patience=1) as way:
            for more in range(20):
                way.post(messages[(number * 7 + more * (number % 5 + 1)) % len(messages)])


@attack("RPC-over-RDMA", "the fuzzers' messages of both versions", effect="handshakes")
def fuzzed_messages(scene: Scene) -> None:
    inputs = [data for name in ("version_one", "version_two") for data in kept(name)]
    for number in scene.rounds(20000):
        data = inputs[number % len(inputs)]
        with ignoring(), Iwarp(scene.doors.rdma, scene.source, patience=1) as way:
            while data:
                size = int.from_bytes(data[:2], "big") & 0x7FFF
                way.post(data[2 : 2 + size][:4000])
                data = data[2 + size :]


@attack("RPC-over-RDMA", "NULL as fast as credits allow over 32 connections", effect="received")
def null_flood_over_rdma(scene: Scene) -> None:
    ways = scene.iwarps(32)
    while not scene.over:
        for way in ways:
            with ignoring():
                way.send(b"".join(way.message(header(xid) + NULL3) for xid in range(1, 33)))
                way.socket.recv(1 << 18, socket.MSG_DONTWAIT)


@attack("RPC-over-RDMA", "replies to backward calls that were never made", effect="handshakes")
def unasked_replies(scene: Scene) -> None:
    message = header(9) + struct.pack(">6I", 9, 1, 0, 0, 0, 0)
    for way in scene.iwarps(8):
        for _ in scene.rounds(2000):
            with ignoring():
                way.post(message)
                way.post(header(8), rpc(100003, 4, 0, xid=8))
