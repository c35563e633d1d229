"""The TCP server: records in, from all connections in turns, over real sockets."""

import asyncio
import itertools
import struct

import pytest

from rpcrdma.server import tcp_connection
from rpcrdma.server.tcp import TcpListener
from tests.support.machine import needs_ipv6
from tests.unit.rpc_support import call
from tests.unit.tcp_support import data_call, run, serving, sum_call, until


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


def test_a_port_that_is_taken_is_an_error() -> None:
    async def test() -> None:
        async with serving() as server:
            other = TcpListener(server.dispatcher, server.pool, asyncio.get_running_loop())
            with pytest.raises(OSError, match="in use"):
                other.listen("127.0.0.1", server.listener.address[1])
            other.close()

    run(test)
