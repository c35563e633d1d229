"""A conforming receiver of an iWARP stream (RFC 5040, 5041, 5044), in plain Python.

Tests compare the connection under test with it. :class:`Model` gets the same octets, in the same cuts, and holds
the expected result. A violation is ``(first octet, code)`` of the Terminate that answers it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from rpcrdma.verbs.softiwarp.crc import crc32c

WRITE, READ_REQUEST, READ_RESPONSE, SEND, SEND_INVALIDATE, SEND_SE, SEND_SE_INVALIDATE, TERMINATE = range(8)

NO_STAG, BOUNDS, WRAPS, TAGGED_VERSION = (0x11, 0x00), (0x11, 0x01), (0x11, 0x03), (0x11, 0x04)
QUEUE, NO_BUFFER, MSN, OFFSET, TOO_LONG, UNTAGGED_VERSION = ((0x12, code) for code in range(1, 7))
RDMAP_VERSION, OPCODE, CANNOT_INVALIDATE, UNSPECIFIED = (0x02, 0x05), (0x02, 0x06), (0x02, 0x09), (0x02, 0xFF)
BAD_CRC = (0x20, 0x02)
WITHDRAWN = (0x01, 0x00)
WHOLE = 1 << 64


class Violation(Exception):
    """The peer broke a rule."""


class Terminated(Exception):
    """The peer sent a Terminate."""


@dataclass
class Region:
    """Memory exposed to the peer."""

    handle: int
    base: int
    data: bytearray
    readable: bool
    writable: bool
    valid: bool = True


@dataclass
class Read:
    """An RDMA Read of ours that is outstanding."""

    sink: int
    data: bytearray


@dataclass
class Response:
    """The answer that a peer's RDMA Read is to get."""

    region: Region | None
    stag: int
    offset: int
    start: int
    size: int

    def data(self) -> bytes:
        """What is read when the answer leaves."""
        return b"" if self.region is None else bytes(self.region.data[self.start : self.start + self.size])


@dataclass
class Model:
    """One connection."""

    crc: bool
    inbound_reads: int
    expect_rtr: bool
    enabled: bool
    posted: list[int] = field(default_factory=list)
    regions: dict[int, Region] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    messages: list[tuple[bytes, int | None]] = field(default_factory=list)
    answered: int = 0
    responses: list[Response] = field(default_factory=list)
    sent: list[tuple[int, int, bytes]] = field(default_factory=list)
    violation: tuple[int, int] | None = None
    terminated: bool = False
    stopped: bool = False

    def __post_init__(self) -> None:
        self._buffer = b""
        self._send_msn = self._read_msn = 1
        self._current: bytearray | None = None
        self._capacity = 0
        self._write: tuple[int, int] | None = None
        self.read_placed = 0
        self._place: tuple[bytearray, int, Region | None] | None = None
        self._left = 0
        self._trailer = 0
        self._header = b""
        self._opcode = 0
        self._last = False
        self._payload = 0
        self._scratch = bytearray()

    @property
    def within(self) -> bool:
        """Whether an FPDU is unfinished."""
        return bool(self._buffer or self._left or self._trailer)

    def feed(self, data: bytes) -> None:
        """Take what one wake-up finds, and then send what there is to send."""
        if self.stopped:
            return
        self._buffer += data
        try:
            while self._step():
                pass
        except Violation as violation:
            self.violation = violation.args[0]
            self.stopped = True
            return
        except Terminated:
            self.terminated = self.stopped = True
            return
        self.flush()

    def flush(self) -> None:
        """Read Responses leave in order, up to one whose source was withdrawn."""
        if not self.enabled:
            return
        for response in self.responses:
            if response.region is not None and not response.region.valid:
                self.violation = WITHDRAWN
                self.stopped = True
                return
            self.sent.append((response.stag, response.offset, response.data()))
        self.responses.clear()

    def _step(self) -> bool:
        if self._left:
            return self._take_payload()
        if self._trailer:
            taken = min(self._trailer, len(self._buffer))
            self._buffer = self._buffer[taken:]
            self._trailer -= taken
            if not self._trailer:
                self._finish()
            return bool(self._buffer)
        return self._take_header()

    def _take_payload(self) -> bool:
        if not self._buffer:
            return False
        assert self._place is not None
        target, at, region = self._place
        if region is not None and not region.valid:
            raise Violation(NO_STAG)
        piece = self._buffer[: self._left]
        target[at : at + len(piece)] = piece
        self._place = (target, at + len(piece), region)
        self._left -= len(piece)
        self._buffer = self._buffer[len(piece) :]
        return True

    def _take_header(self) -> bool:
        data = self._buffer
        if len(data) < 4:
            return False
        ulpdu = int.from_bytes(data[:2], "big")
        framed = (ulpdu + 5) & ~3
        if self.crc:
            if len(data) < framed + 4:
                return False
            if struct.unpack_from("<I", data, framed)[0] != crc32c(data[:framed]):
                raise Violation(BAD_CRC)
        tagged, opcode = data[2] >= 0x80, data[3] & 0x0F
        size = 16 if tagged else 20
        if not tagged and opcode == READ_REQUEST and ulpdu + 2 >= 48:
            size = 48
        if ulpdu + 2 < size:
            raise Violation(UNSPECIFIED)
        if len(data) < size:
            return False
        self.enabled = True
        self._header, self._buffer = data[:size], data[size:]
        self._opcode, self._last = opcode, bool(data[2] & 0x40)
        self._payload = ulpdu + 2 - size
        if data[2] & 3 != 1:
            raise Violation(TAGGED_VERSION if tagged else UNTAGGED_VERSION)
        if data[3] & 0xC0 != 0x40:
            raise Violation(RDMAP_VERSION)
        if opcode > TERMINATE or tagged != (opcode in (WRITE, READ_RESPONSE)):
            raise Violation(OPCODE)
        self._left = self._payload
        self._trailer = framed + 4 - (ulpdu + 2)
        self._place = None
        begin = {
            WRITE: self._begin_write,
            READ_RESPONSE: self._begin_response,
            READ_REQUEST: self._begin_request,
            TERMINATE: self._begin_terminate,
        }.get(opcode, self._begin_send)
        begin()
        return True

    def _tagged(self) -> tuple[int, int]:
        stag, offset = struct.unpack_from(">IQ", self._header, 4)
        return stag, offset

    def _untagged(self) -> tuple[int, int, int]:
        queue, msn, offset = struct.unpack_from(">III", self._header, 8)
        return queue, msn, offset

    def _begin_send(self) -> None:
        queue, msn, offset = self._untagged()
        if queue != 0:
            raise Violation(QUEUE)
        if msn != self._send_msn:
            raise Violation(MSN)
        if self._current is None:
            if self.expect_rtr and not self._payload and self._last and self._opcode == SEND:
                return
            if not self.posted:
                raise Violation(NO_BUFFER)
            self._capacity = self.posted.pop(0)
            self._current = bytearray()
        if offset != len(self._current):
            raise Violation(OFFSET)
        if self._payload > self._capacity - len(self._current):
            raise Violation(TOO_LONG)
        self._place = (self._current, len(self._current), None)

    def _begin_write(self) -> None:
        stag, offset = self._tagged()
        if not self._payload:
            if self._last:
                self._write = None
            return
        if self._write is not None and stag != self._write[0]:
            raise Violation(NO_STAG)
        if self._write is not None and offset != self._write[1]:
            raise Violation(BOUNDS)
        region = self.regions.get(stag)
        if region is None or not region.valid or not region.writable:
            raise Violation(NO_STAG)
        if offset + self._payload >= WHOLE:
            raise Violation(WRAPS)
        if not region.base <= offset <= offset + self._payload <= region.base + len(region.data):
            raise Violation(BOUNDS)
        self._place = (region.data, offset - region.base, region)
        self._write = None if self._last else (stag, offset + self._payload)

    def _begin_response(self) -> None:
        if not self.reads:
            raise Violation(NO_STAG if self._payload else OPCODE)
        read = self.reads[0]
        stag, offset = self._tagged()
        if self._payload:
            if stag != read.sink:
                raise Violation(NO_STAG)
            if offset != self.read_placed or self._payload > len(read.data) - offset:
                raise Violation(BOUNDS)
            self._place = (read.data, offset, None)
        if self._last and self.read_placed + self._payload != len(read.data):
            raise Violation(BOUNDS)

    def _begin_request(self) -> None:
        queue, msn, offset = self._untagged()
        if queue != 1:
            raise Violation(QUEUE)
        if msn != self._read_msn:
            raise Violation(MSN)
        if offset:
            raise Violation(OFFSET)
        if len(self._header) != 48:
            raise Violation(UNSPECIFIED)
        if self._payload or not self._last:
            raise Violation(TOO_LONG)

    def _begin_terminate(self) -> None:
        self._scratch = bytearray()
        self._place = (self._scratch, 0, None)

    def _finish(self) -> None:
        if self._opcode == READ_RESPONSE:
            self.read_placed += self._payload
            if self._last:
                self.reads.pop(0)
                self.answered += 1
                self.read_placed = 0
        elif self._opcode == READ_REQUEST:
            self._answer()
        elif self._opcode == TERMINATE:
            raise Terminated
        elif self._opcode != WRITE and self._last:
            self._deliver()

    def _answer(self) -> None:
        stag, offset, size, source, start = struct.unpack_from(">IQIIQ", self._header, 20)
        self._read_msn += 1
        region, allowed = None, self.inbound_reads
        if not size:
            allowed = max(allowed, 1)
        else:
            region = self.regions.get(source)
            if region is None or not region.valid:
                raise Violation((0x01, 0x00))
            if not region.readable:
                raise Violation((0x01, 0x02))
            if start + size >= WHOLE:
                raise Violation((0x01, 0x04))
            if not region.base <= start <= start + size <= region.base + len(region.data):
                raise Violation((0x01, 0x01))
            start -= region.base
        if len(self.responses) >= allowed:
            raise Violation(NO_BUFFER)
        self.responses.append(Response(region, stag, offset, start, size))

    def _deliver(self) -> None:
        self._send_msn += 1
        current, self._current = self._current, None
        self.expect_rtr = False
        if current is None:
            return
        invalidated = None
        if self._opcode in (SEND_INVALIDATE, SEND_SE_INVALIDATE):
            invalidated = int.from_bytes(self._header[4:8], "big")
            region = self.regions.get(invalidated)
            if region is None or not region.valid:
                raise Violation(CANNOT_INVALIDATE)
            region.valid = False
        self.messages.append((bytes(current), invalidated))
