"""Random messages to the echo program: legal ones of any layout, and others that have something wrong with them.

:data:`KINDS` has a maker for each kind. Nothing here knows what the answer must be; that is :mod:`tests.peer.oracle`'s.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from rpcrdma.peer.requester import Exposed, Peer
from rpcrdma.peer.wire import CALL, DONE, ERROR, MSG, MSGP, NOMSG, OPTIONAL, REPLY, Segment, lists, option, words
from tests.peer.echo import NULL, Arguments, rpc_call

EXTREMES = (0, 1, 2, 3, 4, 5, 7, 40, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF)


@dataclass
class Draft:
    """A message of version One or Two that may still be changed."""

    xid: int
    version: int
    procedure: int = MSG
    credit: int = 32
    direction: int = CALL
    inv_handle: int = 0
    reads: list[tuple[int, Segment]] = field(default_factory=list)
    writes: list[list[Segment]] = field(default_factory=list)
    reply: list[Segment] | None = None
    inline: bytes = b""
    memory: list[Exposed] = field(default_factory=list)
    """What was registered for it."""

    def octets(self) -> bytes:
        """The message."""
        head = words(self.xid, self.version, self.credit, self.procedure)
        if self.version == 2:
            head += words(self.direction, self.inv_handle)
        return head + lists(self.reads, self.writes, self.reply) + self.inline


class Maker:
    """Makes messages for one connection in one version."""

    def __init__(self, chance: random.Random, peer: Peer, version: int, limit: int = 4096) -> None:
        self.chance, self.peer, self.version = chance, peer, version
        self.limit = limit
        """Octets of the longest reply."""

    def cut(self, length: int, *, exact: bool) -> list[int]:
        """Lengths that add up to ``length`` (or a little more), some of them zero."""
        chance = self.chance
        lengths, rest = [], length
        while rest:
            part = min(rest, chance.choice([0, 1, 3, 4, 17, 1000, 4096, rest]))
            lengths.append(part)
            rest -= part
            if len(lengths) > 14:
                lengths.append(rest)
                break
        if not exact:
            lengths += [chance.choice([0, 1, 4, 4096]) for _ in range(chance.randrange(3))]
        return lengths

    def readable(self, draft: Draft, data: bytes) -> list[Segment]:
        """Expose ``data`` in segments of any lengths."""
        source = self.peer.readable(data)
        draft.memory.append(source)
        return source.segments(*self.cut(len(data), exact=True))

    def writable(self, draft: Draft, length: int) -> list[Segment]:
        """Room for ``length`` octets at least, in segments of any lengths."""
        cut = self.cut(length, exact=False)
        target = self.peer.writable(sum(cut) or 1)
        draft.memory.append(target)
        return target.segments(*cut)

    def null(self, xid: int) -> Draft:
        """The NULL procedure."""
        return Draft(xid, self.version, inline=rpc_call(xid, procedure=NULL))

    def call(self, xid: int) -> Draft:
        """A legal call of any layout: Short or Long, with chunks or without, with or without room for its reply."""
        chance = self.chance
        draft = Draft(xid, self.version, credit=chance.choice([1, 32, 128, 0, 0xFFFFFFFF]))
        items = [
            chance.randbytes(chance.choice([0, 1, 2, 3, 4, 5, 63, 500, 4096, 20001]))
            for _ in range(chance.randrange(1, 4))
        ]
        dropped = [index for index in range(len(items)) if chance.random() < 0.15]
        arguments = Arguments(items, chance.choice([0, 3, 100, 5000]), dropped)
        self._arguments(draft, arguments)
        kept = [len(item) for index, item in enumerate(items) if index not in dropped]
        for rank in range(chance.randrange(len(items) + 2)):
            length = kept[rank] if rank < len(kept) else 10
            draft.writes.append(self.writable(draft, length) if chance.random() < 0.8 else [])
        if chance.random() < 0.7:
            draft.reply = self.writable(draft, arguments.filler + sum(kept) + 100)
        if draft.memory and chance.random() < 0.7:
            draft.inv_handle = chance.choice(draft.memory).handle
        if draft.procedure == MSG and len(draft.octets()) > 4096:
            self.make_long(draft)
        return draft

    def _arguments(self, draft: Draft, arguments: Arguments) -> None:
        chance = self.chance
        reduced = [index for index in range(len(arguments.items)) if chance.random() < 0.5]
        if len(arguments.without(*reduced)) > 2000 and chance.random() < 0.5:
            reduced = list(range(len(arguments.items)))
        for index in reduced:
            item = arguments.items[index]
            padded = item + b"\xaa" * (-len(item) & 3) * chance.randrange(2)
            draft.reads += [(arguments.positions[index], part) for part in self.readable(draft, padded)]
        draft.inline = rpc_call(draft.xid, arguments.without(*reduced))
        if len(draft.inline) > 2000 or chance.random() < 0.3:
            self.make_long(draft)
        if chance.random() < 0.3:
            # The segments of one chunk keep their order; the chunks have none among them.
            positions = sorted({position for position, _ in draft.reads}, key=lambda _: chance.random())
            draft.reads.sort(key=lambda read: positions.index(read[0]))

    def make_long(self, draft: Draft) -> None:
        """Put what is inline into a Position Zero Read chunk."""
        draft.reads = [(0, part) for part in self.readable(draft, draft.inline)] + draft.reads
        draft.procedure, draft.inline = NOMSG, b""

    def segments(self, draft: Draft) -> list[tuple[Segment, Callable[[Segment], None]]]:
        """Every segment of a draft, with what puts another in its place."""
        found: list[tuple[Segment, Callable[[Segment], None]]] = []
        for index, (position, part) in enumerate(draft.reads):
            found.append((part, lambda new, index=index, position=position: _put(draft.reads, index, (position, new))))  # type: ignore[misc]
        for chunk in (*draft.writes, draft.reply or []):
            for index, part in enumerate(chunk):
                found.append((part, lambda new, chunk=chunk, index=index: _put(chunk, index, new)))  # type: ignore[misc]
        return found


def _put(where: list, index: int, what: object) -> None:  # type: ignore[type-arg]
    where[index] = what


Kind = Callable[[Maker, Draft], bytes]
"""Takes a legal call and gives the octets to send."""
KINDS: dict[str, tuple[int, Kind]] = {}
"""How often (in relation to the others), and how."""


def kind(name: str, weight: int = 2) -> Callable[[Kind], Kind]:
    """Name a kind."""

    def add(make: Kind) -> Kind:
        KINDS[name] = weight, make
        return make

    return add


@kind("legal call", 40)
def _legal(_: Maker, draft: Draft) -> bytes:
    return draft.octets()


@kind("NULL", 4)
def _null(maker: Maker, draft: Draft) -> bytes:
    return maker.null(draft.xid).octets()


@kind("as long as may be", 6)
def _long_as_may_be(maker: Maker, draft: Draft) -> bytes:
    """Call and reply of about as many octets as the Receive and the threshold have, without chunks or with one."""
    chance = maker.chance
    other = Draft(draft.xid, maker.version)
    if chance.random() < 0.3:
        other.reply = maker.writable(other, 8192)
    head = len(other.octets())
    item = chance.randbytes(max(0, 4096 - head - 56 - chance.choice([0, 1, 4, 100, 3000])))
    filler = max(0, maker.limit - head - 32 + chance.choice([-8, -5, -4, -1, 0, 1, 4, 8]))
    other.inline = rpc_call(draft.xid, Arguments([item], filler, [0]).octets)
    draft.memory += other.memory
    return other.octets()[:4096]


@kind("cut short", 6)
def _cut(maker: Maker, draft: Draft) -> bytes:
    octets = draft.octets()
    return octets[: maker.chance.randrange(len(octets))]


@kind("octets changed", 12)
def _changed(maker: Maker, draft: Draft) -> bytes:
    chance, octets = maker.chance, bytearray(draft.octets())
    for _ in range(chance.randrange(1, 4)):
        octets[chance.randrange(len(octets))] = chance.choice([0, 1, 2, 4, 255, chance.randrange(256)])
    return bytes(octets)


@kind("a word of the header changed", 12)
def _word(maker: Maker, draft: Draft) -> bytes:
    chance, octets = maker.chance, bytearray(draft.octets())
    end = (len(octets) - len(draft.inline)) // 4
    struct.pack_into(">I", octets, 4 * chance.randrange(1, end), chance.choice(EXTREMES))
    return bytes(octets)


@kind("a word inserted or left out")
def _shifted(maker: Maker, draft: Draft) -> bytes:
    octets = draft.octets()
    at = 4 * maker.chance.randrange(4, len(octets) // 4)
    return (
        octets[:at] + (words(maker.chance.choice(EXTREMES)) if maker.chance.random() < 0.5 else b"") + octets[at + 4 :]
    )


@kind("noise")
def _noise(maker: Maker, draft: Draft) -> bytes:
    chance = maker.chance
    head = (
        words(draft.xid, chance.choice([1, 2, maker.version]), 32, chance.randrange(6))
        if chance.random() < 0.7
        else b""
    )
    return head + chance.randbytes(chance.choice([0, 8, 12, 20, 100, 1000, 4000]))


@kind("another version")
def _version(maker: Maker, draft: Draft) -> bytes:
    draft.version = maker.chance.choice([0, 1, 2, 3, 0xFFFFFFFF])
    return draft.octets()


@kind("another procedure")
def _procedure(maker: Maker, draft: Draft) -> bytes:
    draft.procedure = maker.chance.choice([MSG, NOMSG, MSGP, DONE, ERROR, OPTIONAL, 6, 0xFFFFFFFF])
    return draft.octets()


@kind("RDMA_ERROR")
def _error(maker: Maker, draft: Draft) -> bytes:
    chance = maker.chance
    body = words(chance.randrange(7), *[chance.choice(EXTREMES) for _ in range(chance.randrange(5))])
    return words(draft.xid, chance.choice([1, 2, 3]), 32, ERROR) + body


@kind("RDMA_DONE and RDMA_MSGP")
def _obsolete(maker: Maker, draft: Draft) -> bytes:
    draft.procedure = maker.chance.choice([MSGP, DONE])
    more = words(4, 2048) if draft.procedure == MSGP and maker.chance.random() < 0.5 else b""
    octets = draft.octets()
    return octets[:16] + more + octets[16:]


@kind("RDMA2_OPTIONAL")
def _option(maker: Maker, draft: Draft) -> bytes:
    chance = maker.chance
    direction = chance.choice([CALL, CALL, CALL, REPLY, 2])
    octets = option(draft.xid, chance.choice(EXTREMES), chance.randbytes(chance.randrange(60)), direction=direction)
    if chance.random() < 0.3:
        octets = octets[:24] + words(chance.choice(EXTREMES)) + octets[28:]
    return octets + draft.inline


@kind("a reply nobody waits for")
def _reply(maker: Maker, draft: Draft) -> bytes:
    draft.direction = maker.chance.choice([REPLY, REPLY, REPLY, CALL])
    draft.reads = []
    draft.procedure = maker.chance.choice([MSG, MSG, MSG, NOMSG])
    draft.inline = words(draft.xid, 1, 0, 0, 0, 0) if draft.procedure == MSG else b""
    return draft.octets()


@kind("another direction")
def _direction(maker: Maker, draft: Draft) -> bytes:
    draft.direction = maker.chance.choice([1, 2, 0xFFFFFFFF])
    return draft.octets()


@kind("another rdma_inv_handle")
def _inv_handle(maker: Maker, draft: Draft) -> bytes:
    draft.inv_handle = maker.chance.choice([maker.chance.randrange(2**32), 1, 0])
    return draft.octets()


@kind("another position", 5)
def _position(maker: Maker, draft: Draft) -> bytes:
    chance = maker.chance
    if not draft.reads:
        draft.reads = [(0, part) for part in maker.readable(draft, b"nowhere.")]
    index = chance.randrange(len(draft.reads))
    position, part = draft.reads[index]
    others = [position + chance.choice([1, 2, 4, 8, 1000]), 0, 4, 40, 44, 0xFFFFFFFC, chance.randrange(2**32)]
    draft.reads[index] = chance.choice(others), part
    return draft.octets()


@kind("a Position Zero Read chunk too many or missing")
def _position_zero(maker: Maker, draft: Draft) -> bytes:
    if draft.procedure == NOMSG:
        draft.reads = [read for read in draft.reads if read[0]]
    else:
        draft.reads += [(0, part) for part in maker.readable(draft, draft.inline)]
    return draft.octets()


@kind("a Long Call that is none")
def _long(maker: Maker, draft: Draft) -> bytes:
    chance = maker.chance
    call = rpc_call(draft.xid)
    bodies = [b"", call[:4], call[:20], words(draft.xid, 1, 0, 0, 0, 0), rpc_call(draft.xid + 1)]
    other = Draft(draft.xid, maker.version, inline=chance.choice(bodies))
    maker.make_long(other)
    draft.memory += other.memory
    return other.octets()


@kind("memory that is not there", 3)
def _handle(maker: Maker, draft: Draft) -> bytes:
    return _replaced(maker, draft, lambda part: part._replace(handle=maker.chance.randrange(2**32)))


@kind("memory that ends before", 2)
def _bounds(maker: Maker, draft: Draft) -> bytes:
    far = maker.chance.choice([1 << 20, 1 << 40, -(1 << 16)])
    return _replaced(maker, draft, lambda part: part._replace(offset=(part.offset + far) % 2**64))


@kind("memory of the wrong access", 2)
def _access(maker: Maker, draft: Draft) -> bytes:
    if not draft.memory:
        return draft.octets()
    other = maker.chance.choice(draft.memory)
    return _replaced(maker, draft, lambda part: Segment(other.handle, min(part.length, len(other.memory)), other.base))


def _replaced(maker: Maker, draft: Draft, change: Callable[[Segment], Segment]) -> bytes:
    """One segment of the call changed."""
    found = maker.segments(draft)
    if found:
        part, put = maker.chance.choice(found)
        put(change(part))
    return draft.octets()


@kind("too little room for the reply", 5)
def _room(maker: Maker, draft: Draft) -> bytes:
    chunks = [chunk for chunk in (*draft.writes, draft.reply) if chunk]
    if chunks:
        chunk = maker.chance.choice(chunks)
        index = maker.chance.randrange(len(chunk))
        chunk[index] = chunk[index]._replace(length=maker.chance.randrange(chunk[index].length + 1))
    else:
        draft.reply = None
    return draft.octets()


@kind("segments of enormous length", 3)
def _enormous(maker: Maker, draft: Draft) -> bytes:
    length = maker.chance.choice([1 << 20, 2 << 20, 1 << 30, 0xFFFFFFFF])
    return _replaced(maker, draft, lambda part: part._replace(length=length))


@kind("very many segments", 3)
def _many(maker: Maker, draft: Draft) -> bytes:
    chance = maker.chance
    target = maker.peer.writable(4096)
    draft.memory.append(target)
    count = chance.choice([16, 60, 64, 100, 150])
    draft.writes += [[target.segment(0, 1)] * chance.choice([1, 1, 16]) for _ in range(count)]
    while len(draft.octets()) > 4096:
        draft.writes.pop()
    return draft.octets()


@kind("XIDs that differ", 3)
def _xid(maker: Maker, draft: Draft) -> bytes:
    if draft.procedure == MSG:
        draft.inline = words(draft.xid ^ 1 << maker.chance.randrange(32)) + draft.inline[4:]
    return draft.octets()


@kind("another RPC header", 6)
def _rpc(maker: Maker, draft: Draft) -> bytes:
    chance = maker.chance
    octets = bytearray(draft.inline or rpc_call(draft.xid, words(0, 0)))
    struct.pack_into(">I", octets, 4 * chance.randrange(1, 10), chance.choice(EXTREMES))
    draft.reads = [read for read in draft.reads if read[0] or draft.inline]
    draft.procedure, draft.inline = MSG, bytes(octets)
    if chance.random() < 0.2:
        maker.make_long(draft)
    return draft.octets()


@kind("other arguments", 4)
def _arguments(maker: Maker, draft: Draft) -> bytes:
    chance = maker.chance
    octets = bytearray(draft.inline or rpc_call(draft.xid, words(0, 0)))
    struct.pack_into(">I", octets, 40 + 4 * chance.randrange((len(octets) - 40) // 4), chance.choice(EXTREMES))
    draft.reads = [read for read in draft.reads if read[0] or draft.inline]
    draft.procedure, draft.inline = MSG, bytes(octets)
    return draft.octets()


@kind("longer than a Receive", 1)
def _too_long(maker: Maker, draft: Draft) -> bytes:
    octets = draft.octets()
    return octets + bytes(4096 - len(octets) + maker.chance.choice([1, 4, 1000]))
