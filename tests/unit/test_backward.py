"""Calls from the server to its client on the same connection (RFC 8167)."""

from __future__ import annotations

import asyncio
import struct

import pytest

from rpcrdma.peer.wire import words
from rpcrdma.wire.private_data import PrivateData
from tests.peer import ERROR, MSG, NULL, Segment, accept_status, header, rpc_call, run
from tests.rfc.plugin import covers


def callback(xid: int, size: int = 60) -> bytes:
    return rpc_call(xid, procedure=0) + bytes(size - 40)


def answer(xid: int, text: bytes = b"", **fields) -> bytes:
    return header(xid, **fields) + struct.pack(">6I", xid, 1, 0, 0, 0, 0) + text


async def transport_of(rig, peer):
    reply = await peer.call(header(1) + rpc_call(1, procedure=NULL))
    assert accept_status(reply.payload) == 0
    return rig.control.transports[-1]


@covers("RFC 8167 5.1 call-fields")
def test_a_backward_call_is_a_short_message_without_chunks():
    async def test(rig, peer):
        transport = await transport_of(rig, peer)
        call = asyncio.ensure_future(transport.call_back(callback(0x999)))
        message = await peer.message()
        assert message.octets == words(0x999, 1, 4, MSG, 0, 0, 0) + callback(0x999)
        assert message.invalidated is None
        peer.send(answer(0x999, b"text"))
        assert bytes(await call) == answer(0x999, b"text")[28:]

    run(test)


@covers("RFC 8167 2.4 xid-spaces")
def test_xid_spaces_of_the_directions_are_separate():
    async def test(rig, peer):
        rig.control.gate = asyncio.Event()
        transport = await transport_of(rig, peer)
        call = asyncio.ensure_future(transport.call_back(callback(5)))
        await peer.message()
        reply = await peer.call(header(5) + rpc_call(5, procedure=NULL))
        assert accept_status(reply.payload) == 0
        assert not call.done()
        peer.send(answer(5))
        await call

    run(test)


@covers("RFC 8167 4.1 first-call")
def test_one_call_until_the_first_reply_then_as_many_as_it_grants():
    async def test(rig, peer):
        transport = await transport_of(rig, peer)
        calls = [asyncio.ensure_future(transport.call_back(callback(xid))) for xid in range(100, 106)]
        await rig.settle()
        assert peer.waiting == 1
        assert (await peer.reply()).xid == 100
        peer.send(answer(100, credit=3))
        await rig.settle()
        assert [(await peer.reply()).xid for _ in range(peer.waiting)] == [101, 102, 103]
        peer.send(answer(102, credit=1))
        await rig.settle()
        assert peer.waiting == 0
        peer.send(answer(101, credit=0))
        peer.send(answer(103, credit=100))
        await rig.settle()
        assert [(await peer.reply()).xid for _ in range(peer.waiting)] == [104, 105]
        for xid in (104, 105):
            peer.send(answer(xid))
        for xid, call in enumerate(calls, 100):
            assert int.from_bytes((await call)[:4], "big") == xid

    run(test)


def test_a_grant_of_zero_stands_for_one():
    async def test(rig, peer):
        transport = await transport_of(rig, peer)
        for xid in (100, 101):
            call = asyncio.ensure_future(transport.call_back(callback(xid)))
            assert (await peer.reply()).xid == xid
            peer.send(answer(xid, credit=0))
            await call

    run(test)


def test_no_more_than_our_own_limit_however_much_is_granted():
    async def test(rig, peer):
        transport = await transport_of(rig, peer)
        first = asyncio.ensure_future(transport.call_back(callback(100)))
        await peer.message()
        peer.send(answer(100, credit=1000))
        await first
        calls = [asyncio.ensure_future(transport.call_back(callback(xid))) for xid in range(20)]
        await rig.settle()
        assert peer.waiting == 2
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    run(test, backward_credits=2)


@covers("RFC 8167 4.3.2 receives", "RFC 8167 4.1 credits-apart")
def test_replies_have_receives_of_their_own():
    """RFC 8167 section 4.3.2: a client that uses all its credits can still answer our calls."""

    async def test(rig, peer):
        transport = await transport_of(rig, peer)
        first = asyncio.ensure_future(transport.call_back(callback(100)))
        await peer.message()
        peer.send(answer(100))
        await first
        calls = [asyncio.ensure_future(transport.call_back(callback(xid))) for xid in range(100, 104)]
        await rig.settle()
        assert peer.waiting == 4
        for xid in range(4):
            peer.send(header(xid) + rpc_call(xid, procedure=NULL))
        for xid in range(100, 104):
            peer.send(answer(xid))
        await asyncio.gather(*calls)
        ledger = rig.connection.responder.credits
        assert (ledger.posted, ledger.backward) == (8, 0)

    run(test, credits=4, backward_credits=4)


@covers("RFC 8167 5.3 err-chunk")
def test_rdma_error_fails_the_backward_call():
    async def test(rig, peer):
        transport = await transport_of(rig, peer)
        call = asyncio.ensure_future(transport.call_back(callback(100)))
        await peer.message()
        peer.send(words(100, 1, 1, ERROR, 2, 0, 0))
        with pytest.raises(ConnectionError):
            await call
        assert rig.connection.responder.credits.backward == 0
        assert not transport.closed

    run(test)


@covers("RFC 8167 5.2 reply-fields")
@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(answer(999), id="no such call"),
        pytest.param(header(100) + answer(101)[28:], id="another XID in the RPC message"),
        pytest.param(answer(100, reads=[(0, Segment(1, 4, 4))]), id="a Read list"),
        pytest.param(answer(100, writes=[[Segment(1, 4, 4)]]), id="a Write list"),
        pytest.param(answer(100, reply=[]), id="a Reply chunk"),
    ],
)
def test_wrong_replies_are_discarded_silently(bad):
    """RFC 8166 section 4.5: errors in the header of a reply are the receiver's secret."""

    async def test(rig, peer):
        transport = await transport_of(rig, peer)
        call = asyncio.ensure_future(transport.call_back(callback(100)))
        await peer.message()
        peer.send(bad)
        await rig.settle()
        assert peer.waiting == 0
        assert not call.done()
        peer.send(answer(100))
        await call
        peer.send(answer(100))
        await rig.settle()
        assert peer.waiting == 0
        assert peer.reason is None

    run(test)


def test_giving_up_keeps_the_receive_for_the_late_reply():
    async def test(rig, peer):
        transport = await transport_of(rig, peer)
        call = asyncio.ensure_future(transport.call_back(callback(100)))
        await peer.message()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert rig.connection.responder.credits.backward == 1
        waiting = asyncio.ensure_future(transport.call_back(callback(101)))
        await rig.settle()
        assert peer.waiting == 0
        peer.send(answer(100))
        assert (await peer.reply()).xid == 101
        peer.send(answer(101))
        await waiting

    run(test)


@covers("RFC 8167 4.2 thresholds", "RFC 8167 5.3 short-otherwise")
def test_calls_that_cannot_be_sent():
    async def test(rig):
        peer = await rig.peer(PrivateData(True, 2048, 1024).encode())
        transport = await transport_of(rig, peer)
        assert transport.max_backchannel_size == 1024 - 28
        with pytest.raises(ValueError, match="997 octets"):
            await transport.call_back(callback(1, 997))
        call = asyncio.ensure_future(transport.call_back(callback(1, 996)))
        assert len((await peer.message()).octets) == 1024
        with pytest.raises(ValueError, match="in use"):
            await transport.call_back(callback(1))
        peer.send(answer(1))
        await call

    run(test)


def test_the_end_of_the_connection_fails_every_backward_call():
    async def test(rig, peer):
        transport = await transport_of(rig, peer)
        calls = [asyncio.ensure_future(transport.call_back(callback(xid))) for xid in range(3)]
        await peer.message()
        peer.endpoint.close(abort=True)
        for call in calls:
            with pytest.raises(ConnectionError):
                await call

    run(test)


def test_switched_off():
    async def test(rig, peer):
        transport = await transport_of(rig, peer)
        with pytest.raises(ConnectionError, match="switched off"):
            await transport.call_back(callback(1))

    run(test, backward_credits=0)
