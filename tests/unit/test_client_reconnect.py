"""The client library replaces a lost connection and sends its calls again, with their old XIDs."""

from __future__ import annotations

import asyncio

import pytest

from rpcrdma.client import ClientOptions, Connection, connect
from tests.peer.echo import ONCE
from tests.peer.providers import provider  # noqa: F401 (runs each test on every provider)
from tests.peer.responder import Server, filled
from tests.unit.client_support import Client, carrier_of, pattern, run, run_alone, start, until


@pytest.mark.parametrize("version", [1, 2])
def test_calls_in_progress_are_answered_from_the_replay_cache(version: int) -> None:
    async def test(client: Client) -> None:
        control = client.rig.control
        await client.echo()
        control.gate = asyncio.Event()
        items = [pattern(9000, seed) for seed in range(8)]
        calls = [asyncio.ensure_future(client.echo(item, procedure=ONCE)) for item in items]
        await until(lambda: control.running == 8)
        client.rig.connection.abort()
        await until(lambda: client.connection.reconnections == 1)
        control.gate.set()
        assert await asyncio.gather(*calls) == [[item] for item in items]
        assert control.executed == 1 + 8
        assert client.connection.retransmissions == 8
        assert client.connection.rdma_version == version

    run(test, version=version, first_delay=0.01)


def test_one_connection_after_the_other_is_lost_under_load() -> None:
    async def test(client: Client) -> None:
        async def caller(number: int) -> None:
            for turn in range(12):
                data = pattern(200 * number + 5000 * (turn % 2), number)
                assert await client.echo(data, procedure=ONCE) == [data]

        callers = asyncio.gather(*[caller(number) for number in range(16)])
        for _ in range(3):
            before = client.rig.control.executed
            await until(lambda before=before: client.rig.control.executed > before + 20 or callers.done())  # type: ignore[misc]
            for connection in list(client.rig.server.connections):
                connection.abort()
        await callers
        assert client.rig.control.executed == 16 * 12
        assert client.connection.reconnections >= 1

    run(test, first_delay=0.01, longest_delay=0.02, most_transmissions=20)


def test_a_rejected_reconnection_is_tried_again_after_a_growing_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server, connection: Connection) -> None:
        delays = []
        sleep = asyncio.sleep

        async def note(seconds: float) -> None:
            if seconds:
                delays.append(seconds)
            await sleep(0)

        call = start(connection)
        side = await server.accepted()
        header = await side.call_header()
        monkeypatch.setattr("rpcrdma.client.connection.asyncio.sleep", note)
        server.refusing = 6
        side.endpoint.close(abort=True)
        side = await server.accepted()
        again = await side.call_header()
        monkeypatch.undo()
        assert again.xid == header.xid
        side.reply(again)
        await call
        # 0.1, 0.2, 0.4, 0.8, 1, 1, give or take a quarter.
        assert len(delays) == 6
        for delay, expected in zip(delays, (0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
            assert 0.75 * expected <= delay <= 1.25 * expected

    run_alone(test, version=1, first_delay=0.1, longest_delay=1.0)


def test_who_does_not_want_to_reconnect_learns_of_the_loss() -> None:
    async def test(server: Server, connection: Connection) -> None:
        call = start(connection)
        side = await server.accepted()
        await side.call_header()
        side.endpoint.close(abort=True)
        with pytest.raises(ConnectionError):
            await call
        with pytest.raises(ConnectionError):
            await start(connection)

    run_alone(test, reconnect=0)


def test_a_call_that_ends_every_connection_fails_at_last() -> None:
    async def test(server: Server, connection: Connection) -> None:
        call = start(connection)
        for _ in range(3):
            side = await server.accepted()
            await side.call_header()
            side.endpoint.close(abort=True)
        with pytest.raises(ConnectionError, match="sent 3 times"):
            await call
        after = start(connection)
        side = await server.accepted()
        side.reply(await side.call_header())
        await after

    run_alone(test, version=1, most_transmissions=3)


def test_a_server_that_swallows_a_call_gets_it_again_on_another_connection() -> None:
    async def test(server: Server, connection: Connection) -> None:
        memory = bytearray(8192)
        call = start(connection, into=[memoryview(memory)])
        side = await server.accepted()
        first = await side.call_header()
        await side.over()
        side = await server.accepted()
        again = await side.call_header()
        assert (again.xid, again.payload) == (first.xid, first.payload)
        side.place(again.writes[0][0]._replace(length=5), b"again")
        side.reply(again, writes=[filled(again.writes[0], 5)])
        assert (await call).placed == [5]
        assert memory[:5] == b"again"

    run_alone(test, version=1, silence=0.2)


def test_there_is_no_connection_without_a_server() -> None:
    async def main() -> None:
        async with Server() as server:
            server.refusing = 1
            address = server.listener.address
            with pytest.raises(ConnectionRefusedError):
                async with connect(address.host, address.port, provider=server.provider):
                    pass
            # A provider of the client's own making is closed with it.
            with pytest.raises(OSError, match=r"111|refused"):
                async with connect("127.0.0.1", 1, options=ClientOptions(connect_timeout=5)):
                    pass

    asyncio.run(main())


def test_callers_hear_of_a_new_connection_before_their_calls_are_sent_again() -> None:
    async def test(server: Server, connection: Connection) -> None:
        sends = []
        connection.on_reconnect(lambda: sends.append(carrier_of(connection).requester.counters.sends))
        call = start(connection)
        side = await server.accepted()
        await side.call_header()
        side.endpoint.close(abort=True)
        side = await server.accepted()
        side.reply(await side.call_header())
        await call
        assert sends == [0]

    run_alone(test, version=1)


def test_closing_fails_what_is_not_answered() -> None:
    async def test(server: Server, connection: Connection) -> None:
        call = start(connection)
        await (await server.accepted()).call_header()
        await connection.close()
        with pytest.raises(ConnectionError, match="closed"):
            await call
        await connection.close()

    run_alone(test)
