"""MPA connection setup by the side that connects: what it offers, refuses, sends first, and keeps to."""

import asyncio
import struct
from typing import Any

import pytest

from rpcrdma.verbs.interface import RdmaRead, Send
from rpcrdma.verbs.softiwarp import SoftIwarpOptions

from .softiwarp_support import (
    READ_REQUEST,
    SEND,
    WRITE,
    Recorder,
    World,
    enhanced,
    fpdu,
    reply_frame,
    request,
    responder,
    settle,
    tagged,
    untagged,
    world,
)


@pytest.mark.parametrize(
    ("reply", "options", "error", "sent_after"),
    [
        (b"MPA ID Req Frame" + reply_frame()[16:], {}, "wrong key", b""),
        (reply_frame(revision=3), {}, "revision 3", b""),
        (reply_frame(flags=0, body=b""), {}, "plain Reply", b""),
        (reply_frame(body=b"\x00"), {}, "too short", b""),
        (reply_frame()[:10], {}, "^$", b""),
        # RFC 6581 section 8: a Terminate says why.
        (reply_frame(body=enhanced(0, 500)), {}, "500 RDMA Reads", b"\x20\x06\x00\x00"),
        (reply_frame(body=enhanced(0x8000, 4)), {"peer_to_peer": True}, "RTR", b"\x20\x07\x00\x00"),
        (reply_frame(), {"peer_to_peer": True}, "client-server", b""),
    ],
)
def test_an_initiator_refuses_a_reply_that_does_not_fit(
    reply: bytes, options: dict[str, Any], error: str, sent_after: bytes
) -> None:
    async def run() -> None:
        it = World(SoftIwarpOptions(mpa_timeout=0.2, close_timeout=0.2, **options))
        server, address, got = await responder(reply)
        client = Recorder(it.account)
        with pytest.raises((ConnectionAbortedError, TimeoutError), match=error):
            await it.provider.connect(address, client, b"", [])
        async with asyncio.timeout(10):
            while len(got) < 2:
                await settle()
        expected = fpdu(untagged(7, 2, 1, 0, sent_after), False) if sent_after else b""
        assert got[1] == expected
        server.close()
        await it.close()

    asyncio.run(run())


def test_an_initiator_nudges_a_peer_that_does_not_look_at_its_first_message() -> None:
    """Linux's siw may not have seen it, and looks when more comes: an RDMA Write of no octets."""

    async def run() -> None:
        it = World(SoftIwarpOptions(nudge_after=0.01, close_timeout=0.2))
        server, address, got = await responder(reply_frame())
        client = Recorder(it.account)
        endpoint, _ = await it.provider.connect(address, client, b"", [])
        await asyncio.sleep(0.05)  # nothing was sent that could be looked at
        assert endpoint.statistics()["octets_out"] == 0
        endpoint.post([], Send([b"first"]), 1)
        async with asyncio.timeout(10):
            while endpoint.statistics()["writes_out"] < 2:
                await settle()
        endpoint.close()
        await client.ended()
        server.close()
        await it.close()
        first, nudge = fpdu(untagged(SEND, 0, 1, 0, b"first"), False), fpdu(tagged(WRITE, 1, 0), False)
        assert got[1].startswith(first + nudge + nudge)

    asyncio.run(run())


def test_an_initiator_offers_and_keeps_to_what_was_agreed() -> None:
    async def run() -> None:
        it = World()
        server, address, got = await responder(reply_frame(body=enhanced(2, 40) + b"private"))
        client = Recorder(it.account)
        endpoint, private_data = await it.provider.connect(
            address, client, b"mine", [], initiator_depth=7, responder_resources=9
        )
        assert private_data == b"private"
        assert got[0] == request(body=enhanced(9, 7) + b"mine")
        assert endpoint.max_reads == 2
        endpoint.close()
        await client.ended()
        server.close()
        await it.close()

    asyncio.run(run())


@pytest.mark.parametrize(("bits", "first"), [(0x8000, WRITE), (0x4000, READ_REQUEST)])
def test_an_initiator_sends_the_rtr_before_anything_else(bits: int, first: int) -> None:
    async def run() -> None:
        it = World(SoftIwarpOptions(peer_to_peer=True))
        server, address, got = await responder(reply_frame(body=enhanced(0x8000 | 1, bits | 4)))
        client = Recorder(it.account)
        endpoint, _ = await it.provider.connect(address, client, b"", [])
        endpoint.post([], Send([b"x"]), 1)
        endpoint.close()
        await client.ended()
        assert got[0] == request(body=enhanced(0x8000 | 16, 0xC000))
        assert got[1][3] & 15 == first
        assert got[1].endswith(fpdu(untagged(SEND, 0, 1, 0, b"x"), False))
        server.close()
        await it.close()

    asyncio.run(run())


def test_an_initiator_inserts_the_markers_a_reply_demands() -> None:
    async def run() -> None:
        it = World()
        server, address, got = await responder(reply_frame(flags=0x90))
        client = Recorder(it.account)
        endpoint, _ = await it.provider.connect(address, client, b"", [])
        endpoint.post([], Send([bytes(600)]), 1)
        endpoint.close()
        await client.ended()
        stream = got[1]
        assert stream[:4] == bytes(4)
        assert stream[512:516] == struct.pack(">HH", 0, 508)
        server.close()
        await it.close()

    asyncio.run(run())


def test_reads_are_refused_when_none_were_negotiated() -> None:
    async def run() -> None:
        async with world() as it:
            client = Recorder(it.account)
            endpoint, _ = await it.provider.connect(it.address, client, b"", [], initiator_depth=0)
            assert endpoint.max_reads == 0
            endpoint.post_reads([RdmaRead(1, 0, memoryview(bytearray(1)))], "read")
            await client.until(lambda me: me.completions == [("read", False)])

    asyncio.run(run())
