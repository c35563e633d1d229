"""An RPC program whose arguments and results have DDP-eligible items: it returns what it gets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence

from rpcrdma.rpc.program import Call, GarbageArguments, Procedure, Program
from rpcrdma.xdr import XdrError
from rpcrdma.xdr.payload import Payload

PROGRAM, VERSION = 0x20000077, 1
NULL, ECHO, ONCE = 0, 1, 2
LARGEST = 4 << 20
MOST_FILLER = 1 << 20
MOST_ITEMS = 64


class Control:
    """What the program does besides: calls may be held back, and are counted."""

    def __init__(self) -> None:
        self.executed = 0
        self.running = 0
        self.gate: asyncio.Event | None = None
        self.transports: list[object] = []


def echo_program(control: Control) -> Program:
    async def null(call: Call) -> None:
        control.executed += 1
        control.transports.append(call.transport)

    async def echo(call: Call) -> None:
        """Arguments: octets of filler, count, items. Results: filler (not DDP-eligible), count, items; of the items,
        those with ``kept`` false come back as a union arm without data."""
        control.executed += 1
        control.running += 1
        try:
            await _echo(call)
        finally:
            control.running -= 1

    async def _echo(call: Call) -> None:
        arguments, results = call.arguments, call.results
        try:
            filler, count = arguments.uint32(), arguments.uint32()
            if filler > MOST_FILLER or count > MOST_ITEMS:
                raise GarbageArguments
            items = [(arguments.boolean(), arguments.bulk(LARGEST)) for _ in range(count)]
            arguments.finish(strict=True)
        except XdrError as error:
            raise GarbageArguments from error
        if control.gate is not None:
            await control.gate.wait()
        results.opaque(b"f" * filler)
        results.uint32(len(items))
        for kept, data in items:
            results.boolean(kept)
            if kept:
                lease = await call.transport.lease(len(data))
                lease.view[: len(data)] = data
                results.bulk(Payload(lease.view[: len(data)], lease))

    rows = {
        NULL: Procedure("NULL", null, raw=True),
        ECHO: Procedure("ECHO", echo, raw=True),
        # ECHO for those who count how often it is executed: a retransmission is answered from the replay cache.
        ONCE: Procedure("ONCE", echo, raw=True, replay=True),
    }
    return Program(PROGRAM, "echo", {VERSION: rows})


def rpc_call(xid: int, arguments: bytes = b"", procedure: int = ECHO) -> bytes:
    """An RPC call with an empty credential (RFC 5531): 40 octets and the arguments."""
    return struct.pack(">10I", xid, 0, 2, PROGRAM, VERSION, procedure, 0, 0, 0, 0) + arguments


CALL_HEADER = 40
REPLY_HEADER = 24


class Arguments:
    """The arguments of ECHO, unreduced; ``positions`` are where the items' octets stand in the whole call."""

    def __init__(self, items: Sequence[bytes], filler: int = 0, dropped: Sequence[int] = ()) -> None:
        self.items = list(items)
        self.dropped = set(dropped)
        self.filler = filler
        self.positions: list[int] = []
        parts = [struct.pack(">II", filler, len(items))]
        at = CALL_HEADER + 8
        for index, item in enumerate(items):
            parts.append(struct.pack(">II", index not in self.dropped, len(item)))
            at += 8
            self.positions.append(at)
            parts.append(item + bytes(-len(item) & 3))
            at += len(parts[-1])
        self.octets = b"".join(parts)

    def without(self, *indices: int) -> bytes:
        """The arguments with these items reduced: neither data nor padding (RFC 8166 section 3.4.4.4)."""
        octets = bytearray(self.octets)
        for index in sorted(indices, reverse=True):
            start = self.positions[index] - CALL_HEADER
            length = len(self.items[index])
            del octets[start : start + length + (-length & 3)]
        return bytes(octets)


def echo_arguments(items: Sequence[bytes], filler: int = 0, dropped: Sequence[int] = ()) -> Arguments:
    return Arguments(items, filler, dropped)


def echo_results(arguments: Arguments, xid: int, reduced: Sequence[int] = ()) -> bytes:
    """The whole RPC reply to ECHO; ``reduced`` are the indices of items that are placed in Write chunks."""
    filler = b"f" * arguments.filler
    parts = [struct.pack(">6I", xid, 1, 0, 0, 0, 0)]
    parts.append(struct.pack(">I", len(filler)) + filler + bytes(-len(filler) & 3))
    parts.append(struct.pack(">I", len(arguments.items)))
    for index, item in enumerate(arguments.items):
        if index in arguments.dropped:
            parts.append(struct.pack(">I", 0))
            continue
        parts.append(struct.pack(">II", 1, len(item)))
        if index not in reduced:
            parts.append(item + bytes(-len(item) & 3))
    return b"".join(parts)


def accept_status(reply: bytes) -> int:
    """accept_stat of a whole RPC reply, which must be an accepted one."""
    _, kind, status, flavor, length, accepted = struct.unpack_from(">6I", reply)
    assert (kind, status, flavor, length) == (1, 0, 0, 0), reply[:24].hex()
    return int(accepted)
