"""Messages out of packets: TCP put in order, and what iWARP or RPC records it carries.

Owns :class:`Dissector`; imports the packets and the constants of the frames. Reads captures of this server, which hold
one FPDU a packet, and those that other programs made of iWARP (without MPA markers) or of NFS over TCP. RFC 5040,
RFC 5041, RFC 5044, RFC 6581, RFC 5531 section 11.

A gap in a stream is said, and what begins with the packet behind it is read on, as far as it makes sense.
"""

from __future__ import annotations

import enum
import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from rpcrdma.capture import frames
from rpcrdma.capture.pcapng import LINKTYPE_ETHERNET, LINKTYPE_RAW, Packet

REQUEST_KEY, REPLY_KEY = b"MPA ID Req Frame", b"MPA ID Rep Frame"
_MPA_HEADER = 20
_MARKERS, _REJECTED, _ENHANCED = 0x80, 0x20, 0x10
_TERMINATE = 7
_TERMINATE_QUEUE = 2
_ETHERTYPES = {0x0800: 4, 0x86DD: 6}
_VLAN = 0x8100
_LINKS = {LINKTYPE_ETHERNET: (12, 14), 113: (14, 16), 276: (0, 20)}
"""By link type (Linux cooked captures are 113 and 276): where the Ethernet type stands, and where the packet begins."""
LARGEST_MESSAGE = 8 << 20
"""A message or record that claims more is not one."""
LARGEST_FLOW = 16 << 20


class What(enum.Enum):
    """Kinds of messages."""

    REQUEST = "connection request"
    ACCEPT = "connection accepted"
    REJECT = "connection rejected"
    SEND = "Send"
    WRITE = "RDMA Write"
    READ_REQUEST = "RDMA Read"
    READ_RESPONSE = "RDMA Read's data"
    TERMINATE = "Terminate"
    RECORD = "RPC record"
    CLOSED = "closed"
    GAP = "gap"
    """Octets, or events as the server counted them, are missing."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message."""

    what: What
    packet: int
    """The number of the packet that completed it, from 1."""
    time: int
    source: str
    destination: str
    inbound: bool
    """To who was called, the server."""
    data: bytes = b""
    """Octets there are."""
    length: int = 0
    """Octets there were; of a gap, 0 if nobody knows."""
    handle: int | None = None
    """Of Sends: what they invalidate. Of Writes and Read requests: the peer's memory."""
    offset: int = 0
    sink: int = 0
    """Of Reads: what names their sink."""
    comment: str = ""


@dataclass(slots=True)
class _Flow:
    """One direction of a TCP connection."""

    source: str
    destination: str
    inbound: bool | None = None
    expected: int | None = None
    """The next sequence number."""
    buffer: bytearray = field(default_factory=bytearray)
    position: int = 0
    """In the stream, of the buffer's first octet."""
    holes: list[tuple[int, int]] = field(default_factory=list)
    """Parts of the stream of which packets were cut."""
    kind: str = ""
    """``mpa`` once its frame has been seen, ``rpc``, or nothing yet."""
    pending: dict[tuple[int, int], list[bytes | int]] = field(default_factory=dict)
    """DDP messages that are not whole, by queue and steering tag: octets, and their number, handle and offset."""

    def take(self, length: int) -> tuple[bytes, int]:
        """The next octets, without those that are missing at their end, and how many there were."""
        end = self.position + length
        known = min([length] + [max(first - self.position, 0) for first, last in self.holes if first < end])
        data = bytes(self.buffer[:known])
        del self.buffer[:length]
        self.position = end
        self.holes = [(first, last) for first, last in self.holes if last > end]
        return data, length

    def restart(self) -> None:
        """Forget what cannot become whole."""
        self.position += len(self.buffer)
        self.buffer.clear()
        self.holes.clear()
        self.pending.clear()


class Dissector:
    """The connections of one capture."""

    def __init__(self) -> None:
        self.packets = 0
        self.strangers = 0
        """Packets that are no TCP, or of a connection whose beginning is missing."""
        self._flows: dict[tuple[bytes, bytes, int, int], _Flow] = {}

    def messages(self, packet: Packet) -> Iterator[Message]:
        """The messages that a packet completes."""
        self.packets += 1
        try:
            found = _tcp(packet)
        except (struct.error, IndexError, ValueError):
            found = None
        if found is None:
            self.strangers += 1
            return
        key, sequence, flags, data, length = found
        flow = self._flow(key)
        if flags & frames.SYN:
            flow.restart()
            flow.kind, flow.expected, flow.inbound = "", sequence + 1 & 0xFFFFFFFF, not flags & frames.ACK
            return
        yield from self._continue(flow, packet, sequence, data, length)
        yield from self._parse(flow, packet)
        if flags & frames.FIN:
            if flow.kind:
                yield self._message(flow, packet, What.CLOSED, comment=packet.comment)
            self._flows.pop(key, None)
            self._flows.pop((key[1], key[0], key[3], key[2]), None)

    def _flow(self, key: tuple[bytes, bytes, int, int]) -> _Flow:
        flow = self._flows.get(key)
        if flow is None:
            source, destination = (
                f"{f'[{host}]' if host.version == 6 else host}:{port}"
                for host, port in ((ipaddress.ip_address(key[0]), key[2]), (ipaddress.ip_address(key[1]), key[3]))
            )
            flow = self._flows[key] = _Flow(source, destination)
            other = self._flows.get((key[1], key[0], key[3], key[2]))
            if other is not None:
                flow.kind = other.kind
                flow.inbound = None if other.inbound is None else not other.inbound
        return flow

    def _continue(self, flow: _Flow, packet: Packet, sequence: int, data: bytes, length: int) -> Iterator[Message]:
        """Take a segment of ``length`` octets, of which ``data`` are there."""
        if packet.dropped:
            yield self._message(flow, packet, What.GAP, length=packet.dropped, comment="events lost in the capture")
        if flow.expected is None:
            flow.expected = sequence
        ahead = (sequence - flow.expected) & 0xFFFFFFFF
        if ahead >= 0x80000000:  # again, at least in part
            known = min(-ahead & 0xFFFFFFFF, length)
            data, length, sequence = data[known:], length - known, (sequence + known) & 0xFFFFFFFF
        elif ahead:
            if flow.kind:
                yield self._message(flow, packet, What.GAP, comment=f"{ahead} octets are missing")
            flow.restart()
        if length:
            flow.expected = (sequence + length) & 0xFFFFFFFF
            start = flow.position + len(flow.buffer)
            if len(data) < length:
                flow.holes.append((start + len(data), start + length))
            flow.buffer += data
            flow.buffer += bytes(length - len(data))

    def _parse(self, flow: _Flow, packet: Packet) -> Iterator[Message]:
        while flow.buffer:
            if not flow.kind:
                flow.kind = _kind_of(flow.buffer)
                if not flow.kind:
                    if len(flow.buffer) >= _MPA_HEADER:
                        self.strangers += 1
                        flow.restart()
                    return
                if flow.kind == "rpc" and flow.inbound is None:
                    flow.inbound = flow.buffer[8:12] == bytes(4)
            before = len(flow.buffer)
            step = self._record(flow, packet) if flow.kind == "rpc" else self._fpdu(flow, packet)
            if step is not None:
                yield step
            if len(flow.buffer) == before:
                return

    def _message(
        self, flow: _Flow, packet: Packet, what: What, data: bytes = b"", length: int = 0, handle: int | None = None,
        offset: int = 0, sink: int = 0, comment: str = "",
    ) -> Message:  # fmt: skip
        ends = flow.source, flow.destination
        return Message(
            what, self.packets, packet.time, *ends, bool(flow.inbound), data, length, handle, offset, sink, comment
        )

    def _record(self, flow: _Flow, packet: Packet) -> Message | None:
        """One RPC record; one of several fragments is put together in the buffer."""
        if len(flow.buffer) < 4:
            return None
        (mark,) = struct.unpack_from(">I", flow.buffer)
        length = mark & 0x7FFFFFFF
        if length > LARGEST_MESSAGE:
            flow.restart()
            flow.kind = ""
            return None
        if len(flow.buffer) < 4 + length:
            return None
        flow.take(4)
        data, size = flow.take(length)
        held = flow.pending.pop((0, 0), [b"", 0])
        assert isinstance(held[0], bytes)
        assert isinstance(held[1], int)
        data, size = held[0] + data, held[1] + size
        if not mark & 0x80000000 and size <= LARGEST_MESSAGE:
            flow.pending[0, 0] = [data, size]
            return None
        return self._message(flow, packet, What.RECORD, data, size)

    def _fpdu(self, flow: _Flow, packet: Packet) -> Message | None:
        if flow.buffer.startswith((REQUEST_KEY, REPLY_KEY)):
            return self._mpa(flow, packet)
        if len(flow.buffer) < 4:
            return None
        (size,) = struct.unpack_from(">H", flow.buffer)
        whole = 2 + size + (-(2 + size) & 3) + 4
        if len(flow.buffer) < whole:
            return None
        octets, _ = flow.take(whole)
        try:
            return self._ddp(flow, packet, octets[2 : 2 + size], size)
        except struct.error:
            return None  # cut within a header

    def _mpa(self, flow: _Flow, packet: Packet) -> Message | None:
        """A connection's request or reply; its private data without what RFC 6581 puts before it."""
        if len(flow.buffer) < _MPA_HEADER:
            return None
        flags, revision, length = struct.unpack_from(">BBH", flow.buffer, 16)
        if len(flow.buffer) < _MPA_HEADER + length:
            return None
        data, _ = flow.take(_MPA_HEADER + length)
        request = data.startswith(REQUEST_KEY)
        flow.inbound = request
        comment = packet.comment
        if flags & _MARKERS:
            comment += "; with markers, which are not understood here"
        private = data[_MPA_HEADER + (4 if flags & _ENHANCED and revision >= 2 else 0) :]
        what = What.REQUEST if request else What.REJECT if flags & _REJECTED else What.ACCEPT
        return self._message(flow, packet, what, private, len(private), comment=comment)

    def _ddp(self, flow: _Flow, packet: Packet, data: bytes, size: int) -> Message | None:
        """One DDP segment of ``size`` octets; a message when it was the last."""
        control, opcode = struct.unpack_from(">BB", data)
        opcode &= 0x0F
        if control & frames.TAGGED:
            tag, offset = struct.unpack_from(">IQ", data, 2)
            head, place, start = 14, (-1, tag), offset
        else:
            tag, queue, _, offset = struct.unpack_from(">IIII", data, 2)
            head, place, start = 18, (queue, 0), offset
        held = flow.pending.pop(place, [b"", 0, start])
        octets, length, first = held
        assert isinstance(octets, bytes)
        assert isinstance(length, int)
        assert isinstance(first, int)
        if len(octets) == length:
            octets += data[head:]
        length += size - head
        if not control & frames.LAST:
            if length <= LARGEST_MESSAGE:
                flow.pending[place] = [octets, length, first]
            return None
        if control & frames.TAGGED:
            if opcode == frames.RDMA_READ_RESPONSE:
                return self._message(flow, packet, What.READ_RESPONSE, octets, length, sink=tag)
            return self._message(flow, packet, What.WRITE, octets, length, tag, first)
        if opcode == frames.RDMA_READ_REQUEST:
            sink, _, wanted, handle, source = struct.unpack_from(">IQIIQ", octets)
            return self._message(flow, packet, What.READ_REQUEST, b"", wanted, handle, source, sink)
        if opcode == _TERMINATE:
            return self._message(flow, packet, What.TERMINATE, octets, length)
        # Send, with and without Solicited Event, with and without Invalidate (RFC 5040 section 4.3).
        return self._message(flow, packet, What.SEND, octets, length, tag if opcode in (4, 6) else None)


def _kind_of(octets: bytearray) -> str:
    """What a stream is that begins like this; nothing while that is not certain."""
    if octets.startswith((REQUEST_KEY, REPLY_KEY)):
        return "mpa"
    if len(octets) >= 12:
        mark, _, direction = struct.unpack_from(">III", octets)
        if direction <= 1 and 12 <= mark & 0x7FFFFFFF <= LARGEST_MESSAGE:
            return "rpc"
    return ""


def _tcp(packet: Packet) -> tuple[tuple[bytes, bytes, int, int], int, int, bytes, int] | None:
    """Addresses and ports, sequence number, flags, data, and the octets that there should be; None for no TCP."""
    data, length = packet.data, packet.length
    if packet.link_type == LINKTYPE_RAW:
        version = data[0] >> 4
    elif packet.link_type in _LINKS:
        where, begin = _LINKS[packet.link_type]
        (kind,) = struct.unpack_from(">H", data, where)
        if kind == _VLAN:
            (kind,) = struct.unpack_from(">H", data, where + 4)
            begin += 4
        version = _ETHERTYPES.get(kind, 0)
        data, length = data[begin:], length - begin
    else:
        return None
    if version == 4:
        head, size, protocol = (data[0] & 15) * 4, struct.unpack_from(">H", data, 2)[0], data[9]
        source, destination = data[12:16], data[16:20]
        if struct.unpack_from(">H", data, 6)[0] & 0x3FFF:
            return None  # a fragment
    elif version == 6:
        head, size, protocol = 40, 40 + struct.unpack_from(">H", data, 4)[0], data[6]
        source, destination = data[8:24], data[24:40]
    else:
        return None
    if protocol != 6:
        return None
    if size <= head:
        size = length  # segmentation offload on the host that captured
    from_port, to_port, sequence = struct.unpack_from(">HHI", data, head)
    begin = head + (data[head + 12] >> 4) * 4
    if not head + 20 <= begin <= size:
        return None  # lengths that contradict each other
    content = data[begin:size]
    return (source, destination, from_port, to_port), sequence, data[head + 13], content, size - begin
