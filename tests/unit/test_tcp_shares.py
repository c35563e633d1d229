"""Clients that take all they can get from a TCP server, each from an address of its own, and one that is honest."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rpcrdma.memory import Lease
from rpcrdma.rpc.native import Gate
from tests.unit.rpc_support import call
from tests.unit.tcp_support import Client, Server, data_call, run, serving, sum_call, turns, until
from tests.unit.test_memory_shares import fill

MIB = 1 << 20


def mark(length: int) -> bytes:
    return struct.pack(">I", 0x80000000 | length)


@contextlib.asynccontextmanager
async def many(server: Server, number: int, address: str, first: bytes = b"") -> AsyncIterator[list[socket.socket]]:
    """Connections of one address that have sent ``first``."""
    loop, socks = asyncio.get_running_loop(), []
    try:
        for _ in range(number):
            sock = socket.socket()
            socks.append(sock)
            sock.bind((address, 0))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", server.listener.address[1]))
            with contextlib.suppress(OSError):  # it has been closed already
                sock.send(first)
        yield socks
    finally:
        for sock in socks:
            sock.close()


async def works(client: Client, xid: int) -> None:
    """A small call and a large one are answered."""
    client.send(call(0, xid=xid))
    assert await client.xid() == xid
    client.send(sum_call(b"\1" * MIB, xid=xid))
    assert (await client.receive())[24:] == MIB.to_bytes(4, "big")


@pytest.mark.parametrize("proven", [False, True])
def test_half_records_leave_memory_for_others(proven: bool) -> None:
    """Each connection promises a record of 1 MiB and sends one octet, with or without a call before."""

    async def test() -> None:
        async with serving(host_memory=16 * MIB) as server:
            first = mark(40) + bytes(call(0)) if proven else b""
            async with many(server, 300, "127.0.0.2", first + mark(MIB) + b"\0"):
                await until(lambda: len(server.listener.connections) >= 200)
                await turns()
                await works(await server.connect(), 1)
                assert server.pool.in_use <= 16 * MIB + 4 * MIB

    run(test)


def test_half_records_of_the_same_host_leave_it_memory() -> None:
    async def test() -> None:
        async with serving() as server, many(server, 250, "127.0.0.1", mark(MIB) + b"\0"):
            await until(lambda: len(server.listener.connections) == 250)
            await turns()
            await works(await server.connect(), 1)

    run(test)


def exhaust(server: Server) -> list[Lease]:
    """All memory there is, the reserve too."""
    held: list[Lease] = []
    while more := fill(server.pool.account(64 * MIB), 64 * 1024):
        held += more
    return held


def test_peers_that_have_gone_are_noticed_while_nobody_reads_from_them() -> None:
    """Clients that die in the middle of a WRITE while memory is short."""

    async def test() -> None:
        async with serving() as server:
            connections, loop = server.listener.connections, asyncio.get_running_loop()
            assert server.listener._socket is not None
            # A close is seen only when all that was sent before has been taken by the kernel.
            server.listener._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * MIB)
            async with many(server, 20, "127.0.0.1", mark(MIB) + bytes(100_000)) as socks:
                for sock in socks:
                    await loop.sock_sendall(sock, bytes(100_000))
                await until(lambda: sum(each.stream.missing == MIB - 200_000 for each in connections) == 20)
                held = exhaust(server)
                for sock in socks:  # more than any of their buffers takes by now, and less than the record
                    await loop.sock_sendall(sock, bytes(400_000))
                await until(lambda: all(each.stream.starved for each in connections))
                patient = socks.pop()
                for sock in socks:
                    sock.close()
                await until(lambda: server.listener.check_times(loop.time()) or len(connections) == 1)
                patient.close()
            for lease in held:
                lease.release()
            await works(await server.connect(), 1)
            assert server.hosts.events["closed_gone"] == 19

    run(test)


def test_a_peer_that_has_sent_all_and_waits_is_not_taken_for_gone() -> None:
    async def test() -> None:
        async with serving() as server:
            held = exhaust(server)
            client = await server.connect()
            client.send(call(0, xid=7))
            client.writer.write_eof()
            await until(lambda: server.listener.connections and server.connection().stream.starved)
            server.listener.check_times(asyncio.get_running_loop().time())
            for lease in held:
                lease.release()
            assert await client.xid() == 7

    run(test)


def test_readers_that_drain_a_few_octets_now_and_then_lose_their_memory_when_it_is_short() -> None:
    async def test() -> None:
        async with serving(host_memory=32 * MIB) as server:
            calls = b"".join(mark(44) + bytes(data_call(MIB, xid)) for xid in range(40))
            async with contextlib.AsyncExitStack() as stack:
                slow = []
                for address in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
                    slow += await stack.enter_async_context(many(server, 10, address, calls))
                await until(lambda: server.pool.in_use > 48 * MIB)
                client = await server.connect()
                client.send(call(0, xid=1))
                assert await client.xid() == 1  # a small call of another host gets in
                now = asyncio.get_running_loop().time()
                while server.pool.in_use >= 48 * MIB:
                    now += 1
                    for sock in slow:
                        with contextlib.suppress(BlockingIOError, ConnectionError):
                            sock.recv(16)
                    await turns()
                    server.listener.check_times(now)
                assert server.hosts.events["closed_stuck"] > 0
                await works(client, 2)

    run(test)


def test_a_slow_reader_lives_as_long_as_memory_is_plenty() -> None:
    async def test() -> None:
        async with serving() as server:
            calls = b"".join(mark(44) + bytes(data_call(MIB, xid)) for xid in range(8))
            async with many(server, 1, "127.0.0.1", calls) as (sock,):
                await until(lambda: server.listener.connections and server.connection().stream.queued > MIB)
                began = asyncio.get_running_loop().time()
                for now in range(0, 200, 10):
                    before = server.connection().stream.sent_octets
                    while server.connection().stream.sent_octets == before:
                        with contextlib.suppress(BlockingIOError):
                            sock.recv(65536)
                        await asyncio.sleep(0)
                    server.listener.check_times(began + now)
                    if not server.connection().stream.queued:
                        break

    run(test)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_silent_connections_do_not_push_out_an_honest_one(address: str) -> None:
    """However idle that is, and wherever they come from."""

    async def test() -> None:
        async with serving(connections=40, host_connections=30) as server:
            client = await server.connect()
            client.send(call(0, xid=1))
            await client.receive()
            async with many(server, 100, address):
                await until(lambda: server.listener.accepted + server.listener.refused == 101)
                client.send(call(0, xid=2))
                assert await client.xid() == 2
                other = await server.connect()
                other.send(call(0, xid=3))
                assert await other.xid() == 3
            assert server.hosts.events["evicted_room"] >= 70

    run(test)


async def exchange(sock: socket.socket, xid: int) -> None:
    """One call, answered."""
    loop, null = asyncio.get_running_loop(), bytes(call(0, xid=xid))
    await loop.sock_sendall(sock, mark(len(null)) + null)
    assert (await loop.sock_recv(sock, 28))[4:8] == xid.to_bytes(4, "big")


async def everything_taken(server: Server, stack: contextlib.AsyncExitStack, number: int) -> list[socket.socket]:
    """One connection each of so many hosts, by which calls are made."""
    socks = []
    for address in range(2, 2 + number):
        socks += await stack.enter_async_context(many(server, 1, f"127.0.0.{address}"))
        await exchange(socks[-1], address)
    assert server.hosts.connections == server.hosts.limits.connections == number
    return socks


@pytest.mark.parametrize("address", ["127.0.0.99", "127.0.1.1", "127.1.0.1"])
def test_a_host_gets_in_although_as_many_others_make_calls_as_may_be_connected(address: str) -> None:
    """One connection each, by which calls are made: nobody has more than the newcomer would have."""

    async def test() -> None:
        async with serving(connections=40) as server, contextlib.AsyncExitStack() as stack:
            await everything_taken(server, stack, 40)
            (honest,) = await stack.enter_async_context(many(server, 1, address))
            for xid in range(100, 120):
                await exchange(honest, xid)
            assert (server.hosts.connections, server.hosts.events["evicted_room"]) == (40, 1)

    run(test)


def test_a_host_whose_only_connection_is_dead_gets_another() -> None:
    """It was refused one while all were taken, until the dead one was closed for being idle."""

    async def test() -> None:
        async with serving(connections=10) as server, contextlib.AsyncExitStack() as stack:
            dead = (await everything_taken(server, stack, 10))[0].getsockname()
            (seat,) = (
                each._seat for each in server.listener.connections if (each.peer_address, each.peer_port) == dead
            )
            seat.look(asyncio.get_running_loop().time())
            seat._heard -= 10  # seconds
            (honest,) = await stack.enter_async_context(many(server, 1, dead[0]))
            await exchange(honest, 7)
            assert (server.hosts.connections, server.hosts.events["evicted_room"]) == (10, 1)
            assert seat not in seat.host.callers.some(100)

    run(test)


def test_calls_in_progress_of_one_host_are_bounded_whatever_connections_it_has() -> None:
    async def test() -> None:
        async with serving(host_calls=10) as server:
            gate = server.service.gate = asyncio.Event()
            clients = [await server.connect() for _ in range(5)]
            for client in clients:
                for xid in range(8):
                    client.send(call(0, xid=xid))
            await until(lambda: server.service.running == 10)
            await turns()
            assert server.service.running == 10
            gate.set()
            for client in clients:
                assert [await client.xid() for _ in range(8)] == list(range(8))
            assert server.service.most == 10
            assert server.hosts.statistics()["calls"] == 0

    run(test)


def test_records_behind_calls_that_wait_are_left_where_they_are() -> None:
    """Else a megabyte of the shortest records becomes many megabytes of objects, on nobody's account."""

    async def test() -> None:
        async with serving() as server:
            gate = server.service.gate = asyncio.Event()
            client = await server.connect()
            nonsense = b"".join(mark(12) + struct.pack(">3I", xid, 1, 0) for xid in range(50_000))  # answers to nobody
            calls = b"".join(mark(40) + bytes(call(0, xid=xid)) for xid in range(200))
            client.writer.write(calls + nonsense + mark(40) + bytes(call(0, xid=1000)))
            await until(lambda: server.service.running == 128)
            await turns()
            assert len(server.connection().waiting) <= 300
            gate.set()
            assert [await client.xid() for _ in range(201)] == [*range(200), 1000]

    run(test)


def test_calls_in_progress_of_many_hosts_leave_each_other_one() -> None:
    async def test() -> None:
        async with serving(host_calls=10, calls=20) as server:
            gate = server.service.gate = asyncio.Event()
            calls = b"".join(mark(40) + bytes(call(0, xid=xid)) for xid in range(20))
            async with contextlib.AsyncExitStack() as stack:
                for address in ("127.0.0.2", "127.0.0.3"):
                    await stack.enter_async_context(many(server, 2, address, calls))
                await until(lambda: server.service.running == 20)
                client = await server.connect()
                for xid in range(5):
                    client.send(call(3, bytes(4), xid=xid))  # which does not wait
                assert [await client.xid() for _ in range(5)] == list(range(5))
                assert server.service.running == 20
                gate.set()
                await until(lambda: not server.hosts.calls)

    run(test)


class OnlyOne(Gate):
    def admits(self, transport: Any) -> bool:
        return transport.peer_address == "127.0.0.1"


def test_strangers_that_are_answered_to_null_give_way_to_a_host_that_may_call() -> None:
    async def test() -> None:
        async with serving(connections=4) as server, contextlib.AsyncExitStack() as stack:
            server.dispatcher._gate = OnlyOne()

            async def stranger(number: int) -> None:
                for connection in server.listener.connections:
                    connection._seat.since = -10.0  # seconds
                (sock,) = await stack.enter_async_context(many(server, 1, f"127.0.0.{number}"))
                loop, null = asyncio.get_running_loop(), bytes(call(0, xid=number))
                await loop.sock_sendall(sock, mark(len(null)) + null)
                assert (await loop.sock_recv(sock, 8))[4:] == number.to_bytes(4, "big")

            for number in range(2, 6):
                await stranger(number)
            assert len(server.listener.connections) == 4
            for connection in server.listener.connections:
                connection._seat.since = -10.0
            client = await server.connect()
            for number in range(6, 20):
                client.send(call(3, bytes(4), xid=number))
                assert await client.xid() == number
                await stranger(number)

    run(test)
