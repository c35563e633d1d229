"""The client library over TCP, against our own server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rpcrdma.client import ClientOptions, Connection, Denied, Refused, connect
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.messages import accept_stat, auth_flavor, auth_stat, opaque_auth
from rpcrdma.server.tcp import TcpListener
from rpcrdma.xdr import Encoder
from rpcrdma.xdr.payload import Payload
from tests.peer.echo import ECHO, NULL, ONCE, PROGRAM, VERSION, Control, echo_program


class TcpServer:
    """The echo program behind a listener."""

    def __init__(self) -> None:
        self.control = Control()
        self.dispatcher = Dispatcher([echo_program(self.control)])
        self.pool = Pool(64 << 20)

    def listen(self, port: int = 0) -> None:
        self.listener = TcpListener(self.dispatcher, self.pool, asyncio.get_running_loop())
        self.listener.listen("127.0.0.1", port)
        self.port = self.listener.address[1]


@asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[tuple[TcpServer, Connection]]:
    server = TcpServer()
    server.listen()
    try:
        async with connect("127.0.0.1", server.port, transport="tcp", options=ClientOptions(**options)) as connection:
            yield server, connection
    finally:
        server.listener.close()
    assert server.pool.in_use == 0


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (anything in the process may change it)
            await asyncio.sleep(0)


def arguments(*items: bytes, filler: int = 0) -> Encoder:
    encoder = Encoder()
    encoder.uint32(filler)
    encoder.uint32(len(items))
    for item in items:
        encoder.boolean(True)
        encoder.bulk(Payload(memoryview(item)))
    return encoder


def test_bulk_results_are_copied_to_where_they_are_wanted() -> None:
    async def main() -> None:
        async with connected() as (_, connection):
            into = [memoryview(bytearray(b"." * 20)), memoryview(bytearray(200_000))]
            data = bytes(range(256)) * 500
            reply = await connection.call(PROGRAM, VERSION, ECHO, arguments(b"seven..", data), into=into)
            decoder = reply.decoder()
            assert (decoder.opaque(0), decoder.uint32()) == (b"", 2)
            items = [(decoder.boolean(), decoder.bulk(1 << 20))[1] for _ in range(2)]
            decoder.finish(strict=True)
            assert [bytes(item) for item in items] == [b"seven..", data]
            assert bytes(into[0]) == b"seven.." + b"." * 13
            assert bytes(into[1][: len(data)]) == data
            assert reply.placed == [0, 0]
            assert (connection.transport, connection.rdma_version) == ("tcp", 0)

    asyncio.run(main())


def test_what_rpc_refuses_is_an_exception() -> None:
    async def main() -> None:
        async with connected() as (_, connection):
            for number, version, procedure, stat, versions in (
                (PROGRAM + 1, VERSION, NULL, accept_stat.PROG_UNAVAIL, None),
                (PROGRAM, VERSION + 4, NULL, accept_stat.PROG_MISMATCH, (VERSION, VERSION)),
                (PROGRAM, VERSION, 99, accept_stat.PROC_UNAVAIL, None),
                (PROGRAM, VERSION, ECHO, accept_stat.GARBAGE_ARGS, None),
            ):
                with pytest.raises(Refused) as refused:
                    await connection.call(number, version, procedure)
                assert (refused.value.stat, refused.value.versions) == (stat, versions)
            broken = opaque_auth(auth_flavor.AUTH_SYS, b"nonsense")
            with pytest.raises(Denied) as denied:
                await connection.call(PROGRAM, VERSION, NULL, credential=broken)
            assert denied.value.auth_stat == auth_stat.AUTH_BADCRED
            (await connection.call(PROGRAM, VERSION, NULL)).decode(None)

    asyncio.run(main())


def test_many_calls_at_a_time() -> None:
    async def main() -> None:
        async with connected() as (server, connection):
            server.control.gate = asyncio.Event()
            calls = [
                asyncio.ensure_future(connection.call(PROGRAM, VERSION, ECHO, arguments(b"%d" % index)))
                for index in range(100)
            ]
            await until(lambda: server.control.running == 100)
            assert connection.outstanding == 100
            server.control.gate.set()
            for index, reply in enumerate(await asyncio.gather(*calls)):
                assert bytes(reply.results[16:]).rstrip(b"\0") == b"%d" % index
            assert connection.outstanding == 0

    asyncio.run(main())


def test_a_lost_connection_is_made_anew_and_its_calls_are_answered_from_the_replay_cache() -> None:
    async def main() -> None:
        async with connected(first_delay=0.01) as (server, connection):
            server.control.gate = asyncio.Event()
            waiting = asyncio.ensure_future(connection.call(PROGRAM, VERSION, ONCE, arguments(b"once")))
            await until(lambda: server.control.running)
            server.listener.close()
            server.control.gate.set()
            server.listen(server.port)
            reply = await asyncio.wait_for(waiting, 20)
            assert bytes(reply.results[16:]) == b"once"
            assert server.control.executed == 1
            assert (connection.reconnections, connection.retransmissions) == (1, 1)

    asyncio.run(main())


def test_without_a_server_the_calls_fail_in_the_end() -> None:
    async def main() -> None:
        async with connected(reconnect=0.05, first_delay=0.01) as (server, connection):
            server.listener.close()
            with pytest.raises(ConnectionError):
                await connection.call(PROGRAM, VERSION, NULL)
        with pytest.raises(OSError, match="Connect call failed"):
            async with connect("127.0.0.1", server.port, transport="tcp"):
                pass

    asyncio.run(main())


def test_a_call_that_takes_too_long_is_given_up() -> None:
    async def main() -> None:
        async with connected() as (server, connection):
            server.control.gate = asyncio.Event()
            with pytest.raises(TimeoutError):
                await connection.call(PROGRAM, VERSION, ECHO, arguments(b"late"), timeout=0.01)
            server.control.gate.set()
            reply = await connection.call(PROGRAM, VERSION, ECHO, arguments(b"soon"))
            assert bytes(reply.results[16:]) == b"soon"

    asyncio.run(main())


def test_a_name_with_several_addresses_is_tried_until_one_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        server = TcpServer()
        server.listen()
        asked = []

        async def addresses(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
            asked.append(host)
            return [(0, 0, 0, "", ("127.0.0.2", port)), (0, 0, 0, "", ("127.0.0.1", port))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", addresses)
        async with connect("server.example", server.port, transport="tcp") as connection:
            (await connection.call(PROGRAM, VERSION, NULL)).decode(None)
        assert asked == ["server.example"]
        server.listener.close()

    asyncio.run(main())
