"""A reset that comes together with data ends the connection, also on a loop that tells of it once only.

uvloop calls the reader of a socket that has an error once more, and never again; but what came before the reset is read
first. Nobody sends anything here that would fail. Every wait is of 20 s, and no connection is closed for being idle
by then.
"""

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from rpcrdma.verbs.interface import ListenAddress, Send
from rpcrdma.verbs.softiwarp import SoftIwarpOptions

from .rpc_support import call
from .softiwarp_support import CLIENT_REQUEST, SEND, Raw, fpdu, settle, untagged, world
from .tcp_support import serving, until

Run = Callable[[Coroutine[Any, Any, None]], None]


def on_asyncio(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 20))


def on_uvloop(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(main, 20))


LOOPS = pytest.mark.parametrize("run", [on_asyncio, on_uvloop])


def end(sock: socket.socket, data: bytes) -> None:
    """Send the last octets and reset the connection, before anybody else has a turn."""
    assert sock.send(data) == len(data)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def record(message: bytes | memoryview) -> bytes:
    return struct.pack(">I", 0x80000000 | len(message)) + message


MESSAGE = fpdu(untagged(SEND, 0, 1, 0, b"a message"), crc=False)


@LOOPS
@pytest.mark.parametrize("data", [MESSAGE, MESSAGE[:9], MESSAGE * 3 + MESSAGE[:5]], ids=["whole", "partial", "more"])
def test_an_iwarp_connection_ends_behind_what_it_has_sent(run: Run, data: bytes) -> None:
    if len(data) > 2 * len(MESSAGE):
        data = b"".join(fpdu(untagged(SEND, 0, n, 0, b"a message"), crc=False) for n in (1, 2, 3)) + data[-5:]

    async def main() -> None:
        async with world() as it:
            raw = await it.raw()
            (server,) = it.servers
            end(raw.socket, data)
            assert await server.ended() == "Connection reset by peer"
            assert server.messages == [b"a message"] * (len(data) // len(MESSAGE))

    run(main())


@LOOPS
def test_an_iwarp_connection_ends_behind_messages_that_had_to_wait(run: Run) -> None:
    """The reset is told while there are messages whose turn is still to come."""

    async def main() -> None:
        async with world() as it:
            it.receives = 64
            raw = await it.raw()
            (server,) = it.servers
            turns = 0

            def dawdle(_: object) -> None:
                nonlocal turns
                turns += 1
                over = time.perf_counter() + 0.0005
                while time.perf_counter() < over:
                    pass
                if turns == 12:
                    end(raw.socket, fpdu(untagged(SEND, 0, 51, 0, b"the last"), crc=False))

            server.on_received = dawdle
            for number in range(8):  # it has shown that it is slow
                await raw.message(b"warm up")
                await server.until(lambda me, wanted=number + 1: len(me.messages) == wanted)
            await raw.send(b"".join(fpdu(untagged(SEND, 0, 9 + n, 0, b"%d" % n), crc=False) for n in range(42)))
            assert await server.ended() == "Connection reset by peer"
            assert server.messages[8:] == [*(b"%d" % n for n in range(42)), b"the last"]

    run(main())


@LOOPS
def test_a_closed_iwarp_connection_reads_no_more(run: Run) -> None:
    """Its descriptor is somebody else's as soon as it is closed, though a turn of it may still be to come."""

    async def main() -> None:
        async with world() as it:
            raw = await it.raw()
            (server,) = it.servers
            loop, (told, teller) = asyncio.get_running_loop(), socket.socketpair()
            others: list[socket.socket] = []

            def post() -> None:
                loop.remove_reader(told.fileno())
                assert server.endpoint is not None
                server.endpoint.post([], Send((b"a reply",)), "reply")

            def disconnected(reason: str) -> None:
                server.reasons.append(reason)
                for _ in range(4):
                    others.extend(socket.socketpair())
                for sock in others:
                    sock.send(b"not yours")

            server.disconnected = disconnected  # type: ignore[method-assign]
            server.completed = lambda *_: None  # type: ignore[method-assign]
            loop.add_reader(told.fileno(), post)
            await settle()
            # The loop hears of both at once, and the turn in which the reply would be sent is the next.
            teller.send(b"post")
            raw.socket.close()
            await until(lambda: server.reasons)
            await settle()
            assert [sock.recv(9, socket.MSG_DONTWAIT) for sock in others] == [b"not yours"] * 8
            for sock in (*others, told, teller):
                sock.close()

    run(main())


@LOOPS
def test_a_connection_request_ends_in_the_middle_of_its_frame(run: Run) -> None:
    async def main() -> None:
        async with world(SoftIwarpOptions(mpa_timeout=1000)) as it:
            raw = Raw()
            await raw.connect(it.address)
            await until(lambda: it.provider.half_open)
            end(raw.socket, CLIENT_REQUEST[:25])
            await until(lambda: not it.provider.half_open)

    run(main())


@LOOPS
@pytest.mark.parametrize(
    "data",
    [b"\x80", b"\x80\0\0\x40part of a record", record(b"\0\0\0\1\0\0\0\1" + bytes(24))],
    ids=["mark", "partial", "reply"],
)
def test_a_tcp_connection_ends_behind_what_it_has_sent(run: Run, data: bytes) -> None:
    """The last is a reply to nothing, whole."""

    async def main() -> None:
        async with serving() as server:
            raw = Raw()
            await raw.connect(ListenAddress(*server.listener.address[:2]))
            await raw.send(record(call(0, xid=1)))
            assert (await raw.exactly(8))[4:] == b"\0\0\0\1"
            end(raw.socket, data)
            await until(lambda: not server.listener.connections)

    run(main())
