"""Servers that answer wrongly: the client library neither crashes nor lets them reach memory that is not theirs.

What is wrong in the header of a reply makes it be discarded (RFC 8166 section 4.5): every test goes on with a good one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import Callable
from typing import Annotated, Any

import pytest

from rpcrdma.client import BadReply, CallError, ChunkChoice, Connection
from rpcrdma.peer.wire import CALL, DONE, ERROR, MSGP, NOMSG, REPLY, Segment, header, words
from rpcrdma.wire.private_data import PrivateData
from rpcrdma.xdr import DDP, Payload, opaque
from tests.peer.providers import provider  # noqa: F401 (runs each test on every provider)
from tests.peer.responder import CallHeader, Server, Side, filled, reply_header, rpc_reply
from tests.unit.client_support import carrier_of, run_alone, start, until

BOTH = pytest.mark.parametrize("version", [1, 2])

Wrong = Callable[[Side, CallHeader], None]


def grown(chunk: tuple[Segment, ...], index: int, **changes: int) -> list[Segment]:
    segments = filled(chunk, 10_000_000)
    segments[index] = segments[index]._replace(**changes)
    return segments


def send_with(**fields: Any) -> Wrong:
    """A Short Reply with these header fields."""
    return lambda side, call: side.reply(call, **fields)


def with_writes(change: Callable[[tuple[Segment, ...]], list[list[Segment]]]) -> Wrong:
    return lambda side, call: side.reply(call, writes=change(call.writes[0]))


def long_reply(change: Callable[[tuple[Segment, ...]], Any]) -> Wrong:
    """RDMA_NOMSG with this Reply chunk."""

    def send(side: Side, call: CallHeader) -> None:
        assert call.reply is not None
        side.send(reply_header(call, procedure=NOMSG, reply=change(call.reply)))

    return send


def raw(*values: int, rest: bytes = b"") -> Wrong:
    """The call's XID and these words."""
    return lambda side, call: side.send(words(call.xid, *values) + rest)


# Of a call with one Write chunk of three segments and a Reply chunk of three.
WRONG: dict[str, Wrong] = {
    "an XID of no call": lambda side, call: side.send(reply_header(call, xid=call.xid ^ 1), rpc_reply(call.xid ^ 1)),
    "another XID in the RPC message": lambda side, call: side.send(reply_header(call), rpc_reply(call.xid ^ 1)),
    "a call instead of a reply": lambda side, call: side.send(reply_header(call), words(call.xid, CALL, 2, 1, 1, 1)),
    "no RPC message": lambda side, call: side.send(reply_header(call)),
    "another version": lambda side, call: side.send(
        words(call.xid, 3 - call.version, 32, 0, 1, 0, 0, 0, 0) + bytes(40)
    ),
    "a version nobody knows": lambda side, call: side.send(words(call.xid, 9, 32, 0, 0, 0, 0) + bytes(40)),
    "an empty message": lambda side, call: side.send(b""),
    "half a header": lambda side, call: side.send(reply_header(call)[:20]),
    "three quarters of a header": lambda side, call: side.send(reply_header(call)[:47]),
    "an unknown procedure": raw(1, 32, 77, rest=bytes(40)),
    "RDMA_MSGP": raw(1, 32, MSGP, rest=bytes(40)),
    "RDMA_DONE": raw(1, 32, DONE, rest=bytes(40)),
    "an error of another version": raw(7, 32, ERROR, 2),
    "an error with an unknown code": raw(1, 32, ERROR, 77),
    "an error without a code": raw(1, 32, ERROR),
    "a version error without versions": raw(1, 32, ERROR, 1),
    "a Read list": send_with(reads=[(0, Segment(7, 7, 7))]),
    "too few Write chunks after all": lambda side, call: side.reply(call, writes=[[], []]),
    "too many Write chunks": with_writes(lambda chunk: [filled(chunk, 0), filled(chunk, 0)]),
    "too many segments": with_writes(lambda chunk: [[*filled(chunk, 0), Segment(1, 0, 1)]]),
    "too few segments": with_writes(lambda chunk: [filled(chunk, 0)[:2]]),
    "a longer segment than offered": with_writes(lambda chunk: [grown(chunk, 2, length=chunk[2].length + 1)]),
    "a segment of four gigabytes": with_writes(lambda chunk: [grown(chunk, 2, length=0xFFFFFFFF)]),
    "another handle": with_writes(lambda chunk: [grown(chunk, 1, handle=chunk[1].handle ^ 1)]),
    "another offset": with_writes(lambda chunk: [grown(chunk, 1, offset=chunk[1].offset + 4)]),
    "a gap between segments": with_writes(lambda chunk: [grown(chunk, 0, length=1)]),
    "a Short Reply with octets in the Reply chunk": lambda side, call: side.reply(
        call, reply=filled(call.reply or (), 9)
    ),
    "a Long Reply of no octets": long_reply(lambda chunk: filled(chunk, 0)),
    "a Long Reply without a chunk": long_reply(lambda chunk: None),
    "a Long Reply beyond its chunk": long_reply(lambda chunk: grown(chunk, 2, length=0x7FFFFFFF)),
    "a Long Reply somewhere else": long_reply(lambda chunk: grown(chunk, 0, handle=chunk[0].handle ^ 0x100)),
    "a segment count beyond the message": raw(1, 32, 0, 0, 1, 0x0FFFFFFF, rest=bytes(40)),
    "a list that never ends": raw(1, 32, 0, rest=words(1) * 200),
}


@BOTH
@pytest.mark.parametrize("wrong", WRONG.values(), ids=[name.replace(" ", "-") for name in WRONG])
def test_a_wrong_reply_is_discarded_and_the_good_one_counts(wrong: Wrong, version: int) -> None:
    async def test(server: Server, connection: Connection) -> None:
        first = start(connection)
        side = await server.accepted()
        side.reply(await side.call_header())
        await first
        memory = bytearray(b"." * 300)
        into = memoryview(memory)[100:200]
        call = start(
            connection, into=[into], reply_max=100, chunks=ChunkChoice(reply="write+reply", segments=3)
        )  # fmt: skip
        offered = await side.call_header()
        requester = carrier_of(connection).requester
        discarded, errors = requester.counters.discards, requester.counters.errors
        wrong(side, offered)
        await until(lambda: (requester.counters.discards, requester.counters.errors) != (discarded, errors))
        assert requester.counters.errors == errors
        assert not call.done()
        placed = filled(offered.writes[0], 50)
        for index, segment in enumerate(placed):
            side.place(segment, b"%d" % index * segment.length)
        side.reply(offered, b"good", writes=[placed])
        reply = await call
        assert (bytes(reply.results), reply.placed) == (b"good", [50])
        assert memory == b"." * 100 + b"0" * 33 + b"1" * 17 + b"." * 150
        assert connection.reconnections == 0
        assert requester._registrations.in_use == 0

    run_alone(test, version=version)


@BOTH
def test_a_long_reply_that_is_none_is_an_error_of_the_call(version: int) -> None:
    async def test(server: Server, connection: Connection) -> None:
        call = start(connection, into=[], chunks=ChunkChoice(reply="reply"))
        side = await server.accepted()
        offered = await side.call_header()
        assert offered.reply is not None
        side.place(offered.reply[0]._replace(length=12), words(offered.xid ^ 1, REPLY, 0))
        side.send(reply_header(offered, procedure=NOMSG, reply=filled(offered.reply, 12)))
        with pytest.raises(BadReply):
            await call

    run_alone(test, version=version)


@pytest.mark.parametrize("octets", [words(0, 0), words(0, 0, 0), words(7), words(0, 0, 0, 9), words(1, 5), words(1, 1)])
def test_an_rpc_reply_that_does_not_decode_is_an_error_of_the_call(octets: bytes) -> None:
    async def test(server: Server, connection: Connection) -> None:
        call = start(connection)
        side = await server.accepted()
        offered = await side.call_header()
        side.send(reply_header(offered), words(offered.xid, REPLY) + octets)
        with pytest.raises(BadReply):
            await call

    run_alone(test, version=1)


def test_an_item_of_another_length_than_was_placed_is_an_error_of_the_call() -> None:
    async def test(server: Server, connection: Connection) -> None:
        call = start(connection)
        side = await server.accepted()
        offered = await side.call_header()
        side.reply(offered, words(500), writes=[filled(offered.writes[0], 100)])
        reply = await call
        with pytest.raises(BadReply, match="100 octets for an item of 500"):
            reply.decode(Annotated[Payload | bytes | memoryview, opaque(9000), DDP])

    run_alone(test, version=1)


# Invalidation


def test_a_handle_of_another_call_that_is_invalidated_ends_the_connection() -> None:
    async def test(server: Server, connection: Connection) -> None:
        first = start(connection)
        side = await server.accepted()
        side.reply(await side.call_header())
        await first
        one, two = start(connection), start(connection)
        headers = [await side.call_header() for _ in range(2)]
        side.reply(headers[0], invalidate=headers[1].writes[0][0].handle)
        assert "closed by the peer" in await side.over() or server.provider.name != "loopback"
        assert not one.done()
        side = await server.accepted()
        for before in headers:
            again = await side.call_header()
            assert again.xid == before.xid
            side.reply(again, invalidate=again.writes[0][0].handle if server.provider.can_be_invalidated else None)
        await asyncio.gather(one, two)

    run_alone(test, version=1)


def test_an_invalidation_that_was_not_agreed_on_ends_the_connection() -> None:
    async def test(server: Server, connection: Connection) -> None:
        call = start(connection)
        side = await server.accepted()
        offered = await side.call_header()
        side.reply(offered, invalidate=offered.writes[0][0].handle)
        await side.over()
        side = await server.accepted()
        side.reply(await side.call_header())
        await call
        assert connection.reconnections == 1

    run_alone(test, version=1, remote_invalidation=False)


def test_a_server_that_invalidates_the_calls_memory_without_having_said_so_is_let_do_it() -> None:
    """As Linux's does (RFC 8797 section 4.1 wants it to set R, too)."""

    async def test(server: Server, connection: Connection) -> None:
        call = start(connection)
        side = await server.accepted()
        offered = await side.call_header()
        invalidated = server.provider.can_be_invalidated
        side.reply(offered, invalidate=offered.writes[0][0].handle if invalidated else None)
        await call
        assert connection.reconnections == 0
        assert carrier_of(connection).requester.counters.invalidated == invalidated

    silent = PrivateData(remote_invalidation=False, send_size=4096, receive_size=4096)
    run_alone(test, version=1, private_data=silent.encode())


@pytest.mark.parametrize("choice", ["auto", "never"])
def test_version_two_names_the_one_handle_that_may_be_invalidated(choice: Any) -> None:
    async def test(server: Server, connection: Connection) -> None:
        first = start(connection)
        side = await server.accepted()
        side.reply(await side.call_header())
        await first
        into = [memoryview(bytearray(5000)), memoryview(bytearray(5000))]
        call = start(connection, into=into, chunks=ChunkChoice(invalidate=choice))
        offered = await side.call_header()
        handles = [chunk[0].handle for chunk in offered.writes]
        assert len(set(handles)) == 2
        assert offered.inv_handle == (handles[0] if choice == "auto" else 0)
        side.reply(offered, invalidate=handles[1])
        await side.over()
        side = await server.accepted()
        side.reply(offered := await side.call_header(), invalidate=offered.inv_handle or None)
        await call
        assert connection.reconnections == 1

    run_alone(test, version=2)


def test_a_message_that_answers_nothing_and_invalidates_ends_the_connection() -> None:
    async def test(server: Server, connection: Connection) -> None:
        call = start(connection)
        side = await server.accepted()
        offered = await side.call_header()
        side.send(header(offered.xid ^ 1), rpc_reply(offered.xid ^ 1), invalidate=offered.writes[0][0].handle)
        await side.over()
        side = await server.accepted()
        side.reply(await side.call_header())
        await call

    run_alone(test, version=1)


# Memory


def test_memory_is_out_of_reach_before_the_caller_goes_on() -> None:
    async def test(server: Server, connection: Connection) -> None:
        memory = bytearray(8192)
        call = start(connection, into=[memoryview(memory)])
        side = await server.accepted()
        offered = await side.call_header()
        segment = offered.writes[0][0]
        side.place(segment._replace(length=4), b"done")
        side.reply(offered, writes=[filled(offered.writes[0], 4)])
        await call
        memory[:] = b"." * 8192
        side.place(segment._replace(length=4), b"late")
        await side.over()
        assert memory == b"." * 8192

    run_alone(test, version=1)


def test_a_server_reaches_neither_side_of_what_is_offered() -> None:
    async def test(server: Server, connection: Connection) -> None:
        memory = bytearray(b"." * 300)
        call = start(connection, into=[memoryview(memory)[100:200]], chunks=ChunkChoice(reply="write"))
        for before, length in ((1, 4), (-98, 4), (0, 101)):
            side = await server.accepted()
            segment = (await side.call_header()).writes[0][0]
            side.place(Segment(segment.handle, length, segment.offset - before), b"x" * length)
            await side.over()
        side = await server.accepted()
        side.reply(await side.call_header())
        await call
        assert memory == b"." * 300

    run_alone(test, version=1)


def test_what_may_be_read_cannot_be_written_and_the_other_way_round() -> None:
    async def test(server: Server, connection: Connection) -> None:
        data = bytearray(b"-" * 9000)
        memory = bytearray(b"." * 100)
        choice = ChunkChoice(call="long", reply="write")
        call = start(connection, arguments=data, into=[memoryview(memory)], chunks=choice)
        side = await server.accepted()
        offered = await side.call_header()
        side.place(offered.read_segments[0][1]._replace(length=4), b"xxxx")
        await side.over()
        side = await server.accepted()
        offered = await side.call_header()
        with pytest.raises(ConnectionError):
            await side.fetch(offered.writes[0][0])
        await side.over()
        side = await server.accepted()
        offered = await side.call_header()
        assert (await side.fetch(offered.read_segments[0][1])).endswith(b"-" * 9000)
        side.reply(offered)
        await call
        assert memory == b"." * 100

    run_alone(test, version=1)


# Anything at all


@BOTH
def test_five_hundred_damaged_replies_harm_nobody(version: int) -> None:
    """Replies with random damage: calls end with a reply, an error, or a discarded reply; never otherwise."""

    async def test(server: Server, connection: Connection) -> None:
        generator = random.Random(20 + version)
        first = start(connection)
        side = await server.accepted()
        side.reply(await side.call_header())
        await first
        outcomes: dict[str, int] = {}
        guard = bytearray(b"." * 400)
        for _ in range(500):
            choice = ChunkChoice(
                reply=generator.choice(["inline", "write", "reply", "write+reply"]), segments=generator.randint(1, 3)
            )
            call = start(connection, into=[memoryview(guard)[100:300]], reply_max=100, chunks=choice)
            while True:
                try:
                    offered = await side.call_header()
                except ConnectionError:
                    side = await server.accepted()
                    continue
                break
            message = bytearray(reply_header(offered) + rpc_reply(offered.xid, b"good"))
            if offered.reply and generator.random() < 0.5:
                message = bytearray(reply_header(offered, procedure=NOMSG, reply=filled(offered.reply, 12)))
            for _ in range(generator.randint(1, 3)):
                at = generator.randrange(0, len(message), 4)
                word = generator.choice([0, 1, 2, 4, 0xFFFFFFFF, generator.getrandbits(32)])
                struct.pack_into(">I", message, at, word)
            if generator.random() < 0.2:
                del message[generator.randrange(len(message)) :]
            side.send(bytes(message))
            side.reply(offered, b"good")
            outcome = "none"
            with contextlib.suppress(TimeoutError):
                try:
                    outcome = bytes((await asyncio.wait_for(call, 10)).results).decode(errors="replace")[:4]
                except CallError as error:
                    outcome = type(error).__name__
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            assert guard[:100] + guard[300:] == b"." * 200
        assert outcomes.pop("none", 0) == 0
        assert outcomes["good"] > 250
        assert connection.outstanding == 0
        assert carrier_of(connection).requester._registrations.in_use == 0

    run_alone(test, version=version)
