"""Copies within the process are counted: none for data that arrives whole, one for data that has to be moved."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from rpcrdma.copying import copied
from rpcrdma.memory import Pool
from rpcrdma.tcp.stream import RecordStream
from rpcrdma.verbs.interface import RdmaWrite, Send

from .softiwarp_support import world

LAST = 1 << 31
HEAD = 64


def record(length: int) -> bytes:
    return (LAST | length).to_bytes(4, "big") + bytes(length)


def copied_by(run: Callable[[], None]) -> int:
    before = copied()
    run()
    return copied() - before


@pytest.mark.parametrize(
    ("pieces", "octets"),
    [
        ([record(1000)], 0),
        ([record(1000) * 20], 0),
        # the first half waits at the buffer's beginning for the second
        ([record(1000)[:500], record(1000)[500:]], 0),
        # what is behind the first record moves to the beginning
        ([record(1000) + record(1000)[:500], record(1000)[500:]], 500),
        # a large record's beginning is copied into the buffer that the rest is received into
        ([record(1000), record(200_000)[: 4 + 3000], record(200_000)[4 + 3000 :]], 3000),
        # more of it from a peer that has sent no record yet: it gets no large buffer for a promise
        ([record(200_000)[: 4 + 3000], record(200_000)[4 + 3000 :]], 65536 - 4),
    ],
)
def test_records_are_copied_as_seldom_as_can_be(pieces: list[bytes], octets: int) -> None:
    peer, own = socket.socketpair()
    pool = Pool(16 << 20)
    with peer, own:
        for sock in (peer, own):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        own.setblocking(False)
        stream = RecordStream(own.fileno(), pool.account(16 << 20), 1 << 20, 10)

        def receive() -> None:
            for piece in pieces:
                peer.sendall(piece)
                for _, hold in stream.receive(True):
                    hold.release()

        assert copied_by(receive) == octets
        stream.close()
    assert pool.in_use == 0


def test_softiwarp_copies_small_messages_at_both_ends_and_large_data_at_most_once() -> None:
    async def exchange(segments: tuple[bytes, ...]) -> int:
        async with world() as it:
            client, server = await it.pair()
            assert client.endpoint is not None
            assert server.endpoint is not None
            sink = memoryview(bytearray(1 << 20))
            handle, base = server.endpoint.register(sink, remote_write=True)
            before = copied()
            writes = [RdmaWrite(handle, base, memoryview(segment)) for segment in segments]
            client.endpoint.post(writes, Send((b"x" * HEAD,)), None)
            await server.until(lambda me: len(me.messages) == 1)
            return copied() - before

    # into a run of FPDUs, and out of what was received
    assert asyncio.run(exchange(())) == 2 * HEAD
    # sent from where it lies; copied where it arrives together with a header, of which a few octets may come alone
    assert 2 * HEAD <= asyncio.run(exchange((bytes(1 << 20),))) <= 2 * HEAD + (1 << 20) + 4096
