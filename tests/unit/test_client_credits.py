"""The client library keeps its credits (RFC 8166 section 3.3), and takes back what was lent to a cancelled call."""

from __future__ import annotations

import asyncio

import pytest

from rpcrdma.client import Connection
from tests.peer.providers import provider  # noqa: F401 (runs each test on every provider)
from tests.peer.responder import CallHeader, Server, Side
from tests.unit.client_support import Client, carrier_of, run, run_alone, start, until


async def settle() -> None:
    """Time for whatever would be sent."""
    for _ in range(50):
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)


async def waiting(side: Side, count: int) -> list[CallHeader]:
    """Exactly so many calls."""
    await until(lambda: side.waiting >= count)
    await settle()
    assert side.waiting == count
    return [await side.call_header() for _ in range(count)]


@pytest.mark.parametrize("version", [1, 2])
def test_the_window_is_what_the_last_reply_granted_and_one_before_it(version: int) -> None:
    async def test(server: Server, connection: Connection) -> None:
        calls = [start(connection) for _ in range(40)]
        side = await server.accepted()
        (first,) = await waiting(side, 1)
        assert first.credit == 20
        side.reply(first, credit=3)
        calls_there = await waiting(side, 3)
        # Granting less than are outstanding stops the sending.
        side.reply(calls_there.pop(), credit=1)
        await settle()
        assert side.waiting == 0
        side.reply(calls_there.pop(), credit=1)
        await settle()
        assert side.waiting == 0
        side.reply(calls_there.pop(), credit=0)  # stands for one
        (one,) = await waiting(side, 1)
        side.reply(one, credit=5)
        five = await waiting(side, 5)
        # More than we have Receives for is not believed.
        side.reply(five.pop(), credit=0xFFFFFFFF)
        many = five + await waiting(side, 20 - 4)
        assert carrier_of(connection).requester.outstanding == 20
        for header in many:
            side.reply(header, credit=100)
        done = len(many) + 5 + 1
        while done < 40:
            side.reply(await side.call_header(), credit=100)
            done += 1
        await asyncio.gather(*calls)
        assert len({header.xid for header in many}) == len(many)

    run_alone(test, version=version, credits=20)


def test_five_hundred_calls_at_a_time_on_our_own_server() -> None:
    async def test(client: Client) -> None:
        most = 0
        requester = client.requester
        original = requester._fill

        def fill() -> None:
            nonlocal most
            original()
            most = max(most, requester.outstanding)

        requester._fill = fill  # type: ignore[method-assign]
        items = [b"%d" % index for index in range(500)]
        assert await asyncio.gather(*[client.echo(item) for item in items]) == [[item] for item in items]
        assert most == 16
        assert client.rig.control.executed == 500

    run(test, server={"credits": 16})


def test_a_cancelled_call_keeps_its_credit_until_its_reply_and_gives_its_memory_back_at_once() -> None:
    async def test(server: Server, connection: Connection) -> None:
        first = start(connection)
        side = await server.accepted()
        (header,) = await waiting(side, 1)
        assert carrier_of(connection).requester._registrations.in_use == 1
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert carrier_of(connection).requester._registrations.in_use == 0
        second = start(connection)
        await settle()
        assert side.waiting == 0
        side.reply(header)
        (header,) = await waiting(side, 1)
        side.reply(header)
        await second
        assert carrier_of(connection).requester.counters.replies == 2

    run_alone(test, version=1)


def test_a_call_that_was_not_sent_yet_is_cancelled_without_a_trace() -> None:
    async def test(server: Server, connection: Connection) -> None:
        first, second, third = (start(connection) for _ in range(3))
        side = await server.accepted()
        (header,) = await waiting(side, 1)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        side.reply(header, credit=1)
        (header,) = await waiting(side, 1)
        side.reply(header, credit=1)
        await asyncio.gather(first, third)
        await settle()
        assert side.waiting == 0

    run_alone(test, version=1)


def test_a_call_that_waits_for_its_turn_does_not_count_as_unanswered() -> None:
    """Or a slow server would lose its connection when there is much to do."""

    async def test(server: Server, connection: Connection) -> None:
        calls = [start(connection) for _ in range(3)]
        side = await server.accepted()
        for _ in calls:
            (header,) = await waiting(side, 1)
            assert [call.sent_at is not None for call in connection._calls.values()].count(True) == 1
            side.reply(header, credit=1)
            await until(lambda header=header: header.xid not in connection._calls)  # type: ignore[misc]
        await asyncio.gather(*calls)

    run_alone(test, version=1)


def test_a_server_that_writes_for_a_cancelled_call_loses_the_connection_and_harms_no_other() -> None:
    async def test(server: Server, connection: Connection) -> None:
        memory = bytearray(b"." * 8192)
        call = start(connection, into=[memoryview(memory)])
        side = await server.accepted()
        (header,) = await waiting(side, 1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        other = start(connection)
        side.place(header.writes[0][0]._replace(length=4), b"late")
        await side.over()
        side = await server.accepted()
        side.reply(await side.call_header())
        await other
        assert memory == b"." * 8192

    run_alone(test, version=1)


def test_a_call_that_takes_too_long_is_given_up() -> None:
    async def test(server: Server, connection: Connection) -> None:
        with pytest.raises(TimeoutError):
            await start(connection, timeout=0.01)
        assert connection.outstanding == 0

    run_alone(test)
