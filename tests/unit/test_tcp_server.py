"""The TCP server: calls and replies over real sockets, back-pressure, time, closing, backward calls."""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import pytest

from rpcrdma.hosts import HostLimits, Hosts
from rpcrdma.memory import OutOfMemory, Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import Call, DropCall, Procedure, Program
from rpcrdma.server import tcp_connection
from rpcrdma.server.tcp import TcpConnection, TcpLimits, TcpListener
from rpcrdma.xdr import DDP, Payload, opaque, uint32
from rpcrdma.xdr import struct as xdr_struct
from tests.support.machine import needs_ipv6
from tests.unit.rpc_support import call

HOST_LIMITS = {field.name for field in dataclasses.fields(HostLimits)}


@xdr_struct
class blob:
    data: Annotated[bytes | memoryview | Payload, opaque(1 << 20), DDP]


class Service:
    def __init__(self) -> None:
        self.gate: asyncio.Event | None = None
        self.transports: list[Any] = []
        self.running = 0
        self.most = 0

    async def null(self, call: Call, _: None) -> None:
        self.transports.append(call.transport)
        self.running += 1
        self.most = max(self.most, self.running)
        if self.gate is not None:
            await self.gate.wait()
        self.running -= 1

    async def drop(self, _: Call, __: None) -> None:
        raise DropCall

    async def sum(self, _: Call, value: blob) -> int:
        return sum(value.data) & 0xFFFFFFFF  # type: ignore[arg-type]

    async def data(self, call: Call, size: int) -> blob:
        lease = await call.transport.lease(size)
        lease.view[:size] = bytes(range(256)) * (size // 256) + bytes(size % 256)
        return blob(Payload(lease.view[:size], lease))

    def program(self) -> Program:
        rows = {
            0: Procedure("NULL", self.null),
            1: Procedure("DROP", self.drop),
            2: Procedure("SUM", self.sum, blob, uint32),
            3: Procedure("DATA", self.data, uint32, blob),
        }
        return Program(400000, "test", {3: rows})


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, message: bytes | memoryview) -> None:
        self.writer.write(struct.pack(">I", len(message) | 0x80000000) + message)

    async def receive(self) -> bytes:
        (mark,) = struct.unpack(">I", await self.reader.readexactly(4))
        assert mark & 0x80000000
        return await self.reader.readexactly(mark & 0x7FFFFFFF)

    async def xid(self) -> int:
        return int.from_bytes((await self.receive())[:4], "big")

    async def ended(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True


class Server:
    def __init__(self, host: str = "127.0.0.1", **limits: Any) -> None:
        self.service = Service()
        self.pool = Pool(64 << 20, 4 << 20)
        self.dispatcher = Dispatcher([self.service.program()])
        loop = asyncio.get_running_loop()
        hosts = HostLimits(**{key: limits.pop(key) for key in list(limits) if key in HOST_LIMITS})
        self.hosts = Hosts(self.pool, hosts)
        self.listener = TcpListener(self.dispatcher, self.pool, loop, TcpLimits(**limits), hosts=self.hosts)
        self.listener.listen(host, 0)

    async def connect(self, host: str = "127.0.0.1", **options: Any) -> Client:
        return Client(*await asyncio.open_connection(host, self.listener.address[1], **options))

    def connection(self) -> TcpConnection:
        (only,) = self.listener.connections
        return only


@contextlib.asynccontextmanager
async def serving(host: str = "127.0.0.1", **limits: Any) -> AsyncIterator[Server]:
    server = Server(host, **limits)
    yield server
    server.listener.close()
    assert server.listener.connections == set()
    await server.dispatcher.drain(0)
    assert server.pool.in_use == 0


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop work until ``condition`` holds (bounded by the test's timeout)."""
    while not condition():  # noqa: ASYNC110 (there is nothing to wait for but the loop itself)
        await asyncio.sleep(0.001)


def data_call(size: int, xid: int = 1) -> memoryview:
    return call(3, size.to_bytes(4, "big"), xid=xid)


def sum_call(data: bytes, xid: int = 1) -> memoryview:
    return call(2, len(data).to_bytes(4, "big") + data + bytes(-len(data) & 3), xid=xid)


def test_calls_are_answered_in_batches() -> None:
    async def test() -> None:
        async with serving() as server:
            client = await server.connect()
            for xid in range(500):
                client.send(call(0, xid=xid))
            assert [await client.xid() for _ in range(500)] == list(range(500))

    run(test)


def test_calls_that_never_wait_let_those_of_other_connections_in(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count()
    monkeypatch.setattr(tcp_connection, "_clock", lambda: next(now) * 0.0005)

    async def test() -> None:
        async with serving() as server:
            greedy, modest = await server.connect(), await server.connect()
            for client in (greedy, modest):
                client.send(call(0, xid=1))
                assert await client.xid() == 1
            heavy, light = (server.service.transports[at] for at in (0, 1))
            # Both are there before the server looks at either.
            for xid in range(500):
                greedy.send(call(0, xid=xid))
            modest.send(call(0, xid=1000))
            assert await modest.xid() == 1000
            assert [await greedy.xid() for _ in range(500)] == list(range(500))
            order = server.service.transports[2:]
            assert order.count(heavy) == 500
            assert order.index(light) < 50

    run(test)


def test_many_connections_with_calls_that_never_wait_share_the_time_that_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = itertools.count()
    monkeypatch.setattr(tcp_connection, "_clock", lambda: next(now) * 0.0005)

    async def test() -> None:
        async with serving() as server:
            begun = server.service.transports
            greedy = [await server.connect() for _ in range(40)]
            modest = await server.connect()
            modest.send(call(0, xid=1))
            assert await modest.xid() == 1
            for xid in range(200):
                for client in greedy:
                    client.send(call(0, xid=xid))
            await until(lambda: len(begun) > 1000)
            before = len(begun)
            modest.send(call(0, xid=2))
            assert await modest.xid() == 2
            assert begun.index(begun[0], before) - before < 100  # not four calls of each
            for client in greedy:
                assert [await client.xid() for _ in range(200)] == list(range(200))
            assert server.hosts.waiting_for_turns == 0

    run(test)


def test_large_arguments_and_results() -> None:
    async def test() -> None:
        async with serving() as server:
            client = await server.connect()
            client.send(sum_call(b"\3" * 1_000_001))
            assert (await client.receive())[24:] == (3 * 1_000_001).to_bytes(4, "big")
            client.send(data_call(1_000_000))
            reply = await client.receive()
            assert reply[24:28] == (1_000_000).to_bytes(4, "big")
            assert reply[28 : 28 + 999_936] == bytes(range(256)) * 3906
            assert len(reply) == 28 + 1_000_000

    run(test)


@pytest.mark.parametrize(
    ("listen", "connect", "netid", "peer"),
    [
        ("127.0.0.1", "127.0.0.1", "tcp", "127.0.0.1"),
        pytest.param("::1", "::1", "tcp6", "::1", marks=needs_ipv6),
        pytest.param("::", "127.0.0.1", "tcp", "127.0.0.1", marks=needs_ipv6),
        pytest.param("::", "::1", "tcp6", "::1", marks=needs_ipv6),
    ],
)
def test_addresses_are_plain_whatever_socket_they_came_by(listen: str, connect: str, netid: str, peer: str) -> None:
    async def test() -> None:
        async with serving(listen) as server:
            client = await server.connect(connect)
            client.send(call(0))
            await client.receive()
            (transport,) = server.service.transports
            assert (transport.netid, transport.peer_address, transport.local_address) == (netid, peer, peer)
            assert transport.peer_port == client.writer.get_extra_info("sockname")[1]

    run(test)


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


def test_calls_in_progress_are_bounded_and_the_rest_waits() -> None:
    async def test() -> None:
        async with serving(max_calls=4) as server:
            gate = server.service.gate = asyncio.Event()
            client = await server.connect()
            for xid in range(100):
                client.send(call(0, xid=xid))
            await until(lambda: server.service.running == 4)
            await turns()
            assert server.service.running == 4
            gate.set()
            assert [await client.xid() for _ in range(100)] == list(range(100))
            assert server.service.most == 4

    run(test)


def test_a_peer_that_takes_no_replies_is_not_read_from_and_then_closed(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving(max_unsent=100_000, transfer_time=60.0) as server:
            client = await server.connect(limit=1024)
            client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            for xid in range(200):
                client.send(data_call(100_000, xid=xid))
            await until(lambda: server.listener.connections and server.connection()._writing)
            await turns()
            connection = server.connection()
            assert connection._writing
            assert not connection._reading
            assert connection._stream.queued < 400_000  # of the 20 MB asked for
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


def test_a_slow_peer_that_makes_headway_is_kept() -> None:
    async def test() -> None:
        async with serving() as server:
            client = await server.connect(limit=1024)
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            for xid in range(30):
                client.send(data_call(1_000_000, xid=xid))
            await until(lambda: server.listener.connections and server.connection()._stream.queued)
            connection, now = server.connection(), 1000.0
            connection.check_time(now)
            before = connection._stream.sent_octets
            client.reader._transport.resume_reading()  # type: ignore[attr-defined]
            for xid in range(30):
                assert len(await client.receive()) > 1_000_000, xid
            assert connection._stream.sent_octets > before
            connection.check_time(now + 61)
            assert not connection.closed

    run(test)


def test_a_record_that_stops_half_way_costs_the_connection() -> None:
    async def test() -> None:
        async with serving(transfer_time=60.0) as server:
            client = await server.connect()
            client.writer.write(bytes(call(0))[:7])
            await until(lambda: server.listener.connections and server.connection()._stream.partial)
            connection = server.connection()
            server.listener.check_times(1000.0)
            server.listener.check_times(1059.0)
            assert not connection.closed
            server.listener.check_times(1060.0)
            assert connection.closed
            assert await client.ended()

    run(test)


def test_idle_connections_are_closed_but_not_those_with_a_call() -> None:
    async def test() -> None:
        async with serving(idle_time=360.0) as server:
            idle, busy = await server.connect(), await server.connect()
            server.service.gate = asyncio.Event()
            busy.send(call(0))
            await until(lambda: server.service.running)
            later = asyncio.get_running_loop().time() + 361
            server.listener.check_times(later - 10)
            assert len(server.listener.connections) == 2
            server.listener.check_times(later)
            assert len(server.listener.connections) == 1
            assert await idle.ended()
            server.service.gate.set()
            await busy.receive()

    run(test)


def test_beyond_the_limit_the_idlest_connection_makes_room_and_busy_ones_stay() -> None:
    async def test() -> None:
        async with serving(connections=2) as server:
            server.service.gate = asyncio.Event()
            first = await server.connect()
            first.send(sum_call(b""))
            await first.receive()
            second = await server.connect()
            second.send(call(0, xid=2))
            await until(lambda: server.service.running == 1)
            third = await server.connect()
            third.send(call(0, xid=3))
            await until(lambda: server.service.running == 2)
            assert await first.ended()
            fourth = await server.connect()
            assert await fourth.ended()
            assert server.listener.refused == 1
            server.service.gate.set()
            assert (await second.xid(), await third.xid()) == (2, 3)

    run(test)


@pytest.mark.parametrize(
    "octets",
    [
        b"\xff\xff\xff\xff",  # a record of 2 GiB
        b"\x80\x00\x00\x00",  # an empty record
        b"\x80\x00\x00\x04abcd",  # no call
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", 0x80000028) + bytes(4) + b"\0\0\0\2" + bytes(32),
    ],
)
def test_nonsense_costs_that_connection_only(octets: bytes) -> None:
    async def test() -> None:
        async with serving() as server:
            good, bad = await server.connect(), await server.connect()
            bad.writer.write(octets)
            assert await bad.ended()
            good.send(call(0, xid=7))
            assert await good.xid() == 7

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
            await until(lambda: server.service.running and server.connection()._stream.eof)
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
            await until(lambda: server.listener.connections and server.connection()._writing)
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


def test_memory_that_is_short_delays_calls_and_loses_none() -> None:
    async def test() -> None:
        async with serving(connection_memory=1 << 20) as server:
            client = await server.connect()
            blocker = server.connection  # the connection exists once it was accepted
            await until(lambda: server.listener.connections)
            account = blocker()._account
            leases = [account.lease(65536) for _ in range(15)]
            client.send(sum_call(b"\1" * 200_000, xid=1))
            client.send(sum_call(b"\1" * 200_000, xid=2))
            await until(lambda: blocker()._stream.starved)
            await turns()
            for lease in leases:
                lease.release()
            assert [await client.xid(), await client.xid()] == [1, 2]

    run(test)


def test_a_record_larger_than_the_connections_memory_is_refused() -> None:
    async def test() -> None:
        async with serving(connection_memory=131072) as server:
            client = await server.connect()
            client.send(sum_call(bytes(200_000)))
            assert await client.ended()

    run(test)


def test_lease_waits_for_room_and_fails_when_the_connection_goes() -> None:
    async def test() -> None:
        async with serving(connection_memory=1 << 20) as server:
            await server.connect()
            await until(lambda: server.listener.connections)
            connection = server.connection()
            whole = await connection.lease(1 << 20)
            waiting = asyncio.ensure_future(connection.lease(100))
            await turns()
            assert not waiting.done()
            whole.release()
            (await waiting).release()
            with pytest.raises(OutOfMemory):
                await connection.lease(2 << 20)
            whole = await connection.lease(1 << 20)
            waiting, cancelled = (asyncio.ensure_future(connection.lease(100)) for _ in range(2))
            await turns()
            cancelled.cancel()
            await turns()
            connection.close()
            with pytest.raises(ConnectionError):
                await waiting
            whole.release()

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


def test_a_port_that_is_taken_is_an_error() -> None:
    async def test() -> None:
        async with serving() as server:
            other = TcpListener(server.dispatcher, server.pool, asyncio.get_running_loop())
            with pytest.raises(OSError, match="in use"):
                other.listen("127.0.0.1", server.listener.address[1])
            other.close()

    run(test)


def test_without_descriptors_accepting_pauses_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving() as server:
            real = server.listener._socket
            assert real is not None

            descriptor = real.fileno()

            class Exhausted:
                def fileno(self) -> int:
                    return descriptor

                def accept(self) -> None:
                    raise OSError(24, "Too many open files")

            server.listener._socket = Exhausted()  # type: ignore[assignment]
            client = await server.connect()
            client.send(call(0, xid=4))
            await until(lambda: server.listener._resume)
            server.listener._socket = real
            assert await client.xid() == 4

    run(test)
    assert "Too many open files" in caplog.text
