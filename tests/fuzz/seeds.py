"""Well-formed inputs to begin with, made each time: every declared type, header and operation once."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import Any

from rpcrdma.peer import wire
from rpcrdma.peer.wire import Segment
from rpcrdma.rpc import messages
from rpcrdma.wire.private_data import PrivateData
from rpcrdma.xdr import codec, node_of
from rpcrdma.xdr.payload import Payload
from tests.fuzz.transport import ARGUMENTS, COMPOUNDS, join
from tests.unit.xdr_values import DECLARED, samples_of

CREDENTIAL = struct.pack(">7I", 1, 20, 7, 0, 0, 0, 0) + bytes(8)


def rpc_call(xid: int, program: int, version: int, procedure: int, arguments: bytes) -> bytes:
    return struct.pack(">6I", xid, 0, 2, program, version, procedure) + CREDENTIAL + arguments


def encoded(kind: Any, value: Any) -> tuple[bytes, list[tuple[int, Payload]]]:
    encoder = codec.Encoder()
    encoder.encode(kind, value)
    return encoder.getvalue(), encoder.payloads


def calls(each: int) -> Iterator[tuple[bytes, list[tuple[int, int]]]]:
    """RPC calls with up to ``each`` samples of every declared type; with the (position, length) of what was reduced."""
    kinds = [(program, kind) for program, kind in enumerate(DECLARED)]
    for names, kind in [*ARGUMENTS.items(), *(((program, 1, 0), kind) for program, kind in kinds)]:
        for value in samples_of(node_of(kind))[:each]:
            octets, payloads = encoded(kind, value)
            head = rpc_call(5, *names, b"")
            yield head + octets, [(len(head) + at, len(payload)) for at, payload in payloads]
    for program, operations in COMPOUNDS.items():
        for number, operation in operations.items():
            kind = operation.arguments
            for value in [None] if kind is None else samples_of(node_of(kind))[:each]:
                octets, payloads = encoded(kind, value)
                head = rpc_call(5, program, 4, 1, struct.pack(">I4sIII", 3, b"tag\0", 1, 1, number))
                yield head + octets, [(len(head) + at, len(payload)) for at, payload in payloads]


def replies() -> Iterator[bytes]:
    for value in samples_of(node_of(messages.rpc_msg)):
        yield encoded(messages.rpc_msg, value)[0]


def transport(version: int) -> Iterator[bytes]:
    """Inputs of :mod:`tests.fuzz.transport`."""

    def header(**lists: Any) -> bytes:
        return wire.header(5, **lists) if version == 1 else wire.header_two(5, **lists)

    segments = [Segment(0x1234, 100, 1 << 40), Segment(0x5678, 4000, 8)]
    null = rpc_call(5, 100003, 3, 0, b"")
    for octets, reduced in calls(2):
        reads = [(at, Segment(9, length, 64)) for at, length in reduced]
        if len(octets) < 1500:
            yield join([header(reads=reads) + octets])
    for octets in replies():
        yield join([header() + octets + b"\xff"])
    shapes: list[dict[str, Any]] = [
        {},
        {"writes": [segments]},
        {"writes": [segments, []], "reply": segments[:1]},
        {"reply": segments},
        {"writes": [segments * 2, segments * 9], "reply": segments * 8},
        {"reads": [(0, segments[0])], "procedure": wire.NOMSG, "reply": segments},
        {"reads": [(0, segments[0]), (64, segments[1]), (64, segments[0])], "procedure": wire.NOMSG},
        {"reads": [(len(null), segments[0])], "writes": [segments[1:]]},
        {"procedure": wire.MSGP},
        {"procedure": wire.DONE},
        {"procedure": 77},
    ]
    for shape in shapes:
        yield join([header(**shape) + null])
        yield join([header(**shape) + null + bytes((9, 1, 8, 200)), header() + null])
    yield join([header() + null] * 8)
    for code in range(1, 6):
        for xid in (5, 0x7BAC0001):
            yield join([header()[:12] + null, wire.words(xid, version, 4, wire.ERROR, code, 1, 2, 3)])
    yield join([header(version=9)[:] + null if version == 1 else wire.header(5, version=0x80000009) + null])
    yield join([b"\0\0" + PrivateData(True, 4096, 8192).encode() + bytes(40)])
    if version == 2:
        yield join([wire.header_two(5, inv_handle=0x5678, writes=[segments]) + null])
        for info in (b"", b"abc", bytes(64)):
            yield join([wire.option(5, 1, info), wire.option(6, 2, info, direction=wire.REPLY)])
        yield join([wire.header_two(0x7BAC0001, direction=wire.REPLY) + struct.pack(">6I", 0x7BAC0001, 1, 0, 0, 0, 0)])


def iwarp() -> Iterator[bytes]:
    """Inputs of :mod:`tests.fuzz.iwarp`: each kind of FPDU, alone and in sequences, cut and not, on each kind of
    connection; and MPA frames."""

    def number(value: int) -> bytes:
        return value.to_bytes(2, "big")

    def write(region: int, offset: int, length: int, wrong: int = 0) -> bytes:
        return bytes((0, wrong, region)) + number(offset) + number(length)

    def send(length: int, kind: int = 0, wrong: int = 0, region: int = 0) -> bytes:
        return bytes((2, kind, wrong)) + number(length) + (bytes((region,)) if kind in (1, 3) else b"")

    def read(region: int, offset: int, size: int, wrong: int = 0) -> bytes:
        return bytes((4, wrong, region)) + number(offset) + number(size)

    def response(length: int, wrong: int = 0) -> bytes:
        return bytes((6, wrong)) + number(length)

    def act(action: int, argument: int) -> bytes:
        return bytes((13, action, argument))

    def cut(keep: int) -> bytes:
        return bytes((11,)) + number(keep)

    flush = cut(0)
    programs = [
        send(100) + flush + send(1000) + send(0),
        send(600, wrong=1) + send(400) + flush + send(10, 2),
        send(600, wrong=1) + cut(300) + cut(20) + send(400) + cut(3) + cut(1),
        send(8, 1, region=0) + flush + send(8, 1, region=0),
        send(8, 3, region=1) + write(1, 0, 10),
        write(0, 0, 256) + flush + write(2, 100, 4900) + cut(4000) + cut(2000) + cut(10) + flush,
        write(2, 0, 2000, 1) + write(2, 2000, 2000) + flush,
        write(2, 0, 5000) + cut(3000) + act(1, 2) + flush,
        write(1, 0, 10),
        write(3, 0, 10),
        write(4, 0, 10),
        write(0, 250, 10),
        write(0, 0xFFF1, 40),
        write(0, 0, 0) + write(4, 0, 0) + send(3),
        read(0, 0, 256) + flush + read(1, 0, 3000) + flush,
        read(1, 0, 100) + read(1, 5, 100) + read(0, 0, 10) + flush,
        read(2, 0, 10),
        read(3, 0, 10),
        read(1, 2999, 10),
        read(4, 0, 0) + send(1),
        read(1, 0, 3000) + send(4, 1, region=1),
        act(3, 10) + response(0, 8) + flush + send(4),
        act(3, 200) + response(2000, 1) + cut(1000) + response(6000, 8) + flush,
        act(3, 2) + response(0, 8) + response(0, 8) + response(0, 8) + send(1),
        response(0),
        response(10),
        act(2, 7) + send(9) + act(2, 200) + act(6, 0) + act(0, 99) + write(4, 3, 20) + flush,
        act(4, 210) + send(5),
        act(4, 240) + send(5),
        act(5, 0) + b"".join(send(1) for _ in range(7)),
        bytes((8, 4, 0x01, 0x00, 0, 0)),
        bytes((8, 0)),
        bytes((8, 30, 0x11, 0x00, 0xC0, 0, 0, 20)) + bytes((0xC1, 0x40)) + bytes(28),
        bytes((9, 18, 0x41, 0x43)) + struct.pack(">IIII", 0, 0, 1, 0),
        bytes((9, 3, 0x41, 0x43, 0)),
        bytes((10, 30)) + struct.pack(">H", 18) + bytes((0x41, 0x43)) + struct.pack(">IIII", 0, 0, 1, 0) + bytes(8),
        send(20) + bytes((14, 0, 2, 255)),
        send(20) + bytes((14, 0, 20, 1)),
        send(20) + bytes((15,)),
        *(send(4, wrong=1 << bit) for bit in range(8)),
        *(write(0, 0, 4, wrong=1 << bit) for bit in range(8)),
        *(read(0, 0, 4, wrong=1 << bit) for bit in range(8)),
        *(act(3, 9) + response(360, wrong=1 << bit) for bit in range(8)),
    ]
    for mode in (0, 1, 14, 15, 0x1D, 9, 6):
        for program in programs:
            yield bytes((mode,)) + program
    for first in range(0, 48, 5):
        for flags in (0, 0x10, 0x50, 0x90, 0x20):
            for revision in (1, 2, 3):
                for body in (
                    b"",
                    b"abc",
                    b"\x80\x10\x40\x08",
                    b"\x00\x08\x00\x04Rest",
                    bytes.fromhex("ffffffff") + bytes(90),
                ):
                    yield bytes((0xC0, first, flags, revision)) + number(len(body)) + body


def calls_target() -> Iterator[bytes]:
    """Inputs of :mod:`tests.fuzz.calls`: each procedure over both transports, with the usual shapes."""
    for transport, procedure, choice in itertools.product((0, 1), range(15), range(8)):
        parts = [
            bytes((transport, procedure, choice, choice % 3, choice, choice, choice + 2)),
            (choice * 333).to_bytes(2, "big"),
            bytes((choice % 3 and choice % 4, 0, choice, 0, 2)),
            bytes((choice << 4 | (4 if choice & 1 else 0) | (8 if choice == 7 else 0) | choice & 3,)),
            bytes((2, 0, choice * 9, 1, 7)) if choice & 2 else bytes(1),
        ]
        yield b"".join(parts)
    for kind, where in itertools.product(range(5), range(0, 120, 8)):
        head = bytes((kind & 1, where % 6, where, 0, 0, 0, 3, 0, 40, 0, 0, 1, 1))
        yield head + bytes((kind, 0, where, where % 251, 0, 0, 0))


def compounds_target() -> Iterator[bytes]:
    """Inputs of :mod:`tests.fuzz.compounds`: each operation behind PUTFH of each handle, whole and damaged."""
    for handle, operation, choice in itertools.product(range(9), range(1, 10), range(4)):
        yield bytes((2, 0, handle, operation, choice * 3 + (handle - 3) % 6, choice, choice * 2, choice, 0, 0, 0))
    for kind, where in itertools.product(range(5), range(0, 80, 3)):
        operations = bytes((3, 0, 4, 4 + where % 3, 7, 0, 2, 0, 1, 0))
        yield operations + bytes((1, kind, 0, where, where * 37 & 0xFF, 0))
    yield bytes((4, 0, 6, 2, 1, 8, 0, 1, 0, 0, 0)) + bytes((5, 0, 6, 8, 1, 2, 2, 8, 2, 8, 0, 0, 1))


def callers_target() -> Iterator[bytes]:
    """Inputs of :mod:`tests.fuzz.callers`: an honest call, then the same one with ids at every edge, twice."""
    for memory, version, action, edge in itertools.product(range(2), range(4), range(6), range(9)):
        squash, undamaged = (action + edge) % 3, bytes(1 if version == 0 else 0)
        honest = bytes((squash, version, action, edge % 8, 2, 2, 0)) + undamaged
        other = bytes((squash, version, action, edge % 8, edge, (edge, 2)[action & 1], 2, edge, 1)) + undamaged
        yield bytes((memory,)) + honest + other + other + honest
    for kind, where in itertools.product(range(4), range(0, 60, 4)):
        yield bytes((where & 1, 0, 0, where % 6, 1, 8, 3, 2, 8, 0, 1, kind, where * 17 & 255, 0, where))


def gss_target() -> Iterator[bytes]:
    """Inputs of :mod:`tests.fuzz.gss`: each kind of call twice, whole; then with each word of each part damaged."""
    for kind, procedure in itertools.product(range(16), (1, 14, 15, 80, 96, 112, 113, 240)):
        whole = bytes((kind, 3, procedure, 0, 0, procedure % 20, 0))
        yield whole + whole + bytes((kind, 4, 1, 0, 0, 9, 0))
    for kind, part, damage, where in itertools.product((4, 8, 12), range(3), range(3), range(0, 48, 4)):
        harm = bytes((6, damage, 1 + where % 2, 0, where))
        parts = [bytes(1), bytes(1), bytes(1)]
        parts[part] = harm
        yield bytes((kind, 2, 1)) + parts[0] + parts[1] + bytes((7,)) + parts[2] + bytes((kind, 2, 1, 0, 0, 7, 0))


def protected_target() -> Iterator[bytes]:
    """Inputs of :mod:`tests.fuzz.protected`: each call with each service and sequence number, whole and sent again;
    then with damage to each part, and with every other protection, signature and number inside, by clients that hang
    up, too."""
    for service, what, number in itertools.product(range(3), range(8), (0, 8, 12)):
        whole = bytes((service << 1, what, 0, 0, 0))
        yield whole + bytes((service << 1, what, number, 0, 0)) + bytes((service << 1, what, 0, 0x70, 0)) + whole
    for service, number in itertools.product(range(3), range(5, 16)):
        yield (
            bytes((service << 1, 0, 0, 0, 0))
            + bytes((service << 1, 1, number, 0, 0))
            + bytes((service << 1, 2, 0, 0, 0))
        )
    for service, kind, where in itertools.product((1, 2), range(7), range(0, 16, 2)):
        harm = bytes((1, 3 + where % 5, kind, where * 16 & 255 | 3, 0, where * 3))
        yield bytes((service << 1, (0, 1, 4, 5, 3)[where % 5], 0, 0)) + harm + bytes((service << 1, 1, 0, 0, 0))
    for service, part, kind, where in itertools.product(range(3), range(3), range(7), (3, 12)):
        yield bytes((service << 1, 1, 0, 0, 1, part, kind, 5 + where, 0, where * 4))
    for kind, other, inner in itertools.product(range(0, 256, 16), (0, 3 << 3, 3 << 6, 6 << 3), (1, 12, 0xF0)):
        if kind or other:
            yield bytes((kind | 4 >> (inner & 1), other | inner % 5, 0, inner, 0)) + bytes((4, 1, 0, 0, 0))


SEEDS = {
    "version_one": lambda: transport(1),
    "version_two": lambda: transport(2),
    "iwarp": iwarp,
    "calls": calls_target,
    "compounds": compounds_target,
    "callers": callers_target,
    "gss": gss_target,
    "protected": protected_target,
}
