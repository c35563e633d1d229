"""Random messages: legal calls with something changed, made of a seed.

What each must get, only its own server knows. But whatever comes, answers are well formed and belong to a call, a
refusal writes nothing, and nobody else is harmed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import Callable

from nfsd.conformance.basics import file_of, good, write_arguments
from nfsd.conformance.link import Differs, Link, Target, asks, name, opaque, rpc_call, untouched
from nfsd.conformance.records import Records
from nfsd.conformance.rfc8166 import DATA, readdir_plus
from rpcrdma.peer.requester import Exposed
from rpcrdma.peer.wire import ERROR, NOMSG, Malformed, ReplyHeader, Segment, header, words

EXTREMES = (0, 1, 2, 3, 4, 5, 7, 40, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF)
LIFE = 40
"""Messages after which a connection is left for another one."""
LOOK_EVERY = 10
SETTLES = 0.05
"""Seconds in which an answer may come behind that of a later NULL."""
QUIET = b"what somebody else has written, who must find it unchanged."


def spoilt(chance: random.Random, octets: bytes, head: int) -> bytes:
    """Octets with something changed; the first ``head`` are a header of words."""
    changed = bytearray(octets)
    kind = chance.randrange(6)
    if kind == 0:
        return octets
    if kind == 1:
        return octets[: chance.randrange(4, len(octets) + 1)]
    if kind == 2:
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(4, len(octets))] = chance.choice([0, 1, 2, 4, 255, chance.randrange(256)])
    elif kind == 3:
        struct.pack_into(">I", changed, 4 * chance.randrange(1, head // 4), chance.choice(EXTREMES))
    elif kind == 4:
        at = 4 * chance.randrange(1, len(octets) // 4)
        changed[at : at + 4] = words(chance.choice(EXTREMES)) * chance.randrange(3)
    else:
        changed[16:] = chance.randbytes(chance.choice([0, 8, 12, 100, 1000, 3000]))
    return bytes(changed)


class Maker:
    """Legal calls of a connection, and the memory that goes with each."""

    def __init__(self, link: Link, handle: bytes, chance: random.Random) -> None:
        self.link, self.handle, self.chance = link, handle, chance
        self.memory: list[Exposed] = []

    def call(self) -> tuple[bytes, int]:
        """One, and the octets of its header."""
        self.memory.clear()
        kinds: list[Callable[[int], tuple[bytes, bytes]]] = [
            self._getattr,
            self._read,
            self._write,
            self._list,
            self._long,
        ]
        head, body = self.chance.choice(kinds)(self.link.next_xid())
        return head + body, len(head)

    def _segments(self, area: Exposed) -> list[Segment]:
        """Of the area, some of them perhaps wrong."""
        self.memory.append(area)
        half = len(area.memory) // 2
        parts = area.segments(half, len(area.memory) - half)
        if self.chance.random() < 0.15:
            wrong = self.chance.choice(
                [
                    {"handle": self.chance.randrange(1 << 32)},
                    {"length": self.chance.choice(EXTREMES)},
                    {"offset": 1 << 40},
                ]
            )
            at = self.chance.randrange(2)
            parts[at] = parts[at]._replace(**wrong)
        return parts

    def _getattr(self, xid: int) -> tuple[bytes, bytes]:
        return header(xid), rpc_call(xid, 1) + opaque(self.handle)

    def _read(self, xid: int) -> tuple[bytes, bytes]:
        parts = self._segments(self.link.peer.writable(5000))
        return header(xid, writes=[parts]), rpc_call(xid, 6) + opaque(self.handle) + struct.pack(">QI", 0, 5000)

    def _write(self, xid: int) -> tuple[bytes, bytes]:
        data = DATA[:3000]
        body = rpc_call(xid, 7) + opaque(self.handle) + struct.pack(">QIII", 0, len(data), 0, len(data))
        position = len(body) if self.chance.random() < 0.8 else self.chance.choice(EXTREMES)
        reads = [(position, part) for part in self._segments(self.link.peer.readable(data))]
        return header(xid, reads=reads), body

    def _list(self, xid: int) -> tuple[bytes, bytes]:
        parts = self._segments(self.link.peer.writable(40_000))
        return header(xid, reply=parts), rpc_call(xid, 17) + readdir_plus(self.link)

    def _long(self, xid: int) -> tuple[bytes, bytes]:
        body = rpc_call(xid, 1) + opaque(self.handle)
        parts = self._segments(self.link.peer.readable(body))
        return header(xid, procedure=NOMSG, reads=[(0, part) for part in parts]), b""


async def answers(link: Link, octets: bytes, late: set[int]) -> list[ReplyHeader]:
    """All that comes back to a message, but a later NULL's answer, and answers to earlier ones: ``late`` are those
    without one. A server may take its time. Raises Differs, ConnectionError."""
    link.peer.send(octets)
    fence = link.send_null()
    found: list[ReplyHeader] = []
    while True:
        try:
            async with asyncio.timeout(None if not found or found[-1].xid != fence else SETTLES):
                found.append(await link.reply())
        except TimeoutError:
            break
        if fence in (one.xid for one in found) and len(found) > 1:
            break
    kept = []
    for one in found:
        if one.xid in late:
            late.remove(one.xid)
        elif one.xid != fence:
            kept.append(one)
    return kept


def judged(octets: bytes, found: list[ReplyHeader], memory: list[Exposed]) -> None:
    """Differs if no server may answer so."""
    xid = int.from_bytes(octets[:4], "big")
    if len(found) > 1:
        raise Differs(f"{len(found)} answers: {', '.join(map(name, found))}")
    for one in found:
        if one.xid != xid:
            raise Differs(f"an answer to {one.xid:#x}, which was no call's")
        if int.from_bytes(octets[12:16], "big") == ERROR and len(octets) >= 16:
            raise Differs(f"an error is answered with {name(one)}")
        if one.procedure not in (0, NOMSG, ERROR):
            raise Differs(f"an answer with procedure {one.procedure}")
        if one.procedure == ERROR:
            for area in memory:
                if area.writable:
                    untouched(area, "memory of a call that was refused")


@asks("RFC 8166 4.5 any-octets")
async def any_octets(target: Target) -> None:
    chance = random.Random(target.seed)
    witness = await target.link()
    quiet = await witness.filled(b"quiet", QUIET)
    handle = await witness.filled(b"random", DATA[:5000])
    left, link, maker = 0, witness, Maker(witness, handle, chance)
    late: set[int] = set()
    for number in range(target.messages):
        if left == 0 or link.peer.reason is not None:
            link, left, late = await target.link(), LIFE, set()
            maker = Maker(link, handle, chance)
        octets, head = maker.call()
        octets = spoilt(chance, octets, head)[:4096]
        left -= 1
        try:
            with contextlib.suppress(ConnectionError):  # a server may end a connection, and takes the next one
                found = await answers(link, octets, late)
                judged(octets, found, maker.memory)
                late |= set() if found else {int.from_bytes(octets[:4], "big")}
            if number % LOOK_EVERY == 0 and await witness.content(quiet, 100) != QUIET:
                raise Differs("another file has other data than it had")
        except (Differs, Malformed, ConnectionError) as error:
            raise Differs(f"seed {target.seed}, message {number}: {error}; sent: {octets[:400].hex()}") from error


@asks("RFC 5531 9 any-octets", over=("tcp",))
async def any_record(target: Target) -> None:
    chance = random.Random(target.seed)
    witness = await target.exchanger()
    quiet, handle = await file_of(witness, target.root, b"quiet"), await file_of(witness, target.root, b"random")
    await good(witness, 7, write_arguments(quiet, QUIET, 2), "WRITE")
    for number in range(target.messages):
        records = await target.records()
        bodies = [
            (1, opaque(handle)),
            (6, opaque(handle) + struct.pack(">QI", 0, 5000)),
            (7, write_arguments(handle, DATA[:3000], 0)),
            (17, opaque(target.root) + bytes(16) + words(32768, 32768)),
        ]
        procedure, arguments = chance.choice(bodies)
        octets = spoilt(chance, rpc_call(xid := chance.randrange(1 << 31), procedure) + arguments, 40)
        try:
            await _one_record(records, octets, xid)
            if number % LOOK_EVERY == 0:
                found = await good(witness, 6, opaque(quiet) + struct.pack(">QI", 0, 100), "READ")
                if QUIET not in found:
                    raise Differs("another file has other data than it had")
        except (Differs, ConnectionError) as error:
            raise Differs(f"seed {target.seed}, message {number}: {error}; sent: {octets[:400].hex()}") from error
        finally:
            records.close()


async def _one_record(records: Records, octets: bytes, xid: int) -> None:
    """Differs if no server may answer so; it may end the connection, or discard what is no call."""
    records.send(octets)
    records.send(rpc_call(xid + 1, 0))
    seen = set()
    try:
        while xid + 1 not in seen:
            reply = await records.record()
            found = int.from_bytes(reply[:4], "big")
            if found not in (xid, xid + 1) or found in seen or reply[4:8] != words(1) or len(reply) < 20:
                raise Differs(f"a reply that is none: {reply[:40].hex()}")
            seen.add(found)
    except ConnectionError:
        return
    except TimeoutError:
        raise Differs("the NULL after it has no answer") from None
