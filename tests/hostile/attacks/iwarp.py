"""Attacks on the embedded iWARP: MPA, DDP and RDMAP (RFC 5040, 5041, 5044, 6581)."""

from __future__ import annotations

import random
import struct

from rpcrdma.peer.wire import header
from tests.fuzz.corpus import kept
from tests.hostile.attack import Refused, Scene, attack, ignoring, reset
from tests.hostile.peer import NULL3, Iwarp, dial
from tests.unit.softiwarp_support import (
    CLIENT_REQUEST,
    PRIVATE,
    READ_RESPONSE,
    SEND,
    SEND_INVALIDATE,
    TERMINATE,
    WRITE,
    fpdu,
    read_request,
    request,
    tagged,
    untagged,
)


@attack("iWARP", "1,000 connections that do nothing after their handshake", effect="handshakes")
def idle_rdma(scene: Scene) -> None:
    scene.iwarps(1000)


@attack("iWARP", "the same from a hundred hosts", effect="handshakes")
def idle_rdma_of_many(scene: Scene) -> None:
    for number in range(100):
        scene.iwarps(10, source=f"127.0.202.{number + 1}")


@attack("iWARP", "1,000 connections that have sent half an MPA Request", effect="sent")
def half_handshakes(scene: Scene) -> None:
    scene.many(1000, scene.doors.rdma, CLIENT_REQUEST[:19])


@attack("iWARP", "1,100 connections that say nothing at all", effect="connections")
def silent_rdma(scene: Scene) -> None:
    scene.many(1100, scene.doors.rdma)


@attack("iWARP", "MPA Requests that are wrong in every field", effect="sent")
def bad_requests(scene: Scene) -> None:
    chance = random.Random(3)
    frames = [
        b"MPA ID Rep Frame" + CLIENT_REQUEST[16:], request(flags=0xFF), request(revision=0), request(revision=9),
        request(length=0xFFFF), request(length=3), request(body=b""), request(body=b"abc"), request(flags=0x80),
        request(flags=0x20), request(body=b"\xff" * 512), request(revision=1, flags=0, body=PRIVATE),
        request(body=b"\0\0\0\0" + PRIVATE), request(body=b"\x3f\xff\x3f\xff" + PRIVATE),
        request(body=struct.pack(">HH", 0x8000, 0) + PRIVATE),
    ]  # fmt: skip
    for number in scene.rounds(2000):
        frame = bytearray(frames[number % len(frames)] if number % 3 else chance.randbytes(chance.randrange(1, 100)))
        if number > 100:
            frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
        with ignoring():
            sock = dial(scene.doors.rdma, scene.source, patience=1)
            sock.sendall(bytes(frame))
            if number % 2:
                reset(sock)
            else:
                sock.close()


def _bad_ulpdus(chance: random.Random) -> list[bytes]:
    """Each costs a connection."""
    data = chance.randbytes(64)
    return [
        tagged(WRITE, chance.getrandbits(32), chance.getrandbits(64), data),
        tagged(READ_RESPONSE, chance.getrandbits(32), 0, data),
        read_request(1, (1, 0), 0xFFFFFFFF, (chance.getrandbits(32), chance.getrandbits(64))),
        read_request(1, (1, 0), 4096, (0, 0)) * 2,
        untagged(SEND, 0, 7, 0, data),
        untagged(SEND, 0, 1, 100, data),
        untagged(SEND, 3, 1, 0, data),
        untagged(SEND, 0xFFFFFFFF, 1, 0, data),
        untagged(SEND_INVALIDATE, 0, 1, 0, data, stag=chance.getrandbits(32)),
        untagged(TERMINATE, 2, 1, 0, data[:4]),
        untagged(TERMINATE, 2, 1, 0, b""),
        untagged(SEND, 0, 1, 0xFFFFFFF0, data),
        bytes(18),
        chance.randbytes(chance.randrange(0, 1400)),
        b"\xff" * 30,
        b"",
    ]


@attack(
    "iWARP",
    "FPDUs that are wrong in every field: handles unknown, queues, numbers, Terminates, RDMA Reads of the server",
    effect="handshakes",
)
def bad_fpdus(scene: Scene) -> None:
    chance = random.Random(4)
    for _ in scene.rounds(500):
        for ulpdu in _bad_ulpdus(chance):
            with ignoring(), Iwarp(scene.doors.rdma, scene.source, patience=1) as way:
                way.send(fpdu(ulpdu, False))
            if scene.over:
                return


@attack("iWARP", "FPDUs whose checksums are wrong", effect="handshakes")
def bad_checksums(scene: Scene) -> None:
    for _ in scene.rounds(2000):
        with ignoring(), Iwarp(scene.doors.rdma, scene.source, request=request(flags=0x50), patience=1) as way:
            frame = bytearray(fpdu(untagged(SEND, 0, 1, 0, header(1) + NULL3)))
            frame[-1] ^= 0xFF
            way.send(bytes(frame))


@attack("iWARP", "the fuzzers' streams of octets behind a handshake", effect="handshakes")
def fuzzed_streams(scene: Scene) -> None:
    inputs = list(kept("iwarp"))
    for number in scene.rounds(20000):
        with ignoring(), Iwarp(scene.doors.rdma, scene.source, patience=1) as way:
            way.send(inputs[number % len(inputs)])


@attack("iWARP", "messages longer than any Receive, and segments of one that never ends", effect="handshakes")
def oversize_messages(scene: Scene) -> None:
    for number in scene.rounds(2000):
        with ignoring(), Iwarp(scene.doors.rdma, scene.source, patience=1) as way:
            if number % 2:
                way.send(way.message(bytes(100000)))
            else:
                for at in range(0, 4096, 64):
                    way.send(fpdu(untagged(SEND, 0, 1, at, bytes(64), last=False), False))


@attack("iWARP", "500 connections that have sent half of an FPDU", effect="handshakes")
def half_fpdus(scene: Scene) -> None:
    for way in scene.iwarps(500):
        with ignoring():
            way.send(fpdu(untagged(SEND, 0, 1, 0, bytes(1000)), False)[:500])


@attack("iWARP", "connections made and reset right after their handshake", effect="handshakes")
def connect_and_reset(scene: Scene) -> None:
    for number in scene.rounds(20000):
        with ignoring():
            try:
                way = Iwarp(scene.doors.rdma, scene.source, patience=1)
            except Refused:
                continue
            if number % 2:
                way.post(header(1), NULL3)
            reset(way.socket)
