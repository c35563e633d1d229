"""The control socket: who may ask, what is answered, and what a reader that is too slow gets."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import stat
from pathlib import Path

import pytest

from nfsd import capture, control
from nfsd.capture import CaptureFailed
from nfsd.control import CaptureRequest, Control, address_in, may_control
from rpcrdma.capture.events import Event, Kind, Reader
from rpcrdma.capture.recorder import Captures
from tests.unit.test_capture_recorder import Fake

SMALL = CaptureRequest(buffer=1 << 20)


async def ask(state_dir: Path, line: bytes) -> tuple[dict[str, object], asyncio.StreamReader, asyncio.StreamWriter]:
    with address_in(str(state_dir)) as address:
        reader, writer = await asyncio.open_unix_connection(address)
    writer.write(line)
    return json.loads(await asyncio.wait_for(reader.readline(), 10)), reader, writer


async def everything(reader: asyncio.StreamReader) -> list[Event]:
    return list(Reader().feed(await asyncio.wait_for(reader.read(), 20)))


def test_a_capture_from_beginning_to_end_in_a_directory_of_a_long_name(tmp_path):
    async def main() -> None:
        directory = tmp_path / ("long" * 50)
        directory.mkdir()
        captures, connection = Captures(), Fake()
        server = Control(captures)
        await server.start(str(directory))
        assert stat.S_IMODE(os.stat(directory / "control").st_mode) == 0o600
        captures.add(connection)
        answer, reader, writer = await ask(directory, CaptureRequest(snaplen=2).encode())
        assert answer == {"capturing": True}
        assert connection.tap is not None
        connection.tap.record_in(memoryview(b"call"))
        writer.write_eof()
        events = await everything(reader)
        assert [(event.kind, event.data) for event in events[1:]] == [(Kind.RECORD_IN, b"ca")]
        assert connection.tap is None
        await server.close()
        assert not (directory / "control").exists()

    asyncio.run(main())


def test_a_reader_that_stops_reading_loses_events_and_holds_nothing_up(tmp_path):
    async def main() -> None:
        captures, connection = Captures(), Fake()
        server = Control(captures)
        await server.start(str(tmp_path))
        captures.add(connection)
        _, reader, writer = await ask(tmp_path, SMALL.encode())
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        record = memoryview(bytes(100_000))
        sent = 500
        for _ in range(sent):
            assert connection.tap is not None
            connection.tap.record_in(record)
            await asyncio.sleep(0)
        (session,) = server.sessions
        assert session.recorder is not None
        lost = session.recorder.lost
        assert lost > sent // 2
        assert session.recorder.queued <= 1 << 20
        assert session._transport.get_write_buffer_size() < 3 << 20
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        writer.write_eof()
        events = await everything(reader)
        assert sum(event.kind is Kind.RECORD_IN for event in events) == sent - lost
        assert sum(event.length for event in events if event.kind is Kind.LOST) == lost
        await server.close()

    asyncio.run(main())


def test_who_hangs_up_captures_no_more(tmp_path):
    async def main() -> None:
        captures, connection = Captures(), Fake()
        server = Control(captures)
        await server.start(str(tmp_path))
        captures.add(connection)
        _, _, writer = await ask(tmp_path, SMALL.encode())
        writer.transport.abort()
        async with asyncio.timeout(10):
            while server.sessions:  # noqa: ASYNC110 (there is no event to wait for)
                await asyncio.sleep(0)
        assert (captures.running, connection.tap) == (0, None)
        await server.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"not JSON\n", "Expecting value"),
        (b"[]\n", "not a request"),
        (b"[" * 4000 + b"\n", "not a request|Expecting value"),  # Python 3.13 reads deeper than 3.11 does
        (b'{"command": "shutdown"}\n', "unknown command"),
        (b'{"command": "capture", "snaplen": -1}\n', "snaplen"),
        (b'{"command": "capture", "snaplen": "1"}\n', "snaplen"),
        (b'{"command": "capture", "buffer": 1}\n', "buffer"),
        (b'{"command": "capture", "client": "a name"}\n', "does not appear to be an IPv4 or IPv6 address"),
        (b'{"command": "capture", "more": 1}\n', "not a request"),
        (b"x" * 5000, "too long"),
    ],
)
def test_requests_that_are_none(tmp_path, line, why):
    async def main() -> None:
        server = Control(Captures())
        await server.start(str(tmp_path))
        answer, reader, _ = await ask(tmp_path, line)
        assert re.search(why, str(answer["error"]))
        assert await asyncio.wait_for(reader.read(), 10) == b""
        await server.close()

    asyncio.run(main())


def test_a_clients_address_in_any_spelling():
    line = CaptureRequest(client="2001:DB8:0:0::7").encode()
    assert CaptureRequest.decode(line).client == "2001:db8::7"


def test_root_and_the_servers_user_may_and_nobody_else(tmp_path, monkeypatch):
    own = os.geteuid()
    assert may_control(own)
    assert may_control(0)
    assert not may_control(own + 4711)
    asked: list[int] = []

    def never(uid: int) -> bool:
        asked.append(uid)
        return False

    monkeypatch.setattr(control, "may_control", never)

    async def main() -> None:
        captures = Captures()
        server = Control(captures)
        await server.start(str(tmp_path))
        answer, _, _ = await ask(tmp_path, SMALL.encode())
        assert "only root" in str(answer["error"])
        assert (asked, captures.running) == ([own], 0)
        await server.close()

    asyncio.run(main())


def test_the_command_says_when_there_is_no_server(tmp_path):
    with pytest.raises(CaptureFailed, match="no server is running"):
        capture.connect(str(tmp_path), SMALL)
    with address_in(str(tmp_path)) as address, socket.socket(socket.AF_UNIX) as stale:
        stale.bind(address)
    with pytest.raises(CaptureFailed, match="no server is running"):
        capture.connect(str(tmp_path), SMALL)


def test_the_file_is_its_owners_alone_even_when_it_was_there_before(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"what was there")
    path.chmod(0o644)
    with capture.open_output(str(path)) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(CaptureFailed, match="Is a directory"), capture.open_output(str(tmp_path)):
        pass


class Late:
    """A connection that waits for the server, and a signal that came before the wait but was not seen: Python calls
    its handler when the wait is over."""

    def __init__(self, stop):
        self.stop = stop
        self.wait = None
        self.stopped = False

    def settimeout(self, seconds):
        self.wait = seconds

    def recv(self, most):
        if self.stopped:
            return b""
        assert self.wait is not None, "this would wait for ever"
        self.stop()
        self.stopped = True
        raise TimeoutError


def test_a_signal_just_before_a_wait_ends_a_capture():
    handled = []
    connection = Late(lambda: handled.append(1))
    capture._copy(connection, None, None, capture.Bounds(), lambda: pytest.fail("no bound was met"))
    assert handled
