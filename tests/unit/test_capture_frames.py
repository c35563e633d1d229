"""Packets of a capture, and what is read out of them again."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nfsd.capture import Writer
from nfsd.decode import Decoder
from rpcrdma.capture import pcapng
from rpcrdma.capture.events import Connection, Event, Kind
from rpcrdma.capture.frames import Framer, checksum
from rpcrdma.capture.pcapng import LINKTYPE_RAW, FormatError, Packet
from rpcrdma.capture.streams import Dissector, Message, What

RDMA = Connection("loopback", "192.0.2.7", 700, "192.0.2.1", 20049, peer_data="00", local_data="0102", note="a note")
TCP = Connection("tcp", "2001:db8::7", 700, "2001:db8::1", 2049)
OPENED = Event(Kind.OPENED, 1, 0, 0, RDMA.encode())
OVER_TCP = Event(Kind.OPENED, 2, 0, 0, TCP.encode())


def packets(*events: Event) -> list[Packet]:
    framer = Framer()
    made = [frame for event in events for frame in framer.frames(event)]
    return [Packet("x", pcapng.LINKTYPE_RAW, f.time, f.data, f.length, f.lost, f.comment) for f in made]


def messages(*events: Event) -> list[Message]:
    dissector = Dissector()
    found = [message for packet in packets(*events) for message in dissector.messages(packet)]
    assert dissector.strangers == 0
    return found


def a_file(*events: Event) -> bytes:
    file, framer = io.BytesIO(), Framer()
    writer = Writer(file)
    for event in events:
        for frame in framer.frames(event):
            writer.write(frame)
    writer.finish(framer.lost)
    return file.getvalue()


def record(data: bytes, kind: Kind = Kind.RECORD_IN) -> Event:
    return Event(kind, 2, 0, len(data), data)


CALL = struct.pack(">6I", 5, 0, 2, 100003, 3, 1) + bytes(16)


def test_a_connection_of_every_kind_of_work():
    found = messages(
        OPENED,
        Event(Kind.SEND_IN, 1, 10, 5, b"hello", 0x11),
        Event(Kind.READ_OUT, 1, 11, 100000, b"", 0x22, 1 << 40, 1),
        Event(Kind.READ_IN, 1, 12, 100000, bytes(range(250)) * 400, number=1),
        Event(Kind.WRITE_OUT, 1, 13, 0, b"", 0x33, 7),
        Event(Kind.WRITE_OUT, 1, 14, 61441, bytes(61441), 0x34, (1 << 64) - 1),
        Event(Kind.SEND_OUT, 1, 15, 3, b"bye"),
        Event(Kind.CLOSED, 1, 16, 3, b"end"),
    )
    seen = [(m.what, m.inbound, m.length, m.handle, m.offset, m.sink) for m in found]
    assert seen == [
        (What.REQUEST, True, 1, None, 0, 0),
        (What.ACCEPT, False, 2, None, 0, 0),
        (What.SEND, True, 5, 0x11, 0, 0),
        (What.READ_REQUEST, False, 100000, 0x22, 1 << 40, 1),
        (What.READ_RESPONSE, True, 100000, None, 0, 1),
        (What.WRITE, False, 0, 0x33, 7, 0),
        (What.WRITE, False, 61441, 0x34, (1 << 64) - 1, 0),
        (What.SEND, False, 3, None, 0, 0),
        (What.CLOSED, False, 0, None, 0, 0),
    ]
    assert [m.data for m in found[:3]] == [b"\0", b"\1\2", b"hello"]
    assert found[4].data == bytes(range(250)) * 400
    assert (found[0].comment, found[-1].comment) == ("a note", "end")
    assert (found[0].source, found[0].destination) == ("192.0.2.7:700", "192.0.2.1:20049")


def test_packets_have_the_right_checksums_and_lengths():
    for packet in packets(OPENED, Event(Kind.SEND_IN, 1, 0, 100001, bytes(range(256)) * 390 + bytes(161))):
        data = packet.data
        assert checksum(data[:20]) == 0
        assert struct.unpack_from(">H", data, 2)[0] == len(data) == packet.length
        pseudo = data[12:20] + struct.pack(">II", 6, len(data) - 20)
        assert checksum(pseudo + data[20:]) == 0
        size = struct.unpack_from(">H", data, 40)[0]
        if data[40:43] != b"MPA":
            assert len(data) - 40 == (2 + size + 3) // 4 * 4 + 4


@given(st.binary(min_size=0, max_size=70))
@settings(max_examples=50, deadline=None)
def test_the_checksum_is_the_sum_of_words(data):
    padded = data + b"\0" * (len(data) & 1)
    total = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    assert checksum(data) == 0xFFFF - total


def test_sequence_numbers_follow_on_and_acknowledge():
    ends = [struct.unpack_from(">II", packet.data, 24) for packet in packets(OPENED)]
    assert ends == [(1, 1), (1, 1 + 21)]


def test_records_over_tcp_on_ipv6():
    data = CALL + bytes(70000)
    found = messages(OVER_TCP, record(data), record(data[:8], Kind.RECORD_OUT))
    assert [(m.what, m.inbound, m.length) for m in found] == [
        (What.RECORD, True, 70040),
        (What.RECORD, False, 8),
    ]
    assert found[0].data == data
    assert found[0].source == "[2001:db8::7]:700"


def test_cut_data_are_known_to_be_cut():
    found = messages(
        OPENED, OVER_TCP, Event(Kind.SEND_IN, 1, 0, 100000, b"begins"), Event(Kind.RECORD_IN, 2, 0, 500, CALL)
    )
    assert [(m.what, m.length, m.data) for m in found[2:]] == [
        (What.SEND, 100000, b"begins"),
        (What.RECORD, 500, CALL),
    ]
    after = messages(OPENED, Event(Kind.SEND_IN, 1, 0, 9, b"cu"), Event(Kind.SEND_IN, 1, 0, 5, b"whole"))
    assert after[-1].data == b"whole"


def test_lost_events_stand_in_the_file_where_they_were_lost():
    octets = a_file(OPENED, Event(Kind.LOST, 1, 0, 5), Event(Kind.SEND_IN, 1, 0, 2, b"ab"), Event(Kind.LOST, 1, 0, 2))
    assert [packet.dropped for packet in pcapng.read(io.BytesIO(octets))] == [0, 0, 5]
    # Interface statistics: 3 packets and 7 that are not there.
    assert struct.pack(">HHQHHQ", 4, 8, 10, 5, 8, 7) in octets
    assert "gap: 5 events lost in the capture" in "\n".join(Decoder().lines(io.BytesIO(octets)))


def test_a_gap_in_the_stream_is_said_and_reading_goes_on():
    made = packets(OVER_TCP, record(CALL), record(CALL), record(CALL))
    dissector = Dissector()
    found = [message for packet in (made[0], made[2]) for message in dissector.messages(packet)]
    assert [m.what for m in found] == [What.RECORD, What.GAP, What.RECORD]
    assert found[1].comment == f"{len(CALL) + 4} octets are missing"
    again = list(dissector.messages(made[1]))
    assert again == [], "what was seen already"


def test_traffic_of_other_programs_in_segments_of_any_size():
    """Ethernet, and segments that hold parts of records."""
    (packet,) = packets(OVER_TCP, record(CALL + b"abcd"))
    head, body = packet.data[:60], packet.data[60:]
    dissector, found = Dissector(), []
    for at in range(0, len(body), 10):
        piece = body[at : at + 10]
        segment = bytearray(head)
        segment[4:6] = struct.pack(">H", 20 + len(piece))
        segment[44:48] = struct.pack(">I", 1 + at)
        data = bytes(12) + b"\x81\0\0\1\x86\xdd" + segment + piece
        found += dissector.messages(Packet("eth0", pcapng.LINKTYPE_ETHERNET, 0, data, len(data)))
    assert [(m.what, m.data) for m in found] == [(What.RECORD, CALL + b"abcd")]


def test_files_in_the_other_order_of_octets_with_microseconds():
    section = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    interface = struct.pack("<IIHHII", 1, 20, 101, 0, 0, 20)
    packet = struct.pack("<IIIIIII4sI", 6, 36, 0, 0, 1500000, 3, 9, b"abc\0", 36)
    unknown = struct.pack("<IIII", 99, 16, 0, 16)
    (found,) = pcapng.read(io.BytesIO(section + interface + unknown + packet))
    assert found == Packet("", 101, 1500000000, b"abc", 9)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("magic", "units"), [(0xA1B2C3D4, 1000), (0xA1B23C4D, 1)])
def test_files_of_the_older_format(order, magic, units):
    header = struct.pack(order + "IHHIIII", magic, 2, 4, 0, 0, 65535, 101)
    packet = struct.pack(order + "IIII3s", 2, 7, 3, 9, b"abc")
    assert list(pcapng.read(io.BytesIO(header + packet))) == [Packet("", 101, 2_000_000_000 + 7 * units, b"abc", 9)]
    for length in (10, 30, 41):
        with pytest.raises(FormatError):
            list(pcapng.read(io.BytesIO((header + packet)[:length])))


@pytest.mark.parametrize("damage", [b"", b"no capture at all", b"\n\r\r\n", b"\n\r\r\n\0\0\0\x1c\x1a\x2b\x3c\x4d"])
def test_what_is_no_capture_is_said(damage):
    if not damage:
        assert list(pcapng.read(io.BytesIO(damage))) == []
        return
    with pytest.raises(FormatError):
        list(pcapng.read(io.BytesIO(damage)))


WHOLE = a_file(
    OPENED,
    OVER_TCP,
    Event(Kind.SEND_IN, 1, 0, 60, bytes(8) + b"\0\0\0\1" * 13),
    Event(Kind.READ_OUT, 1, 0, 4, b"", 1, 2, 1),
    Event(Kind.READ_IN, 1, 0, 4, b"data", number=1),
    record(CALL),
    Event(Kind.CLOSED, 1, 0, 0),
)


@pytest.mark.parametrize("total", [0, 39, 41])
def test_packets_whose_lengths_contradict_each_other_are_no_tcp(total):
    packet = bytearray(b"E" + bytes(8) + b"\x06" + bytes(10) + bytes(12) + b"\x60" + bytes(7) + bytes(4))
    packet[2:4] = struct.pack(">H", total)
    dissector = Dissector()
    found = Packet("", LINKTYPE_RAW, 0, bytes(packet), len(packet))
    assert list(dissector.messages(found)) == []
    assert dissector.strangers == (total in (39, 41))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_files_are_read_as_far_as_they_go_and_never_crash(data):
    octets = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(0, 4))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    del octets[data.draw(st.integers(len(octets) // 2, len(octets))) :]
    try:
        for _ in Decoder().lines(io.BytesIO(bytes(octets))):
            pass
    except FormatError:
        pass


@given(st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_messages_of_any_octets_are_described(data):
    out = io.BytesIO(a_file(OPENED, Event(Kind.SEND_IN, 1, 0, len(data), data), OVER_TCP, record(CALL[:4] + data)))
    assert sum("RDMA" in line or "procedure" in line or "octets" in line for line in Decoder().lines(out)) >= 1
