"""pcapng files (draft-ietf-opsawg-pcapng): the four kinds of blocks that a capture has, written and read.

Owns the format; imports nothing of the project. Written big-endian with nanoseconds; read in either order of octets and
any resolution, since other programs' files are read too, among them those of the older format (pcap), tcpdump's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

LINKTYPE_ETHERNET = 1
LINKTYPE_RAW = 101
"""IPv4 or IPv6 without anything before it."""

SECTION, INTERFACE, ENHANCED, STATISTICS = 0x0A0D0D0A, 1, 6, 5
_MAGIC = 0x1A2B3C4D
_END, _COMMENT = 0, 1
_IF_NAME, _IF_DESCRIPTION, _IF_TSRESOL = 2, 3, 9
_EPB_FLAGS, _EPB_DROPCOUNT = 2, 4
_ISB_STARTTIME, _ISB_ENDTIME, _ISB_IFRECV, _ISB_IFDROP = 2, 3, 4, 5
INBOUND, OUTBOUND = 1, 2
_LARGEST_BLOCK = 16 << 20
_PCAP = {(order, units): magic for order in "<>" for units, magic in ((1000, 0xA1B2C3D4), (1, 0xA1B23C4D))}
"""pcap's first word by order of octets and nanoseconds of its fractions."""


class FormatError(ValueError):
    """The file is no pcapng, or damaged."""


def _option(code: int, value: bytes) -> bytes:
    return struct.pack(">HH", code, len(value)) + value + bytes(-len(value) & 3)


def _block(kind: int, body: bytes) -> bytes:
    length = 12 + len(body)
    return struct.pack(">II", kind, length) + body + struct.pack(">I", length)


def section(application: str, comment: str) -> bytes:
    """A Section Header Block; the section's length is left open."""
    options = _option(_COMMENT, comment.encode()) + _option(4, application.encode()) + _option(_END, b"")
    return _block(SECTION, struct.pack(">IHHq", _MAGIC, 1, 0, -1) + options)


def interface(name: str, description: str, snaplen: int) -> bytes:
    """An Interface Description Block of link type RAW; ``snaplen`` 0 is none."""
    options = _option(_IF_NAME, name.encode()) + _option(_IF_DESCRIPTION, description.encode())
    options += _option(_IF_TSRESOL, b"\x09") + _option(_END, b"")
    return _block(INTERFACE, struct.pack(">HHI", LINKTYPE_RAW, 0, snaplen) + options)


def packet(
    number: int, time: int, data: bytes, length: int, direction: int = 0, dropped: int = 0, comment: str = ""
) -> bytes:
    """An Enhanced Packet Block on interface ``number``; ``dropped`` packets were lost before it."""
    options = _option(_COMMENT, comment.encode()) if comment else b""
    if direction:
        options += _option(_EPB_FLAGS, struct.pack(">I", direction))
    if dropped:
        options += _option(_EPB_DROPCOUNT, struct.pack(">Q", dropped))
    if options:
        options += _option(_END, b"")
    head = struct.pack(">IIIII", number, time >> 32, time & 0xFFFFFFFF, len(data), length)
    return _block(ENHANCED, head + data + bytes(-len(data) & 3) + options)


def statistics(number: int, begun: int, ended: int, received: int, dropped: int) -> bytes:
    """An Interface Statistics Block."""

    def two_words(value: int) -> bytes:
        return struct.pack(">II", value >> 32, value & 0xFFFFFFFF)

    options = _option(_ISB_STARTTIME, two_words(begun)) + _option(_ISB_ENDTIME, two_words(ended))
    options += _option(_ISB_IFRECV, struct.pack(">Q", received)) + _option(_ISB_IFDROP, struct.pack(">Q", dropped))
    return _block(
        STATISTICS, struct.pack(">III", number, ended >> 32, ended & 0xFFFFFFFF) + options + _option(_END, b"")
    )


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet that was read."""

    interface: str
    link_type: int
    time: int
    """Nanoseconds."""
    data: bytes
    length: int
    """Octets on the wire."""
    dropped: int = 0
    comment: str = ""


@dataclass(slots=True)
class _Interface:
    name: str
    link_type: int
    units: float


def read(file: BinaryIO) -> Iterator[Packet]:
    """The packets of a file. Raises FormatError."""
    head = file.read(8)
    old = next(
        ((order, units) for order, units in _PCAP if struct.pack(order + "I", _PCAP[order, units]) == head[:4]), None
    )
    yield from _read_blocks(file, head) if old is None else _read_pcap(file, *old)


def _read_pcap(file: BinaryIO, order: str, units: int) -> Iterator[Packet]:
    rest = file.read(16)
    if len(rest) < 16:
        raise FormatError("the file ends within its header")
    link_type = struct.unpack_from(order + "I", rest, 12)[0] & 0xFFFF
    while head := file.read(16):
        if len(head) < 16:
            raise FormatError("the file ends within a packet")
        seconds, fraction, captured, length = struct.unpack(order + "IIII", head)
        if captured > _LARGEST_BLOCK:
            raise FormatError(f"a packet of {captured} octets")
        data = file.read(captured)
        if len(data) < captured:
            raise FormatError("the file ends within a packet")
        yield Packet("", link_type, seconds * 1_000_000_000 + fraction * units, data, length)


def _read_blocks(file: BinaryIO, head: bytes) -> Iterator[Packet]:
    order, interfaces, first = ">", list[_Interface](), True
    while head:
        if len(head) < 8:
            raise FormatError("the file ends within a block")
        kind, length = struct.unpack(order + "II", head)
        rest = b""
        if kind == SECTION:
            rest = file.read(4)
            order = {_MAGIC.to_bytes(4, "big"): ">", _MAGIC.to_bytes(4, "little"): "<"}.get(rest, "")
            if not order:
                raise FormatError("not a pcapng file")
            (length,) = struct.unpack(order + "I", head[4:])
            interfaces.clear()
        elif first:
            raise FormatError("not a pcapng file")
        first = False
        if not 12 <= length <= _LARGEST_BLOCK or length & 3:
            raise FormatError(f"a block of {length} octets")
        body = rest + file.read(length - 8 - len(rest))
        if len(body) != length - 8:
            raise FormatError("the file ends within a block")
        try:
            if kind == INTERFACE:
                interfaces.append(_read_interface(order, body[:-4]))
            elif kind == ENHANCED:
                yield _read_packet(order, body[:-4], interfaces)
        except (struct.error, IndexError) as error:
            raise FormatError(f"a damaged block: {error}") from error
        head = file.read(8)


def _options(order: str, data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        code, length = struct.unpack_from(order + "HH", data, at)
        if code == _END:
            return
        yield code, data[at + 4 : at + 4 + length]
        at += 4 + length + (-length & 3)


def _read_interface(order: str, body: bytes) -> _Interface:
    (link_type,) = struct.unpack_from(order + "H", body)
    found = dict(_options(order, body[8:]))
    resolution = found.get(_IF_TSRESOL, b"\x06")[0]
    units = 2.0 ** -(resolution & 0x7F) if resolution & 0x80 else 10.0**-resolution
    return _Interface(found.get(_IF_NAME, b"").decode(errors="replace"), link_type, units)


def _read_packet(order: str, body: bytes, interfaces: list[_Interface]) -> Packet:
    number, high, low, captured, length = struct.unpack_from(order + "IIIII", body)
    if number >= len(interfaces) or captured > len(body) - 20:
        raise IndexError("a packet that its interface or its length contradicts")
    where = interfaces[number]
    ticks = high << 32 | low
    time = ticks if where.units == 1e-9 else int(ticks * where.units * 1e9)
    found = dict(_options(order, body[20 + captured + (-captured & 3) :]))
    dropped = struct.unpack(order + "Q", found[_EPB_DROPCOUNT])[0] if _EPB_DROPCOUNT in found else 0
    comment = found.get(_COMMENT, b"").decode(errors="replace")
    return Packet(where.name, where.link_type, time, body[20 : 20 + captured], length, dropped, comment)
