"""Counts RDMA operations on the wire in a capture: opcodes of RoCE v2 (UDP port 4791) and of iWARP (over TCP).

The device's own counters do not tell Writes from Reads; the packets do. Owns the formats: pcap, IBTA's base transport
header, MPA (RFC 5044), DDP (RFC 5041) and RDMAP (RFC 5040).
"""

from __future__ import annotations

import collections
import struct
from collections.abc import Iterator
from pathlib import Path

ROCE_PORT = 4791
Counts = collections.Counter[tuple[str, str]]
"""How often each (source address, operation) was seen. An operation counts once, not per packet."""

# Base transport header of a reliable connection: the opcodes that end an operation.
_ROCE = {
    0x02: "Send",
    0x04: "Send",
    0x08: "Write",
    0x0A: "Write",
    0x0C: "Read Request",
    0x0F: "Read Response",
    0x10: "Read Response",
    0x16: "Send with Invalidate",
    0x17: "Send with Invalidate",
}
# RDMAP (RFC 5040 section 4.1).
_RDMAP = {
    0: "Write",
    1: "Read Request",
    2: "Read Response",
    3: "Send",
    4: "Send with Invalidate",
    5: "Send",
    6: "Send with Invalidate",
    7: "Terminate",
}


def _packets(path: Path) -> Iterator[bytes]:
    """The Ethernet frames of a pcap file."""
    data = path.read_bytes()
    order = {b"\xd4\xc3\xb2\xa1": "<", b"\xa1\xb2\xc3\xd4": ">"}[data[:4]]
    assert struct.unpack_from(order + "I", data, 20)[0] == 1, "Ethernet"
    at = 24
    while at + 16 <= len(data):
        captured, original = struct.unpack_from(order + "II", data, at + 8)
        assert captured == original, "the capture cut a packet off"
        yield data[at + 16 : at + 16 + captured]
        at += 16 + captured


def _ipv4(frame: bytes, protocol: int) -> tuple[str, bytes] | None:
    """(source address, payload) of an IPv4 packet of ``protocol``."""
    if frame[12:14] != b"\x08\x00" or frame[23] != protocol:
        return None
    header = (frame[14] & 15) * 4
    length = struct.unpack_from(">H", frame, 16)[0]
    return ".".join(map(str, frame[26:30])), frame[14 + header : 14 + length]


def roce_operations(path: Path) -> Counts:
    """The operations between RoCE v2 queue pairs. (A retransmitted packet counts again.)"""
    counts: Counts = collections.Counter()
    for frame in _packets(path):
        datagram = _ipv4(frame, 17)
        if datagram is None or struct.unpack_from(">H", datagram[1], 2)[0] != ROCE_PORT:
            continue
        opcode = datagram[1][8]
        if opcode in _ROCE:
            counts[datagram[0], _ROCE[opcode]] += 1
    return counts


def iwarp_operations(path: Path, port: int) -> Counts:
    """The operations on iWARP connections whose server's port is ``port``.

    The capture must begin while the connections are idle, so that each stream's first segment begins with an FPDU.
    Segments are put in order; an FPDU that the capture did not see whole ends the count of its stream.
    """
    streams: dict[tuple[str, int, int], dict[int, bytes]] = collections.defaultdict(dict)
    for frame in _packets(path):
        segment = _ipv4(frame, 6)
        if segment is None:
            continue
        source, tcp = segment
        from_port, to_port, sequence = struct.unpack_from(">HHI", tcp)
        payload = tcp[(tcp[12] >> 4) * 4 :]
        if payload and port in (from_port, to_port):
            known = streams[source, from_port, to_port]
            known[sequence] = max(known.get(sequence, b""), payload, key=len)
    counts: Counts = collections.Counter()
    for (source, _, _), segments in streams.items():
        for operation in _operations(_joined(segments)):
            counts[source, operation] += 1
    return counts


def _joined(segments: dict[int, bytes]) -> bytes:
    """The octets of a stream from its first segment to the first gap."""
    first = min(segments, key=lambda sequence: (sequence - next(iter(segments))) & 0xFFFFFFFF)
    stream = bytearray()
    for sequence in sorted(segments, key=lambda sequence: (sequence - first) & 0xFFFFFFFF):
        at = (sequence - first) & 0xFFFFFFFF
        if at > len(stream):
            break
        stream[at : at + len(segments[sequence])] = segments[sequence]
    return bytes(stream)


def _operations(stream: bytes) -> Iterator[str]:
    """The RDMAP operations of a stream of FPDUs: one for each whose last segment (DDP's L flag) is there."""
    at = 0
    while at + 4 <= len(stream):
        (length,) = struct.unpack_from(">H", stream, at)
        size = (2 + length + 3 & ~3) + 4
        if at + size > len(stream):
            return
        if stream[at + 2] & 0x40:
            yield _RDMAP[stream[at + 3] & 15]
        at += size
