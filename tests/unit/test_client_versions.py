"""The client library settles on a version, and on what private data says (draft-cel version Two, RFC 8797)."""

from __future__ import annotations

import asyncio

import pytest

from rpcrdma.client import Connection, TransportError
from rpcrdma.peer.wire import CANT_REPLY, ERR_CHUNK, ERR_VERS, ERROR, words
from rpcrdma.wire.private_data import PrivateData, find
from tests.peer.providers import provider  # noqa: F401 (runs each test on every provider)
from tests.peer.responder import CallHeader, Server
from tests.unit.client_support import Client, carrier_of, pattern, run, run_alone, start


def test_version_two_is_tried_first_within_its_initial_thresholds_and_used_when_it_works() -> None:
    async def test(server: Server, connection: Connection) -> None:
        data = pattern(3000)
        call = start(connection, arguments=data)
        side = await server.accepted()
        message = (await side.message()).octets
        assert len(message) <= 1024
        assert message[4:8] == words(2)
        later = start(connection, arguments=data)
        side.reply(CallHeader.parse(message))
        await call
        header = await side.call_header()
        assert (header.version, header.procedure, header.reads) == (2, 0, 0)
        assert header.payload.endswith(data)
        side.reply(header)
        await later

    run_alone(test)


def test_a_version_one_server_gets_the_same_call_in_version_one() -> None:
    async def test(server: Server, connection: Connection) -> None:
        call = start(connection)
        side = await server.accepted()
        first = await side.call_header()
        assert first.version == 2
        side.send(words(first.xid, 2, 32, ERROR, ERR_VERS, 1, 1))
        second = await side.call_header()
        assert (second.version, second.xid) == (1, first.xid)
        side.reply(second, b"done")
        assert bytes((await call).results) == b"done"
        assert connection.rdma_version == 1
        # The connection keeps it, and so does the next one.
        call = start(connection)
        third = await side.call_header()
        assert third.version == 1
        side.endpoint.close(abort=True)
        fourth = await (side := await server.accepted()).call_header()
        assert (fourth.version, fourth.xid) == (1, third.xid)
        side.reply(fourth)
        await call

    run_alone(test)


def test_our_own_server_without_version_two() -> None:
    async def test(client: Client) -> None:
        data = pattern(50_000)
        assert await client.echo(data) == [data]
        assert client.connection.rdma_version == 1
        assert await client.echo(data) == [data]
        assert client.connection.reconnections == 0

    run(test, server={"version_two": False})


def test_a_connection_that_is_lost_while_version_two_is_tried_is_made_again_in_version_one() -> None:
    async def test(server: Server, connection: Connection) -> None:
        call = start(connection)
        side = await server.accepted()
        first = await side.call_header()
        assert first.version == 2
        side.endpoint.close(abort=True)
        side = await server.accepted()
        second = await side.call_header()
        assert (second.version, second.xid) == (1, first.xid)
        side.reply(second)
        await call

    run_alone(test)


@pytest.mark.parametrize("versions", [(3, 4), (2, 2), (0, 0), (5, 1)])
def test_a_server_without_a_version_of_ours_is_an_error(versions: tuple[int, int]) -> None:
    async def test(server: Server, connection: Connection) -> None:
        call = start(connection)
        side = await server.accepted()
        first = await side.call_header()
        side.send(words(first.xid, 2, 32, ERROR, ERR_VERS, *versions))
        with pytest.raises(TransportError) as error:
            await call
        assert error.value.error.versions == versions

    run_alone(test)


def test_who_wants_one_version_gets_no_other() -> None:
    async def test(server: Server, connection: Connection) -> None:
        call = start(connection)
        side = await server.accepted()
        first = await side.call_header()
        side.send(words(first.xid, 2, 32, ERROR, ERR_VERS, 1, 1))
        with pytest.raises(TransportError, match="versions 1 to 1"):
            await call

    run_alone(test, version=2)


def test_what_private_data_says_is_kept() -> None:
    async def test(server: Server, connection: Connection) -> None:
        call = start(connection)
        side = await server.accepted()
        own = find(side.private_data)
        assert own == PrivateData(server.provider.can_be_invalidated, 8192, 16384)
        header = await side.call_header()
        side.reply(header)
        await call
        requester = carrier_of(connection).requester
        assert (requester.properties.send_threshold, requester.properties.receive_threshold) == (2048, 6144)

    theirs = PrivateData(remote_invalidation=False, send_size=6144, receive_size=2048)
    run_alone(test, version=1, private_data=theirs.encode(), send_size=8192, receive_size=16384)


def test_a_server_that_says_nothing_gets_messages_of_1024_octets() -> None:
    async def test(server: Server, connection: Connection) -> None:
        call = start(connection, arguments=pattern(1000), reply_max=990, into=[])
        side = await server.accepted()
        header = await side.call_header()
        assert (header.procedure, header.reads) == (1, 1)
        assert header.reply is None
        side.reply(header)
        await call
        call = start(connection, arguments=pattern(940), reply_max=1000, into=[])
        header = await side.call_header()
        assert (header.procedure, header.reads) == (1, 1)  # the Reply chunk leaves no room
        assert header.reply is not None
        side.reply(header)
        await call

    run_alone(test, version=1, private_data=b"")


def test_a_transport_error_ends_the_call_and_withdraws_its_memory() -> None:
    async def test(server: Server, connection: Connection) -> None:
        call = start(connection)
        side = await server.accepted()
        header = await side.call_header()
        side.send(words(header.xid, 1, 32, ERROR, ERR_CHUNK))
        with pytest.raises(TransportError, match="ERR_CHUNK"):
            await call
        assert carrier_of(connection).requester._registrations.in_use == 0
        call = start(connection)
        side.reply(await side.call_header())
        await call

    run_alone(test, version=1)


def test_a_reply_without_room_is_asked_for_again_with_the_same_xid() -> None:
    """draft-cel, "Transport Errors"."""

    async def test(server: Server, connection: Connection) -> None:
        call = start(connection, into=[])
        side = await server.accepted()
        header = await side.call_header()
        assert header.reply is None
        side.send(words(header.xid, 2, 32, ERROR, CANT_REPLY, 1, 0, 5000))
        again = await side.call_header()
        assert (again.xid, again.payload) == (header.xid, header.payload)
        assert again.reply is not None
        (segment,) = again.reply
        assert segment.length == 5000
        # Enlarged once; then it is the caller's to know.
        side.send(words(header.xid, 2, 32, ERROR, CANT_REPLY, 1, 1, 6000))
        with pytest.raises(TransportError, match="6000 octets needed"):
            await call

    run_alone(test, version=2)


def test_a_reply_without_room_of_our_own_server_is_answered_from_its_replay_cache() -> None:
    async def test(client: Client) -> None:
        await client.echo()
        for reply in ("inline", "reply"):
            assert await client.echo(b"once", filler=9000, reply=reply, reply_max=100, procedure=2) == [b"once"]
        assert client.rig.control.executed == 3
        with pytest.raises(TransportError) as error:
            await client.echo(pattern(50), into=[memoryview(bytearray(8))], reply="write")
        assert error.value.error.shortage == (True, 1, 50)

    run(test, version=2)


def test_thresholds_before_and_after_the_version_is_settled() -> None:
    async def test(client: Client) -> None:
        requester = client.requester
        assert requester.properties.send_threshold == 1024
        await client.echo()
        assert requester.properties.send_threshold == 4096
        sent = requester.counters.sends
        await asyncio.gather(*[client.echo(pattern(3900)) for _ in range(10)])
        assert requester.counters.sends == sent + 10

    run(test)
