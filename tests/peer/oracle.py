"""What the specifications prescribe as the answer to any octets that a requester may send: RFC 8166, RFC 8167,
RFC 8267, RFC 8797, and draft-cel-nfsv4-rpcrdma-version-two-02.

A second reading of the texts, of messages to the echo program: nothing of the engine under test is used. Where a text
leaves the choice, :meth:`Oracle.prescribe` gives every outcome it allows; where the responder has documented its choice
(docs/version-two.md), that one only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rpcrdma.peer.wire import (
    BAD_XDR,
    CALL,
    CANT_REPLY,
    DONE,
    ERR_CHUNK,
    ERR_VERS,
    ERROR,
    INVAL_OPTION,
    INVAL_PROC,
    MSG,
    NOMSG,
    OPTIONAL,
    REPLY,
    Segment,
)
from tests.peer import echo

SMALLEST = 28
"""RFC 8166 section 4.5: what is shorter is discarded."""
RECEIVE = 4096
"""Octets of the Receives that the rig posts by default."""
MOST_READ = (1 << 20) + (128 << 10)
"""Octets of Read chunks that the responder takes for one call: no text says how many; too many are refused."""
GARBAGE_ARGS, PROG_UNAVAIL, PROG_MISMATCH, PROC_UNAVAIL = 4, 1, 2, 3


@dataclass(frozen=True)
class Memory:
    """What the peer has registered under one handle."""

    base: int
    octets: bytearray
    readable: bool
    writable: bool

    def holds(self, offset: int, length: int) -> bool:
        """Whether these octets are all inside."""
        return self.base <= offset and offset + length <= self.base + len(self.octets)


@dataclass
class Discarded:
    """No answer, and the connection lives."""

    name = "discarded"


@dataclass
class Lost:
    """The connection ends. ``refused``: because the peer refuses access to its memory."""

    refused: bool = False
    name: str = "connection lost"


@dataclass
class Refused:
    """RDMA_ERROR, and nothing has been written to the peer's memory."""

    xid: int
    version: int
    code: int
    versions: tuple[int, int] = (0, 0)
    shortages: tuple[tuple[int, int, int], ...] = ()
    """CANT_REPLY: processed, segment and length that may be named."""

    @property
    def name(self) -> str:
        """In the words of the version."""
        if self.code == ERR_VERS:
            return "ERR_VERS"
        if self.version == 1:
            return "ERR_CHUNK"
        return {BAD_XDR: "BAD_XDR", CANT_REPLY: "CANT_REPLY", INVAL_PROC: "INVAL_PROC", INVAL_OPTION: "INVAL_OPTION"}[
            self.code
        ]


@dataclass
class Answered:
    """An RPC reply."""

    xid: int
    version: int
    procedure: int
    writes: tuple[tuple[Segment, ...], ...]
    reply: tuple[Segment, ...] | None
    payload: bytes
    inv_handle: int
    invalidated: frozenset[int | None]
    """The handles of which one must be invalidated, or None for none."""
    written: list[tuple[Segment, bytes]] = field(default_factory=list)
    any_status: bool = False
    """The last word is left open: which of several things that are wrong is named."""
    name: str = "reply"


Outcome = Discarded | Lost | Refused | Answered


class _Malformed(Exception):
    """The octets are not what XDR says."""


class _Reader:
    def __init__(self, octets: bytes, at: int = 0) -> None:
        self.octets, self.at = octets, at

    def take(self, length: int) -> bytes:
        taken = self.octets[self.at : self.at + length]
        if len(taken) != length:
            raise _Malformed
        self.at += length
        return taken

    def word(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def truth(self) -> bool:
        word = self.word()
        if word > 1:
            raise _Malformed  # RFC 4506 sections 4.4 and 4.19
        return word == 1

    def segment(self) -> Segment:
        return Segment(*struct.unpack(">IIQ", self.take(16)))

    def segments(self) -> list[Segment]:
        count = self.word()
        if count * 16 > len(self.octets):
            raise _Malformed
        return [self.segment() for _ in range(count)]


@dataclass
class _Call:
    """A transport header of a call, read."""

    xid: int
    version: int
    procedure: int
    inv_handle: int
    reads: list[tuple[int, Segment]]
    writes: list[list[Segment]]
    reply: list[Segment] | None
    inline: bytes

    @property
    def handles(self) -> set[int]:
        parts = [part for _, part in self.reads]
        for chunk in (*self.writes, self.reply or []):
            parts += chunk
        return {part.handle for part in parts}

    @property
    def reply_header(self) -> int:
        """Octets of the header of any reply: the Write list and the Reply chunk come back (section 4.3)."""
        size = 28 if self.version == 1 else 36
        size += sum(8 + 16 * len(chunk) for chunk in self.writes)
        return size + (4 + 16 * len(self.reply) if self.reply is not None else 0)


class Oracle:
    """One connection as the texts see it: which version it has settled on, and what was agreed on in private data."""

    def __init__(
        self, memory: Mapping[int, Memory], *, threshold: int, both_r: bool, settled: int | None = None
    ) -> None:
        self.memory = memory
        self.threshold = threshold
        """Octets that the server may send in version One (RFC 8797 section 4.2)."""
        self.both_r = both_r
        self.settled = settled
        self.suspects: set[int] = set()
        """XIDs of calls whose memory was refused: one sent again gets an error (RFC 8166 section 4.5.3)."""

    def limit(self, version: int) -> int:
        """Octets of the longest message that the server may send in a version."""
        if version == 1:
            return self.threshold
        # Draft, "Default Values", and 1024 octets before anything is agreed on.
        return 1024 if self.settled is None else max(4096, self.threshold)

    def prescribe(self, octets: bytes) -> list[Outcome]:
        """What may come of the message. The first outcome is the one to be expected."""
        if len(octets) > RECEIVE:
            return [Lost()]  # RFC 8166 section 3.3.2: no Receive takes it
        if len(octets) < SMALLEST:
            return [Discarded()]  # RFC 8166 section 4.5
        xid, version, _, procedure = struct.unpack_from(">4I", octets)
        if procedure == ERROR:
            return [Discarded()]  # RFC 8166 section 4.2.4; nothing of ours is waiting for an answer
        known = (1, 2) if self.settled is None else (self.settled,)
        if version not in known:
            # Draft, "Protocol Version Negotiation": the version agreed on is the only one; but RFC 8166 section 4.5.1
            # has the range tell what the server supports.
            return [Refused(xid, version, ERR_VERS, (1, 2))]
        if version == 2 and procedure == OPTIONAL:
            return [_option(octets, xid)]
        if version == 1 and procedure == DONE:
            return [Discarded()]  # RFC 8166 section 4.6.2
        if procedure > NOMSG:
            # RFC 8166 sections 4.5.2 and 4.6.1; draft, "Transport Errors".
            return [Refused(xid, version, ERR_CHUNK if version == 1 else INVAL_PROC)]
        malformed = Refused(xid, version, ERR_CHUNK if version == 1 else BAD_XDR)
        direction = int.from_bytes(octets[16:20], "big") if version == 2 else CALL
        if direction > REPLY:
            return [malformed]
        reader = _Reader(octets, 16 if version == 1 else 24)
        try:
            call = self._lists(reader, xid, version, procedure)
        except _Malformed:
            # Errors in the header of a reply are not reported (RFC 8166 section 4.5).
            return [malformed if direction == CALL else Discarded()]
        if version == 1 and procedure == MSG and call.inline[4:8] == b"\0\0\0\1":
            direction = REPLY  # RFC 8167 section 4.1
        if direction == REPLY:
            return [Discarded()]  # nothing of ours waits for it
        return self._call(call, malformed)

    @staticmethod
    def _lists(reader: _Reader, xid: int, version: int, procedure: int) -> _Call:
        inv_handle = int.from_bytes(reader.octets[20:24], "big") if version == 2 else 0
        reads, writes = [], []
        while reader.truth():
            reads.append((reader.word(), reader.segment()))
        while reader.truth():
            writes.append(reader.segments())
        reply = reader.segments() if reader.truth() else None
        return _Call(xid, version, procedure, inv_handle, reads, writes, reply, reader.octets[reader.at :])

    def _call(self, call: _Call, malformed: Refused) -> list[Outcome]:
        # RFC 8166 section 4.2.1; draft, "Message Direction".
        if call.procedure == MSG and not _is_call(call.inline, call.xid):
            return [malformed]
        threshold = self.limit(call.version)
        if call.reply_header > threshold:
            return [_no_room(call, ((0, 0, 0),))]
        again: list[Outcome] = [_no_room(call, ((0, 0, 0),))] if call.xid in self.suspects else []
        stream, chunks = call.inline, {}
        if call.reads or call.procedure == NOMSG:
            laid_out = _positions(call)
            if laid_out is None:
                return [malformed, *again]
            for position, parts in laid_out.items():
                if not all(self._accessible(part, "readable") for part in parts):
                    self.suspects.add(call.xid)
                    return [*again, Lost(refused=True)]
                chunks[position] = b"".join(self._fetch(part) for part in parts)
            if call.procedure == NOMSG:
                stream = chunks.pop(0)
                if not _is_call(stream, call.xid):
                    return [*again, malformed]
        for reply in _execute(stream, chunks):
            again += self._reply(call, reply, threshold)
        return again

    def _accessible(self, part: Segment, how: str) -> bool:
        known = self.memory.get(part.handle)
        return not part.length or (
            known is not None and bool(getattr(known, how)) and known.holds(part.offset, part.length)
        )

    def _fetch(self, part: Segment) -> bytes:
        if not part.length:
            return b""
        known = self.memory[part.handle]
        start = part.offset - known.base
        return bytes(known.octets[start : start + part.length])

    def _reply(self, call: _Call, reply: _Rpc, threshold: int) -> Iterable[Outcome]:
        """Where the parts of a reply go (RFC 8166 sections 3.4.6, 3.5.3 and 4.3; RFC 8267 section 6.4.1)."""
        shortages: list[tuple[int, int, int]] = []
        written: list[tuple[Segment, bytes]] = []
        returned: list[tuple[Segment, ...]] = []
        stream = b""
        items = 0
        for head, item in reply.parts:
            stream += head
            if item is None:
                continue
            if items < len(call.writes) and call.writes[items]:
                chunk = call.writes[items]
                filled = _fill(chunk, item, written)
                if filled is None:
                    before = sum(map(len, call.writes[:items]))
                    shortages += _shortages(chunk, len(item), before)
                returned.append(filled or ())
            else:
                if items < len(call.writes):
                    returned.append(())  # section 4.3.2.3
                stream += item + bytes(-len(item) & 3)
            items += 1
        returned += [_unused(chunk) for chunk in call.writes[items:]]
        procedure, payload = MSG, stream
        answered = None if call.reply is None else _unused(call.reply)
        if call.reply_header + len(stream) > threshold:
            procedure, payload = NOMSG, b""
            if call.reply is None:
                shortages.append((1, 0, len(stream)))
            else:
                answered = _fill(call.reply, stream, written)
                if answered is None:
                    before = sum(map(len, call.writes))
                    shortages += _shortages(call.reply, len(stream), before) or [(1, 0, len(stream))]
        if shortages:
            yield _no_room(call, tuple(shortages))
            return
        used = [part._replace(length=len(data)) for part, data in written]
        if not all(self._accessible(part, "writable") for part in used):
            self.suspects.add(call.xid)
            yield Lost(refused=True)
            return
        invalidated = self._invalidated(call)
        yield Answered(
            call.xid,
            call.version,
            procedure,
            tuple(returned),
            answered,
            payload,
            call.inv_handle,
            frozenset(invalidated),
            written,
            reply.any_status,
            reply.name,
        )
        if any(handle is not None and handle not in self.memory for handle in invalidated):
            # The requester has promised that what it shows may be invalidated (RFC 8797 section 4.1), which is untrue.
            self.suspects.add(call.xid)
            yield Lost()

    def _invalidated(self, call: _Call) -> set[int | None]:
        if call.version == 2:
            # Draft, "Remote Invalidation": that handle and no other; none at all if it is not the call's to name.
            return {call.inv_handle} if call.inv_handle and call.inv_handle in call.handles else {None}
        # RFC 8797 section 4.1: a handle of that very transaction, and only if both sides have said R.
        return {None, *call.handles} if self.both_r else {None}


def _no_room(call: _Call, shortages: tuple[tuple[int, int, int], ...]) -> Refused:
    if call.version == 1:
        return Refused(call.xid, 1, ERR_CHUNK)  # RFC 8166 section 4.5.3
    return Refused(call.xid, 2, CANT_REPLY, shortages=shortages)


def _option(octets: bytes, xid: int) -> Outcome:
    """Draft, "Protocol Extensibility": no extension is known here."""
    direction, _, length = struct.unpack_from(">3I", octets, 16)
    if direction > REPLY:
        return Refused(xid, 2, BAD_XDR)
    if direction == REPLY:
        return Discarded()  # an error travels from Responder to Requester
    return Refused(xid, 2, BAD_XDR if 28 + (length + 3 & ~3) > len(octets) else INVAL_OPTION)


def _is_call(stream: bytes, xid: int) -> bool:
    return len(stream) >= 8 and struct.unpack_from(">II", stream) == (xid, CALL)


def _positions(call: _Call) -> dict[int, list[Segment]] | None:
    """The Read chunks by position; None where they cannot be those of a call (RFC 8166 sections 3.4.5 and 3.5.3)."""
    found: dict[int, list[Segment]] = {}
    for position, part in call.reads:
        found.setdefault(position, []).append(part)
    lengths = {position: sum(part.length for part in parts) for position, parts in found.items()}
    if sum(lengths.values()) > MOST_READ or (0 in found) != (call.procedure == NOMSG):
        return None
    if call.procedure == NOMSG and lengths[0] < 8:
        return None
    end = lengths[0] if call.procedure == NOMSG else len(call.inline)
    behind = 0
    for position in sorted(found):
        if position == 0:
            continue
        rounded = lengths[position] + 3 & ~3
        if position & 3 or position < behind or position > end:
            return None
        behind, end = position + rounded, end + rounded
    return found


def _fill(chunk: Sequence[Segment], data: bytes, written: list[tuple[Segment, bytes]]) -> tuple[Segment, ...] | None:
    """RFC 8166 section 3.4.6: each segment full before the next. None if they do not suffice."""
    if sum(part.length for part in chunk) < len(data):
        return None
    returned = []
    for part in chunk:
        piece, data = data[: part.length], data[part.length :]
        if piece:
            written.append((part, piece))
        returned.append(part._replace(length=len(piece)))
    return tuple(returned)


def _unused(chunk: Sequence[Segment]) -> tuple[Segment, ...]:
    return tuple(part._replace(length=0) for part in chunk)


def _shortages(chunk: Sequence[Segment], needed: int, before: int) -> list[tuple[int, int, int]]:
    """Draft, "Transport Errors": any segment of the chunk, with the length that makes the chunk large enough."""
    missing = needed - sum(part.length for part in chunk)
    return [(1, before + index, part.length + missing) for index, part in enumerate(chunk, 1)]


@dataclass
class _Rpc:
    """An RPC reply: octets, each followed by a DDP-eligible item or by nothing."""

    parts: list[tuple[bytes, bytes | None]]
    name: str
    any_status: bool = False


def _accepted(xid: int, status: int, name: str, *more: int) -> _Rpc:
    return _Rpc([(struct.pack(f">{6 + len(more)}I", xid, 1, 0, 0, 0, status, *more), None)], name)


def _execute(stream: bytes, chunks: dict[int, bytes]) -> list[_Rpc]:
    """RFC 5531, and the echo program. ``chunks`` are by position in the unreduced stream."""
    xid = int.from_bytes(stream[:4], "big")
    garbage = _accepted(xid, GARBAGE_ARGS, "GARBAGE_ARGS")
    mismatch = _Rpc([(struct.pack(">6I", xid, 1, 1, 0, 2, 2), None)], "RPC_MISMATCH")
    if len(stream) >= 12 and stream[8:12] != b"\0\0\0\2":
        return [mismatch]
    if len(stream) < 40:
        return [garbage]
    program, version, procedure, flavor, length = struct.unpack_from(">5I", stream, 12)
    denied = _Rpc([(struct.pack(">5I", xid, 1, 1, 1, 0), None)], "AUTH_ERROR", any_status=True)
    if (flavor, length) != (0, 0):
        # Which of several things is wrong first is nobody's business; the echo program's callers are anonymous.
        return [denied, garbage]
    if stream[32:40] != bytes(8):
        return [denied]
    if program != echo.PROGRAM:
        return [_accepted(xid, PROG_UNAVAIL, "PROG_UNAVAIL")]
    if version != echo.VERSION:
        return [_accepted(xid, PROG_MISMATCH, "PROG_MISMATCH", echo.VERSION, echo.VERSION)]
    if procedure not in (echo.NULL, echo.ECHO, echo.ONCE):
        return [_accepted(xid, PROC_UNAVAIL, "PROC_UNAVAIL")]
    if chunks and min(chunks) < 40:
        return [garbage]  # RFC 8166 section 4.5.2: no argument is there
    success = struct.pack(">6I", xid, 1, 0, 0, 0, 0)
    if procedure == echo.NULL:
        return [_Rpc([(success, None)], "reply")]
    try:
        filler, items = _arguments(_Reader(stream, 40), chunks)
    except _Malformed:
        return [garbage]
    head = success + struct.pack(">I", filler) + b"f" * filler + bytes(-filler & 3) + struct.pack(">I", len(items))
    parts: list[tuple[bytes, bytes | None]] = []
    for kept, item in items:
        head += struct.pack(">II", 1, len(item)) if kept else bytes(4)
        if kept:
            parts.append((head, item))
            head = b""
    return [_Rpc([*parts, (head, None)], "reply")]


def _arguments(reader: _Reader, chunks: dict[int, bytes]) -> tuple[int, list[tuple[bool, bytes]]]:
    """The arguments of ECHO. Raises _Malformed, also for a chunk that is no item (RFC 8166 section 4.5.2)."""
    chunks = dict(chunks)
    removed = 0
    filler = reader.word()
    count = reader.word()
    if filler > echo.MOST_FILLER or count > echo.MOST_ITEMS:
        raise _Malformed
    items = []
    for _ in range(count):
        kept, length = reader.truth(), reader.word()
        if length > echo.LARGEST:
            raise _Malformed
        rounded = length + 3 & ~3
        chunk = chunks.pop(reader.at + removed, None)
        if chunk is None:
            items.append((kept, reader.take(rounded)[:length]))
        elif len(chunk) in (length, rounded):  # RFC 8166 section 3.4.5.2
            items.append((kept, chunk[:length]))
            removed += rounded
        else:
            raise _Malformed
    if chunks or reader.at != len(reader.octets):
        raise _Malformed
    return filler, items
