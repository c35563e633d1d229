"""The client library takes the server's calls (RFC 8167), and answers them by the programs it was given."""

from __future__ import annotations

import asyncio
import struct

import pytest

from rpcrdma.client import Connection, connect
from rpcrdma.peer.wire import (
    CALL,
    CANT_REPLY,
    ERROR,
    INVAL_OPTION,
    NOMSG,
    REPLY,
    ReplyHeader,
    header,
    header_two,
    option,
    words,
)
from rpcrdma.rpc.program import BackwardError, Call, Procedure, Program
from tests.peer.echo import NULL, PROGRAM, VERSION
from tests.peer.providers import provider  # noqa: F401 (runs each test on every provider)
from tests.peer.responder import CallHeader, Server, Side
from tests.unit.client_support import Client, carrier_of, pattern, run, run_alone, start, until
from tests.unit.test_client_tcp import TcpServer

BOTH = pytest.mark.parametrize("version", [1, 2])

CALLBACK = 0x40000000


class Answers:
    """A callback program: procedure 1 returns its argument as often as it says, procedure 2 waits."""

    def __init__(self) -> None:
        self.calls = 0
        self.gate = asyncio.Event()
        self.transports: list[object] = []
        rows = {
            0: Procedure("NULL", self.null, raw=True),
            1: Procedure("TIMES", self.times, raw=True),
            2: Procedure("WAIT", self.wait, raw=True),
        }
        self.program = Program(CALLBACK, "answers", {1: rows})

    async def null(self, call: Call) -> None:
        self.calls += 1
        self.transports.append(call.transport)

    async def times(self, call: Call) -> None:
        self.calls += 1
        times = call.arguments.uint32()
        data = call.arguments.opaque(1 << 16)
        call.results.opaque(data * times)

    async def wait(self, call: Call) -> None:
        self.calls += 1
        await self.gate.wait()


def callback(xid: int, procedure: int, arguments: bytes = b"") -> bytes:
    return struct.pack(">10I", xid, CALL, 2, CALLBACK, 1, procedure, 0, 0, 0, 0) + arguments


def times(count: int, data: bytes) -> bytes:
    return struct.pack(">II", count, len(data)) + data + bytes(-len(data) & 3)


def accepted(xid: int, data: bytes | None = None) -> bytes:
    results = b"" if data is None else struct.pack(">I", len(data)) + data + bytes(-len(data) & 3)
    return words(xid, REPLY, 0, 0, 0, 0) + results


@BOTH
def test_short_and_long_calls_and_replies_of_our_own_server(version: int) -> None:
    answers = Answers()

    async def test(client: Client) -> None:
        await client.call(procedure=NULL)
        transport = client.rig.control.transports[-1]
        assert client.connection.max_backchannel_size == 4096 - (28 if version == 1 else 36)
        assert bytes(await transport.call_back(callback(5, 0))) == accepted(5)
        short, long = pattern(700), pattern(20_000)
        reply = await transport.call_back(callback(6, 1, times(2, short)))
        assert bytes(reply) == accepted(6, short * 2)
        reply = await transport.call_back(callback(7, 1, times(1, long)), long=True, reply_size=30_000)
        assert bytes(reply) == accepted(7, long)
        reply = await transport.call_back(callback(8, 1, times(0, long)), long=True)
        assert bytes(reply) == accepted(8, b"")
        reply = await transport.call_back(callback(9, 1, times(10, short)), long=True, reply_size=8000)
        assert bytes(reply) == accepted(9, short * 10)
        assert answers.calls == 5
        # What belongs to no program, and what is not understood.
        assert bytes(await transport.call_back(callback(10, 9)))[20:24] == words(3)
        assert bytes(await transport.call_back(callback(11, 1, b"")))[20:24] != words(0)
        assert client.carrier._callee is not None
        assert len(client.carrier._callee) == 0
        # Forward calls go on meanwhile.
        waiting = asyncio.ensure_future(transport.call_back(callback(12, 2)))
        await until(lambda: answers.calls == 6)
        assert await client.echo(b"forward") == [b"forward"]
        answers.gate.set()
        assert bytes(await waiting) == accepted(12)

    run(test, version=version, callbacks=[answers.program])


@BOTH
def test_a_reply_without_room_is_an_error_of_the_transport(version: int) -> None:
    answers = Answers()

    async def test(client: Client) -> None:
        await client.call(procedure=NULL)
        transport = client.rig.control.transports[-1]
        with pytest.raises(BackwardError):
            await transport.call_back(callback(5, 1, times(10, pattern(1000))))
        assert bytes(await transport.call_back(callback(6, 0))) == accepted(6)

    run(test, version=version, callbacks=[answers.program])


def test_who_takes_no_calls_drops_them() -> None:
    async def test(client: Client) -> None:
        await client.call(procedure=NULL)
        transport = client.rig.control.transports[-1]
        with pytest.raises(TimeoutError):
            await transport.call_back(callback(5, 0), timeout=0.05)
        assert client.requester.counters.discards == 1
        assert client.connection.max_backchannel_size == 0
        assert await client.echo(b"fine") == [b"fine"]

    run(test)


def test_callbacks_over_tcp_and_what_the_program_sees_of_the_connection() -> None:
    answers = Answers()

    async def main() -> None:
        server = TcpServer()
        server.listen()
        async with connect("127.0.0.1", server.port, transport="tcp", callbacks=[answers.program]) as connection:
            await connection.call(PROGRAM, VERSION, NULL)
            transport = server.control.transports[-1]
            data = pattern(100_000)[: 1 << 16]
            reply = await transport.call_back(callback(5, 1, times(3, data)))  # type: ignore[attr-defined]
            assert bytes(reply) == accepted(5, data * 3)
            await transport.call_back(callback(6, 0))  # type: ignore[attr-defined]
            (seen,) = answers.transports
            assert (seen.netid, seen.peer_address, seen.connection) == ("tcp", "127.0.0.1", connection)  # type: ignore[attr-defined]
            closed: list[int] = []
            seen.on_close(lambda: closed.append(1))  # type: ignore[attr-defined]
        assert closed == [1]
        server.listener.close()

    asyncio.run(main())


def test_a_client_with_callbacks_reconnects_without_being_asked() -> None:
    answers = Answers()

    async def test(client: Client) -> None:
        await client.call(procedure=NULL)
        client.rig.connection.abort()
        await until(lambda: client.connection.reconnections == 1 and client.connection.carrier is not None)
        await client.call(procedure=NULL)
        transport = client.rig.control.transports[-1]
        assert bytes(await transport.call_back(callback(5, 0))) == accepted(5)

    run(test, callbacks=[answers.program], first_delay=0.01)


# What a server should not do


async def settled(server: Server, connection: Connection) -> Side:
    call = start(connection)
    side = await server.accepted()
    side.reply(await side.call_header())
    await call
    return side


def head(version: int, xid: int, **fields: object) -> bytes:
    return header(xid, **fields) if version == 1 else header_two(xid, **fields)  # type: ignore[arg-type]


@BOTH
def test_more_calls_than_granted_end_the_connection(version: int) -> None:
    answers = Answers()

    async def test(server: Server, connection: Connection) -> None:
        side = await settled(server, connection)
        for xid in range(4):
            side.send(head(version, xid), callback(xid, 2))
        await until(lambda: answers.calls == 4)
        side.send(head(version, 9), callback(9, 2))
        await side.over()
        answers.gate.set()
        side = await settled(server, connection)
        side.send(head(version, 1), callback(1, 0))
        reply = ReplyHeader.parse((await side.message()).octets)
        assert (reply.xid, reply.credit, reply.payload) == (1, 4, accepted(1))

    run_alone(test, version=version, callbacks=[answers.program], backward_credits=4)


@BOTH
def test_wrong_calls_get_errors_and_harm_nobody(version: int) -> None:
    answers = Answers()

    async def test(server: Server, connection: Connection) -> None:
        side = await settled(server, connection)
        exposed = side.readable(callback(7, 1, times(1, b"long")) + bytes(100_000))
        whole = exposed.segment(0, 52)
        cases = [
            (head(version, 7), callback(8, 0)),  # another XID within
            (head(version, 7, procedure=NOMSG, reads=[(4, whole)]), b""),  # no Position Zero Read chunk
            (head(version, 7, procedure=NOMSG, reads=[(0, whole), (8, whole)]), b""),  # an item that none has
            (head(version, 7, reads=[(0, whole)]), callback(7, 0)),  # a Long Call with a payload stream
            (head(version, 7, procedure=NOMSG, reads=[(0, exposed.segment(0, 90_000))]), b""),  # too long
            (head(version, 8, procedure=NOMSG, reads=[(0, whole)]), b""),  # another XID in what is read
        ]
        for number, (start_of, rest) in enumerate(cases):
            side.send(start_of, rest)
            reply = ReplyHeader.parse((await side.message()).octets)
            assert (reply.procedure, reply.error) == (ERROR, 2), number
        assert answers.calls == 0
        side.send(head(version, 7, procedure=NOMSG, reads=[(0, whole)]))
        reply = ReplyHeader.parse((await side.message()).octets)
        assert reply.payload == accepted(7, b"long")
        # A Reply chunk that is too small: nothing is written to it.
        tiny = side.writable(8)
        side.send(head(version, 9, reply=[tiny.segment()]), callback(9, 1, times(9, pattern(600))))
        reply = ReplyHeader.parse((await side.message()).octets)
        assert (reply.procedure, reply.error) == (ERROR, CANT_REPLY if version == 2 else 2)
        assert reply.shortage is None or reply.shortage == (1, 1, 5432 - 4)
        assert tiny.memory == b"\xee" * 8
        # Memory that is not there: the connection ends, and calls go on over another.
        side.send(head(version, 10, procedure=NOMSG, reads=[(0, whole._replace(handle=whole.handle ^ 0x55))]))
        await side.over()
        call = start(connection)
        side = await server.accepted()
        side.reply(await side.call_header())
        await call

    run_alone(test, version=version, callbacks=[answers.program])


def test_options_are_unknown_here() -> None:
    """draft-cel version Two, "Optional Features": who asks is told, who answers is not."""

    async def test(server: Server, connection: Connection) -> None:
        side = await settled(server, connection)
        side.send(option(0x77, 5, b"anything"))
        reply = ReplyHeader.parse((await side.message()).octets)
        assert (reply.xid, reply.procedure, reply.error) == (0x77, ERROR, INVAL_OPTION)
        side.send(option(0x78, 5, b"anything", direction=REPLY))
        await until(lambda: carrier_of(connection).requester.counters.discards == 2)
        call = start(connection)
        side.reply(CallHeader.parse((await side.message()).octets))
        await call

    run_alone(test, version=2)
