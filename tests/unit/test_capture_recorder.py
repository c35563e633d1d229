"""The queue of a capture and its taps: what is kept, what is lost and counted, and that nothing stays behind."""

from __future__ import annotations

import pytest

from rpcrdma.capture.events import HEAD_SIZE, Connection, Event, Kind, Reader
from rpcrdma.capture.recorder import MOST_RECORDERS, Captures, Recorder, Tap

HERE = Connection("loopback", "192.0.2.7", 700, "192.0.2.1", 20049, peer_data="f6ab0e18")


class Fake:
    """A connection that is captured."""

    def __init__(self, connection: Connection = HERE) -> None:
        self.connection = connection
        self.tap: Tap | None = None

    def describe(self) -> Connection:
        return self.connection

    def set_tap(self, tap: Tap | None) -> None:
        self.tap = tap


def drain(recorder: Recorder) -> list[Event]:
    reader, found = Reader(), []
    while chunk := recorder.take():
        found += reader.feed(chunk)
    return found


def kinds(recorder: Recorder) -> list[Kind]:
    return [event.kind for event in drain(recorder)]


def test_events_come_out_as_they_went_in_in_pieces_of_any_size():
    recorder = Recorder(1 << 20)
    recorder.add(Kind.WRITE_OUT, 7, (b"one", memoryview(b"two")), 6, 0, 1 << 40, now=5)
    recorder.add(Kind.READ_OUT, 7, (), 70000, 0xFFFFFFFF, 9, 3, now=6)
    octets = b"".join(iter(recorder.take, b""))
    for size in (1, 7, 1000):
        reader = Reader()
        found = [event for at in range(0, len(octets), size) for event in reader.feed(octets[at : at + size])]
        assert found == [
            Event(Kind.WRITE_OUT, 7, 5, 6, b"onetwo", 0, 1 << 40),
            Event(Kind.READ_OUT, 7, 6, 70000, b"", 0xFFFFFFFF, 9, 3),
        ]


def test_a_slow_reader_loses_events_until_half_is_free_and_is_told_which():
    size = 1000 + HEAD_SIZE
    recorder = Recorder(10 * size)
    for connection in (1, 2) * 10:
        recorder.add(Kind.SEND_IN, connection, (bytes(1000),), 1000)
    assert (recorder.events, recorder.lost, recorder.queued) == (10, 10, 10 * size)
    for _ in range(5):
        recorder.take()
    recorder.add(Kind.SEND_IN, 1, (b"",), 0)
    assert recorder.lost == 11, "room for one is not half"
    recorder.take()
    recorder.add(Kind.SEND_IN, 1, (b"x",), 1)
    found = drain(recorder)[4:]
    assert [(event.kind, event.connection, event.length) for event in found] == [
        (Kind.LOST, 1, 6),
        (Kind.LOST, 2, 5),
        (Kind.SEND_IN, 1, 1),
    ]


def test_the_beginnings_of_connections_are_bounded_too():
    recorder = Recorder(1000)
    for number in range(1000):
        recorder.add(Kind.OPENED, number, (bytes(100),), 100)
    assert recorder.queued <= 1250
    assert recorder.lost == 1000 - recorder.events > 900


def test_what_was_lost_last_is_said_at_the_end():
    recorder = Recorder(HEAD_SIZE)
    recorder.add(Kind.SEND_IN, 3, (b"too long",), 8)
    recorder.finish()
    (event,) = drain(recorder)
    assert (event.kind, event.connection, event.length) == (Kind.LOST, 3, 1)


def test_snaplen_cuts_data_and_keeps_lengths():
    recorder = Recorder(1 << 20, snaplen=5)
    recorder.add(Kind.SEND_OUT, 1, (b"abc", b"defg", b"hij"), 10)
    recorder.add(Kind.CLOSED, 1, (b"a long reason",), 13)
    sent, closed = drain(recorder)
    assert (sent.data, sent.length, closed.data) == (b"abcde", 10, b"a long reason")


def test_taps_are_there_while_somebody_captures_and_only_then():
    captures, old, new = Captures(), Fake(), Fake()
    captures.add(old)
    assert old.tap is None
    first, second = Recorder(1 << 20), Recorder(1 << 20, client="192.0.2.8")
    captures.start(first)
    captures.start(second)
    captures.add(new)
    assert old.tap is not None
    assert new.tap is not None
    old.tap.record_in(memoryview(b"call"))
    captures.stop(first)
    assert old.tap is new.tap is None
    captures.discard(old, "gone")
    assert [(event.kind, event.connection) for event in drain(first)] == [
        (Kind.OPENED, 1),
        (Kind.OPENED, 2),
        (Kind.RECORD_IN, 1),
    ]
    assert kinds(second) == [], "another client's"


def test_two_captures_see_the_same():
    captures, connection = Captures(), Fake()
    captures.add(connection)
    first, second = Recorder(1 << 20), Recorder(1 << 20, client="192.0.2.7")
    captures.start(first)
    captures.start(second)
    assert connection.tap is not None
    connection.tap.record_out([b"one"])
    captures.stop(first)
    connection.tap.record_out([b"two"])
    captures.discard(connection, "gone")
    assert kinds(first) == [Kind.OPENED, Kind.RECORD_OUT]
    assert [event.data for event in drain(second)][1:] == [b"one", b"two", b"gone"]


def test_there_are_not_too_many_captures():
    captures = Captures()
    recorders = [Recorder(1 << 20) for _ in range(MOST_RECORDERS + 1)]
    for recorder in recorders[:-1]:
        captures.start(recorder)
    with pytest.raises(ValueError, match="running already"):
        captures.start(recorders[-1])
    captures.stop(recorders[0])
    captures.start(recorders[-1])


def test_reads_are_shown_when_asked_for_and_their_data_when_they_are_there():
    captures, connection, recorder = Captures(), Fake(), Recorder(1 << 20)
    captures.add(connection)
    captures.start(recorder)
    tap = connection.tap
    assert tap is not None
    sinks = [bytearray(3) for _ in range(3)]
    one, two, token = object(), object(), object()
    tap.posted_reads([(5, 0, memoryview(sinks[0])), (6, 9, memoryview(sinks[1]))], one)
    tap.posted_reads([(7, 0, memoryview(sinks[2]))], two)
    sinks[0][:], sinks[1][:] = b"abc", b"def"
    tap.completed(token, True)
    tap.completed(one, True)
    tap.completed(two, False)
    shown = [(event.kind, event.handle, event.number, event.data) for event in drain(recorder)[1:]]
    assert shown == [
        (Kind.READ_OUT, 5, 1, b""),
        (Kind.READ_OUT, 6, 2, b""),
        (Kind.READ_OUT, 7, 3, b""),
        (Kind.READ_IN, None, 1, b"abc"),
        (Kind.READ_IN, None, 2, b"def"),
    ]


def test_a_mistake_in_a_capture_ends_the_capture_and_nothing_else(caplog):
    class Broken(Recorder):
        def add(self, kind: Kind, *arguments: object, **more: object) -> None:
            if kind is not Kind.OPENED:
                raise MemoryError

    captures, connection, recorder = Captures(), Fake(), Broken(1 << 20)
    told: list[Recorder] = []
    captures.on_failure = told.append
    captures.add(connection)
    captures.start(recorder)
    assert connection.tap is not None
    connection.tap.record_in(memoryview(b"call"))
    assert connection.tap is None
    assert (told, captures.running) == ([recorder], 0)
    assert "capturing ends" in caplog.text
