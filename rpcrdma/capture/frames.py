"""Packets made of events: what the traffic would look like over iWARP, or over TCP, whatever carried it.

Owns :class:`Framer`; imports the events. RFC 5044 (MPA), RFC 5041 (DDP), RFC 5040 (RDMAP), RFC 5531 section 11.

The provider's interface gives messages, RDMA Writes and RDMA Reads: not packets. iWARP is the form in which they are
shown, on every provider, since it needs nothing that they do not have: no sizes of packets, no acknowledgements. Each
connection is a TCP connection between its real addresses; every packet is one segment and holds one FPDU, without CRC.
Events of TCP connections are their RPC records. TCP's sequence numbers count what is shown.
"""

from __future__ import annotations

import ipaddress
import itertools
import struct
from collections.abc import Iterator
from typing import NamedTuple

from rpcrdma.capture.events import Connection, Event, Kind

LARGEST_PAYLOAD = 61440
"""Of an FPDU or a piece of a record: packet and headers stay below 64 KiB."""

RDMA_WRITE, RDMA_READ_REQUEST, RDMA_READ_RESPONSE, SEND, SEND_INVALIDATE = 0, 1, 2, 3, 4
TAGGED, LAST, DDP_VERSION, RDMAP_VERSION = 0x80, 0x40, 0x01, 0x40
SEND_QUEUE, READ_QUEUE = 0, 1
FIN, SYN, PUSH, ACK = 0x01, 0x02, 0x08, 0x10
_REQUEST_KEY, _REPLY_KEY = b"MPA ID Req Frame", b"MPA ID Rep Frame"
_REJECTED = 0x20
_TCP_HEADER = 20


class Frame(NamedTuple):
    """One packet."""

    provider: str
    time: int
    inbound: bool
    """From the client."""
    data: bytes
    length: int
    """Octets it would have if nothing had been cut."""
    comment: str = ""
    lost: int = 0
    """Events of this connection that were lost before it."""


class _Pipe:
    """One direction of a TCP connection."""

    __slots__ = ("destination", "destination_port", "family", "identifier", "sequence", "source", "source_port")

    def __init__(self, source: str, source_port: int, destination: str, destination_port: int) -> None:
        first, second = ipaddress.ip_address(source), ipaddress.ip_address(destination)
        if first.version != second.version:
            raise ValueError(f"{source} and {destination} are of two families")
        self.family = first.version
        self.source, self.destination = first.packed, second.packed
        self.source_port, self.destination_port = source_port, destination_port
        self.sequence = 1
        self.identifier = 0

    def packet(self, data: bytes, length: int, acknowledged: int, flags: int = ACK | PUSH) -> tuple[bytes, int]:
        """An IP packet of a segment whose data are ``length`` octets, some of which may be missing; its real size."""
        whole = _TCP_HEADER + length
        tcp = struct.pack(
            ">HHIIBBHHH", self.source_port, self.destination_port, self.sequence, acknowledged,
            _TCP_HEADER << 2, flags, 0xFFFF, 0, 0,
        )  # fmt: skip
        if len(data) == length:
            pseudo = self.source + self.destination + struct.pack(">II", 6, whole)
            tcp = tcp[:16] + struct.pack(">H", checksum(pseudo + tcp + data)) + tcp[18:]
        self.sequence = (self.sequence + length + bool(flags & (FIN | SYN))) & 0xFFFFFFFF
        self.identifier = (self.identifier + 1) & 0xFFFF
        if self.family == 6:
            head = struct.pack(">IHBB", 6 << 28, whole, 6, 64) + self.source + self.destination
        else:
            size = 20 + whole
            head = struct.pack(">BBHHHBBH", 0x45, 0, size, self.identifier, 0x4000, 64, 6, 0)
            head += self.source + self.destination
            head = head[:10] + struct.pack(">H", checksum(head)) + head[12:]
        return head + tcp + data, len(head) + whole


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    if len(data) & 1:
        data += b"\0"
    # Modulo 2^16 - 1 a number is the sum of its 16-bit digits with their carries.
    number = int.from_bytes(data, "big")
    total = number % 0xFFFF
    if number and not total:
        total = 0xFFFF
    return 0xFFFF - total


class Shown:
    """A connection that packets are made of."""

    def __init__(self, connection: Connection) -> None:
        here, there = connection, (connection.peer_address, connection.peer_port)
        self.provider = connection.provider
        self.inward = _Pipe(*there, here.local_address, here.local_port)
        self.outward = _Pipe(here.local_address, here.local_port, *there)
        self.messages = {SEND_QUEUE: [0, 0], READ_QUEUE: [0, 0]}
        """Message sequence numbers by queue, inward and outward."""
        self.lost = 0
        """Events that no frame has told of."""

    def segment(
        self, time: int, inward: bool, data: bytes, length: int, comment: str = "", flags: int = ACK | PUSH
    ) -> Frame:
        """The next TCP segment of a direction; ``length`` is what ``data`` were before they were cut."""
        pipe, other = (self.inward, self.outward) if inward else (self.outward, self.inward)
        packet, whole = pipe.packet(data, length, other.sequence, flags)
        lost, self.lost = self.lost, 0
        return Frame(self.provider, time, inward, packet, whole, comment, lost)

    def untagged(self, queue: int, inward: bool) -> int:
        """The next message sequence number (RFC 5041 section 5.3: they begin at 1)."""
        numbers = self.messages[queue]
        numbers[not inward] = (numbers[not inward] + 1) & 0xFFFFFFFF
        return numbers[not inward]


class Framer:
    """Packets of one capture."""

    def __init__(self) -> None:
        self._shown: dict[int, Shown] = {}
        self.lost: dict[str, int] = {}
        """Lost events by provider; of connections that nobody knows, by the empty name."""

    def frames(self, event: Event) -> Iterator[Frame]:
        """The packets of one event. Those of a connection that was not announced are left out."""
        if event.kind is Kind.OPENED:
            yield from self._opened(event)
            return
        shown = self._shown.get(event.connection)
        if event.kind is Kind.LOST:
            name = "" if shown is None else shown.provider
            self.lost[name] = self.lost.get(name, 0) + event.length
            if shown is not None:
                shown.lost += event.length
        elif shown is None:
            return
        elif event.kind is Kind.CLOSED:
            del self._shown[event.connection]
            yield shown.segment(event.time, False, b"", 0, event.data.decode(errors="replace"), FIN | ACK)
        elif event.kind in (Kind.RECORD_IN, Kind.RECORD_OUT):
            yield from self._record(shown, event)
        elif event.kind in (Kind.SEND_IN, Kind.SEND_OUT):
            yield from self._send(shown, event)
        else:
            yield from self._tagged(shown, event)

    def _opened(self, event: Event) -> Iterator[Frame]:
        connection = Connection.decode(event.data)
        shown = Shown(connection)
        if not connection.rejected:
            self._shown[event.connection] = shown
        if connection.provider == "tcp":
            return
        for inward, key, data in (
            (True, _REQUEST_KEY, connection.peer_data),
            (False, _REPLY_KEY, connection.local_data),
        ):
            private = bytes.fromhex(data)
            flags = _REJECTED if connection.rejected and not inward else 0
            # Revision 1 has nothing before the private data (RFC 5044 section 7.1.1).
            frame = key + struct.pack(">BBH", flags, 1, len(private)) + private
            yield shown.segment(event.time, inward, frame, len(frame), connection.note if inward else "")

    def _record(self, shown: Shown, event: Event) -> Iterator[Frame]:
        # RFC 5531 section 11: the mark, with the bit of the last fragment.
        data = struct.pack(">I", 0x80000000 | event.length) + event.data
        for start, piece, length, _ in _cut(data, event.length + 4):
            del start
            yield shown.segment(event.time, event.kind is Kind.RECORD_IN, piece, length)

    def _send(self, shown: Shown, event: Event) -> Iterator[Frame]:
        inward = event.kind is Kind.SEND_IN
        opcode = SEND if event.handle is None else SEND_INVALIDATE
        number = shown.untagged(SEND_QUEUE, inward)
        for start, piece, length, last in _cut(event.data, event.length):
            head = struct.pack(
                ">BBIIII",
                LAST * last | DDP_VERSION,
                RDMAP_VERSION | opcode,
                event.handle or 0,
                SEND_QUEUE,
                number,
                start,
            )
            yield _fpdu(shown, event.time, inward, head, piece, length)

    def _tagged(self, shown: Shown, event: Event) -> Iterator[Frame]:
        if event.kind is Kind.READ_OUT:
            number = shown.untagged(READ_QUEUE, False)
            head = struct.pack(
                ">BBIIII", LAST | DDP_VERSION, RDMAP_VERSION | RDMA_READ_REQUEST, 0, READ_QUEUE, number, 0
            )
            # The sink is memory of the server's that nobody names; the Read's number stands for it.
            body = struct.pack(">IQIIQ", event.number, 0, event.length, event.handle or 0, event.offset)
            yield _fpdu(shown, event.time, False, head, body, len(body))
            return
        inward = event.kind is Kind.READ_IN
        opcode, tag, base = (
            (RDMA_READ_RESPONSE, event.number, 0) if inward else (RDMA_WRITE, event.handle or 0, event.offset)
        )
        for start, piece, length, last in _cut(event.data, event.length):
            offset = (base + start) & 0xFFFFFFFFFFFFFFFF
            head = struct.pack(">BBIQ", TAGGED | LAST * last | DDP_VERSION, RDMAP_VERSION | opcode, tag, offset)
            yield _fpdu(shown, event.time, inward, head, piece, length)


def _cut(data: bytes, length: int) -> Iterator[tuple[int, bytes, int, bool]]:
    """Pieces of data of which ``length`` octets should be there: start, octets, their real number, the last one."""
    for start in itertools.count(0, LARGEST_PAYLOAD):
        left = length - start
        yield start, data[start : start + LARGEST_PAYLOAD], min(left, LARGEST_PAYLOAD), left <= LARGEST_PAYLOAD
        if left <= LARGEST_PAYLOAD:
            return


def _fpdu(shown: Shown, time: int, inward: bool, head: bytes, data: bytes, length: int) -> Frame:
    """One FPDU (RFC 5044 section 4): length, ULPDU, padding, and a CRC field that nobody agreed to use."""
    size = len(head) + length
    start = struct.pack(">H", size) + head
    whole = 2 + size + (-(2 + size) & 3) + 4
    octets = start + data
    if len(data) == length:
        octets += bytes(whole - len(octets))
    return shown.segment(time, inward, octets, whole)
