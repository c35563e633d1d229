"""The TCP server: replies out, the end of connections, backward calls, over real sockets."""

import asyncio
import contextlib
import logging
import socket
import struct
from typing import Literal

import pytest

from rpcrdma.server.tcp_connection import TcpConnection
from tests.unit.raw_tcp_support import reset
from tests.unit.rpc_support import call
from tests.unit.tcp_support import data_call, run, serving, sum_call, turns, until


def test_replies_come_as_calls_finish_and_waiting_ones_are_gathered() -> None:
    async def test() -> None:
        async with serving() as server:
            gate = server.service.gate = asyncio.Event()
            client = await server.connect()
            for xid in range(10):
                client.send(call(0, xid=xid))
            client.send(sum_call(b"", xid=99))
            assert await client.xid() == 99
            gate.set()
            assert [await client.xid() for _ in range(10)] == list(range(10))

    run(test)


def test_a_peer_that_takes_no_replies_is_not_read_from_and_then_closed(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving(max_unsent=100_000, transfer_time=60.0) as server:
            client = await server.connect(limit=1024)
            client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            for xid in range(200):
                client.send(data_call(100_000, xid=xid))
            await until(lambda: server.listener.connections and server.connection().writing)
            await turns()
            connection = server.connection()
            assert connection.writing
            assert not connection.reading
            assert connection.stream.queued < 400_000  # of the 20 MB asked for
            now = connection._loop.time()
            connection.check_time(now)
            connection.check_time(now + 59)
            assert not connection.closed
            connection.check_time(now + 61)
            assert connection.closed

    with caplog.at_level(logging.WARNING):
        run(test)
    assert "takes no replies" in caplog.text


def test_calls_that_waited_go_on_though_their_replies_left_before_anybody_waited_for_that() -> None:
    async def test() -> None:
        async with serving(max_unsent=10_000) as server:
            client = await server.connect()
            calls = [data_call(20_000, xid) for xid in range(8)]  # each of which is all that may wait to be sent
            client.writer.write(b"".join(struct.pack(">I", len(each) | 0x80000000) + each for each in calls))
            assert [await client.xid() for _ in range(8)] == list(range(8))

    run(test)


def test_nobody_waits_for_a_socket_when_all_replies_have_left() -> None:
    async def test() -> None:
        async with serving(max_unsent=16 << 20) as server:
            client = await server.connect(limit=1024)
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            for xid in range(8):
                client.send(data_call(1_000_000, xid=xid))
                await until(lambda: server.listener.connections and server.connection().served == xid + 1)  # noqa: B023
            connection = server.connection()
            await until(lambda: connection.writing)
            assert connection.reading
            client.reader._transport.resume_reading()  # type: ignore[attr-defined]
            assert [await client.xid() for _ in range(8)] == list(range(8))
            await until(lambda: not connection.writing)

    run(test)


def test_tls_begins_behind_a_reply_that_had_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[TcpConnection] = []

    def secure(connection: TcpConnection) -> None:
        connection._securing.due = False
        begun.append(connection)

    monkeypatch.setattr(TcpConnection, "_secure", secure)

    async def test() -> None:
        async with serving() as server:
            client = await server.connect()
            await until(lambda: server.listener.connections)
            connection = server.connection()
            connection._securing.due = True
            connection.flush_soon()
            await until(lambda: begun == [connection])
            client.writer.close()

    run(test)


def test_a_slow_peer_that_makes_headway_is_kept() -> None:
    async def test() -> None:
        async with serving() as server:
            client = await server.connect(limit=1024)
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            for xid in range(30):
                client.send(data_call(1_000_000, xid=xid))
            await until(lambda: server.listener.connections and server.connection().stream.queued)
            connection, now = server.connection(), 1000.0
            connection.check_time(now)
            before = connection.stream.sent_octets
            client.reader._transport.resume_reading()  # type: ignore[attr-defined]
            for xid in range(30):
                assert len(await client.receive()) > 1_000_000, xid
            assert connection.stream.sent_octets > before
            connection.check_time(now + 61)
            assert not connection.closed

    run(test)


def test_drop_closes_after_earlier_replies_left() -> None:
    async def test() -> None:
        async with serving() as server:
            client = await server.connect()
            client.send(call(0, xid=1))
            client.send(call(1, xid=2))
            client.send(call(0, xid=3))
            assert await client.xid() == 1
            assert await client.ended()

    run(test)


def test_a_peer_that_has_finished_sending_still_gets_its_replies() -> None:
    async def test() -> None:
        async with serving() as server:
            gate = server.service.gate = asyncio.Event()
            client = await server.connect()
            client.send(call(0, xid=1))
            client.writer.write_eof()
            await until(lambda: server.service.running and server.connection().stream.eof)
            gate.set()
            assert await client.xid() == 1
            assert await client.ended()

    run(test)


def test_a_connection_that_breaks_while_executing_releases_everything() -> None:
    async def test() -> None:
        async with serving() as server:
            gate = server.service.gate = asyncio.Event()
            client = await server.connect()
            client.send(call(0))
            client.send(data_call(1000))
            await until(lambda: server.service.running)
            connection, closed = server.connection(), []
            connection.on_close(lambda: closed.append(1))
            sock = client.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.writer.transport.abort()
            await until(lambda: connection.closed)
            assert closed == [1]
            connection.on_close(lambda: closed.append(2))
            assert closed == [1, 2]
            gate.set()
            await until(lambda: not server.service.running)

    run(test)


class Gate(asyncio.Event):
    """Those who have waited come to an end in the loop's next turn, not at once."""

    async def wait(self) -> Literal[True]:
        await super().wait()
        await asyncio.sleep(0)
        return True


def test_calls_that_came_whole_before_a_reset_are_carried_out() -> None:
    """More of them than may be in progress at a time."""

    async def test() -> None:
        async with serving(max_calls=2) as server:
            gate = server.service.gate = Gate()
            client = await server.connect()
            for xid in range(9):
                client.send(call(0, xid=xid))
            await until(lambda: server.service.running == 2)
            connection, closed = server.connection(), []
            connection.on_close(lambda: closed.append(1))
            assert len(connection.waiting) == 7
            await reset(client.writer)
            gate.set()
            await until(lambda: closed)
            await until(lambda: not server.service.running)
            assert len(server.service.transports) == 9
            assert server.service.most == 2

    run(test)


def test_draining_answers_what_is_in_progress_then_closes() -> None:
    async def test() -> None:
        async with serving() as server:
            gate = server.service.gate = asyncio.Event()
            idle, busy = await server.connect(), await server.connect()
            busy.send(call(0, xid=5))
            await until(lambda: server.service.running)
            draining = asyncio.ensure_future(server.listener.drain(10))
            assert await idle.ended()
            busy.send(call(0, xid=6))
            await turns()
            assert not draining.done()
            gate.set()
            assert await busy.xid() == 5
            assert await busy.ended()
            await draining
            with pytest.raises(OSError, match="onnect"):
                await server.connect()

    run(test)


def test_draining_waits_for_replies_to_be_taken_but_not_for_ever() -> None:
    async def test() -> None:
        async with serving() as server:
            client = await server.connect(limit=1024)
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            for xid in range(10):
                client.send(data_call(1_000_000, xid=xid))
            await until(lambda: server.listener.connections and server.connection().writing)
            await server.listener.drain(0.01)
            assert len(server.listener.connections) == 1
            draining = asyncio.ensure_future(server.listener.drain(10))
            client.reader._transport.resume_reading()  # type: ignore[attr-defined]
            taken = 0
            with contextlib.suppress(asyncio.IncompleteReadError):
                while True:
                    taken += len(await client.receive())
            assert taken % 1_000_028 == 0  # whole replies
            assert taken
            await draining
            assert not server.listener.connections

    run(test)


def test_backward_calls_are_matched_by_xid() -> None:
    async def test() -> None:
        async with serving() as server:
            client = await server.connect()
            await until(lambda: server.listener.connections)
            connection = server.connection()
            first, second = (
                asyncio.ensure_future(connection.call_back(xid.to_bytes(4, "big") + b"\0\0\0\0call")) for xid in (7, 8)
            )
            assert [await client.receive(), await client.receive()] == [
                b"\0\0\0\7\0\0\0\0call",
                b"\0\0\0\x08\0\0\0\0call",
            ]
            with pytest.raises(ValueError, match="in use"):
                await connection.call_back(b"\0\0\0\7\0\0\0\0call")
            client.send(b"\0\0\0\x63\0\0\0\1nobody asked")
            client.send(b"\0\0\0\x08\0\0\0\1two")
            client.send(call(0, xid=9))
            client.send(b"\0\0\0\7\0\0\0\1one")
            assert bytes(await first) == b"\0\0\0\7\0\0\0\1one"
            assert bytes(await second) == b"\0\0\0\x08\0\0\0\1two"
            assert await client.xid() == 9
            third = asyncio.ensure_future(connection.call_back(b"\0\0\0\x0a\0\0\0\0call"))
            await client.receive()
            connection.close()
            with pytest.raises(ConnectionError):
                await third
            with pytest.raises(ConnectionError):
                await connection.call_back(b"\0\0\0\x0b\0\0\0\0call")

    run(test)
