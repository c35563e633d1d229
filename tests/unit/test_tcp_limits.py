"""The TCP server: bounds of calls, time, connections, memory and descriptors, over real sockets."""

import asyncio

import pytest

from rpcrdma.memory import OutOfMemory
from tests.unit.rpc_support import call
from tests.unit.tcp_support import run, serving, sum_call, turns, until


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


def test_a_record_that_stops_half_way_costs_the_connection() -> None:
    async def test() -> None:
        async with serving(transfer_time=60.0) as server:
            client = await server.connect()
            client.writer.write(bytes(call(0))[:7])
            await until(lambda: server.listener.connections and server.connection().stream.partial)
            connection = server.connection()
            now = asyncio.get_running_loop().time()
            server.listener.check_times(now)
            server.listener.check_times(now + 59)
            assert not connection.closed
            server.listener.check_times(now + 60)
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
            await until(lambda: blocker().stream.starved)
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
            client = await server.connect()
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
            assert await client.ended()

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
