"""Backward calls in both versions, and those too large for a Short message (RFC 8167 section 5.3).

The peer is the responder here: it reads the call from the server's memory and writes its reply there.
"""

from __future__ import annotations

import asyncio

import pytest

from rpcrdma.peer.wire import BAD_XDR, words
from rpcrdma.rpc.program import BackwardError
from tests.peer import (
    CALL,
    CANT_REPLY,
    ERROR,
    LINUX,
    MSG,
    NOMSG,
    NULL,
    REPLY,
    ReplyHeader,
    Segment,
    accept_status,
    header,
    header_two,
    rpc_call,
    run,
)
from tests.peer.providers import provider  # noqa: F401 (runs each test on every provider)
from tests.rfc.plugin import covers

XID = 0x5555
SHORT = {1: 4096 - 28, 2: 4096 - 36}


@pytest.fixture(params=[1, 2], ids=["one", "two"])
def version(request) -> int:
    return request.param


def callback(xid: int, size: int = 60) -> bytes:
    return rpc_call(xid, bytes(index & 0xFF for index in range(size - 40)), procedure=0)


def answer(xid: int, text: bytes = b"") -> bytes:
    return words(xid, REPLY, 0, 0, 0, 0) + text


def short(version: int, xid: int, text: bytes = b"", **fields) -> bytes:
    """A reply as a Short message."""
    head = header(xid, **fields) if version == 1 else header_two(xid, direction=REPLY, **fields)
    return head + answer(xid, text)


async def connect(rig, version: int):
    peer = await rig.peer(LINUX, initiator_depth=4)
    first = header(1) if version == 1 else header_two(1)
    assert accept_status((await peer.call(first + rpc_call(1, procedure=NULL))).payload) == 0
    return peer, rig.control.transports[-1]


async def receive(peer) -> tuple[ReplyHeader, list[tuple[int, Segment]]]:
    """The header of a call of the server's, and its Read list by (position, segment)."""
    octets = (await peer.message()).octets
    at = 16 if octets[7] == 1 else 24
    reads = []
    while octets[at : at + 4] == words(1):
        position, handle, length = (int.from_bytes(octets[at + n : at + n + 4], "big") for n in (4, 8, 12))
        reads.append((position, Segment(handle, length, int.from_bytes(octets[at + 16 : at + 24], "big"))))
        at += 24
    return ReplyHeader.parse(octets), reads


def no_chunks_left(rig) -> bool:
    return not rig.connection._account.in_use


@covers(
    "RFC 8167 5.1 version",
    "RFC 8167 5.1 call-fields",
    "RFC 8167 4.2 thresholds",
    "draft-cel-nfsv4-rpcrdma-version-two-02 Message-Direction backward",
)
def test_short_calls_in_the_version_of_the_connection(version):
    """RFC 8167 section 5.1: rdma_vers is the same in both directions. Version Two says the direction in the header."""

    async def test(rig):
        peer, transport = await connect(rig, version)
        assert transport.max_backchannel_size == SHORT[version]
        size = SHORT[version]
        call = asyncio.ensure_future(transport.call_back(callback(XID, size)))
        message = await peer.message()
        assert len(message.octets) == 4096
        head = words(XID, 1, 4, MSG, 0, 0, 0) if version == 1 else words(XID, 2, 4, MSG, CALL, 0, 0, 0, 0)
        assert message.octets == head + callback(XID, size)
        peer.send(short(version, XID, b"text"))
        assert bytes(await call) == answer(XID, b"text")
        with pytest.raises(ValueError, match="octets"):
            await transport.call_back(callback(XID, size + 4))

    run(test)


@covers("RFC 8167 2.4 xid-spaces", "draft-cel-nfsv4-rpcrdma-version-two-02 Message-Direction backward")
def test_forward_and_backward_calls_with_the_same_xid(version):
    """Section 2.4."""

    async def test(rig):
        peer, transport = await connect(rig, version)
        call = asyncio.ensure_future(transport.call_back(callback(9)))
        await peer.message()
        forward = header(9) if version == 1 else header_two(9)
        assert accept_status((await peer.call(forward + rpc_call(9, procedure=NULL))).payload) == 0
        assert not call.done()
        peer.send(short(version, 9))
        await call

    run(test)


@covers(
    "RFC 8167 4.1 credits-apart",
    "RFC 8167 4.1 first-call",
    "draft-cel-nfsv4-rpcrdma-version-two-02 Message-Direction credits",
)
def test_credits_of_the_directions_are_apart(version):
    """Section 4.1: a grant for backward calls does nothing to forward ones."""

    async def test(rig):
        peer, transport = await connect(rig, version)
        calls = [asyncio.ensure_future(transport.call_back(callback(xid))) for xid in (20, 21, 22)]
        assert (await receive(peer))[0].xid == 20
        peer.send(short(version, 20, credit=2))
        assert {(await receive(peer))[0].xid, (await receive(peer))[0].xid} == {21, 22}
        forward = header(9) if version == 1 else header_two(9)
        assert (await peer.call(forward + rpc_call(9, procedure=NULL))).credit == 128
        peer.send(short(version, 22, credit=1))
        peer.send(short(version, 21, credit=1))
        await asyncio.gather(*calls)
        assert rig.connection.responder.backward.window == 1

    run(test)


@covers("RFC 8167 5.3 chunks", "draft-cel-nfsv4-rpcrdma-version-two-02 Remote-Invalidation backward")
def test_a_long_call_and_a_long_reply(version):
    async def test(rig):
        peer, transport = await connect(rig, version)
        message = callback(XID, 20000)
        call = asyncio.ensure_future(transport.call_back(message, long=True, reply_size=30000))
        head, reads = await receive(peer)
        assert (head.xid, head.version, head.procedure, head.payload) == (XID, version, NOMSG, b"")
        ((position, source),) = reads
        assert position == 0
        (sink,) = head.reply
        assert (source.length, sink.length) == (20000, 30000)
        if version == 2:
            assert (head.direction, head.inv_handle) == (CALL, source.handle)
        assert await peer.fetch(source) == message
        reply = answer(XID, bytes(29000))
        peer.place(sink, reply)
        written = Segment(sink.handle, len(reply), sink.offset)
        if version == 1:
            peer.send(header(XID, procedure=NOMSG, reply=[written]))
        else:
            # "Backward-Direction Remote Invalidation": the peer may, with the handle that was named.
            peer.send(
                header_two(XID, procedure=NOMSG, direction=REPLY, inv_handle=source.handle, reply=[written]),
                invalidate=source.handle,
            )
        assert bytes(await call) == reply
        assert no_chunks_left(rig)

    run(test)


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Remote-Invalidation backward")
def test_no_handle_is_named_that_the_peer_must_not_invalidate():
    """ "Remote Invalidation": zero, if none of the handles may be. Ordinary memory regions of devices may not."""

    async def test(rig):
        rig.provider.can_be_invalidated = False
        peer, transport = await connect(rig, 2)
        call = asyncio.ensure_future(transport.call_back(callback(XID, 5000), long=True, reply_size=5000))
        head, _ = await receive(peer)
        assert head.inv_handle == 0
        (sink,) = head.reply
        peer.send(short(2, XID, reply=[Segment(sink.handle, 0, sink.offset)]))
        await call

    run(test)


@covers("RFC 8166 8.1 own-memory")
@pytest.mark.parametrize("handle", ["call", "reply"])
def test_the_peers_access_ends_with_its_reply(version, handle):
    """Whether it invalidates anything or not, nothing of ours stays open to it."""

    async def test(rig):
        peer, transport = await connect(rig, version)
        call = asyncio.ensure_future(transport.call_back(callback(XID, 5000), long=True, reply_size=5000))
        head, ((_, source),) = await receive(peer)
        (sink,) = head.reply
        peer.send(short(version, XID, b"fits", reply=[Segment(sink.handle, 0, sink.offset)]))
        assert bytes(await call) == answer(XID, b"fits")
        if handle == "call":
            with pytest.raises(ConnectionError):
                await peer.fetch(source)
        else:
            peer.place(sink, b"late")
        await peer.over()

    run(test)


@covers("RFC 8167 5.3 chunks")
def test_only_what_is_too_large_goes_into_chunks(version):
    async def test(rig):
        peer, transport = await connect(rig, version)
        call = asyncio.ensure_future(transport.call_back(callback(XID), long=True, reply_size=100))
        head, reads = await receive(peer)
        assert (head.procedure, reads, head.reply) == (MSG, [], None)
        peer.send(short(version, XID))
        await call
        call = asyncio.ensure_future(transport.call_back(callback(XID), long=True, reply_size=5000))
        head, reads = await receive(peer)
        assert (head.procedure, reads, head.payload) == (MSG, [], callback(XID))
        (sink,) = head.reply
        assert version == 1 or head.inv_handle == sink.handle
        peer.send(short(version, XID, reply=[Segment(sink.handle, 0, sink.offset)]))
        await call
        assert no_chunks_left(rig)

    run(test)


def bad_replies(version: int, sink: Segment):
    def nomsg(*segments: Segment, **fields) -> bytes:
        if version == 1:
            return header(XID, procedure=NOMSG, reply=segments, **fields)
        return header_two(XID, procedure=NOMSG, direction=REPLY, reply=segments, **fields)

    yield nomsg(Segment(sink.handle, sink.length + 1, sink.offset))
    yield nomsg(Segment(sink.handle + 1, 100, sink.offset))
    yield nomsg(Segment(sink.handle, 100, sink.offset + 4))
    yield nomsg(sink, sink)
    yield nomsg()
    yield nomsg(sink, writes=[[sink]])
    yield short(version, XID, reply=[Segment(sink.handle, 100, sink.offset)])
    yield short(version, XID, reads=[(0, sink)])
    yield short(version, XID)[:-24] + answer(XID + 1)


@covers("RFC 8167 5.2 reply-fields")
def test_replies_that_do_not_match_the_offer_are_discarded(version):
    """RFC 8166 section 4.5; the call waits on."""

    async def test(rig):
        peer, transport = await connect(rig, version)
        call = asyncio.ensure_future(transport.call_back(callback(XID, 5000), long=True, reply_size=5000))
        head, _ = await receive(peer)
        (sink,) = head.reply
        bad = list(bad_replies(version, sink))
        for reply in bad:
            peer.send(reply)
        await rig.until(lambda: rig.server.counters.discards == len(bad))
        assert peer.waiting == 0
        assert not call.done()
        peer.send(short(version, XID, reply=[Segment(sink.handle, 0, sink.offset)]))
        await call
        assert rig.connection.responder.credits.backward == 0

    run(test)


@covers("RFC 8167 5.2 reply-fields")
@pytest.mark.parametrize("text", [words(XID + 1, REPLY) + bytes(16), words(XID, CALL) + bytes(16), b"", b"abc"])
def test_a_long_reply_that_is_none_fails_the_call(version, text):
    """Section 5.2: in the chunk too, the RPC message has the header's XID and is a reply."""

    async def test(rig):
        peer, transport = await connect(rig, version)
        call = asyncio.ensure_future(transport.call_back(callback(XID), long=True, reply_size=5000))
        head, _ = await receive(peer)
        (sink,) = head.reply
        peer.place(sink, text)
        written = [Segment(sink.handle, len(text), sink.offset)]
        head = header(XID, procedure=NOMSG, reply=written)
        if version == 2:
            head = header_two(XID, procedure=NOMSG, direction=REPLY, reply=written)
        peer.send(head)
        with pytest.raises(ConnectionError):
            await call
        assert no_chunks_left(rig)
        assert rig.connection.responder.credits.backward == 0

    run(test)


@covers("RFC 8167 5.3 err-chunk")
def test_a_peer_without_chunks_says_so_and_the_call_fails(version):
    """Section 5.3: RDMA_ERROR with ERR_CHUNK, which is 20 octets long."""

    async def test(rig):
        peer, transport = await connect(rig, version)
        call = asyncio.ensure_future(transport.call_back(callback(XID, 5000), long=True))
        await peer.message()
        peer.send(words(XID, version, 1, ERROR, BAD_XDR))
        with pytest.raises(BackwardError, match="ERR_CHUNK" if version == 1 else "RDMA2_ERR_BAD_XDR"):
            await call
        assert not transport.closed
        assert no_chunks_left(rig)
        assert rig.connection.responder.credits.backward == 0

    run(test)


@covers("RFC 8167 4.1 ambiguous")
def test_the_credit_value_of_an_error_is_ignored(version):
    """RFC 8167 section 4.1: an error has no RPC message that would tell its direction."""

    async def test(rig):
        peer, transport = await connect(rig, version)
        call = asyncio.ensure_future(transport.call_back(callback(XID)))
        await peer.message()
        peer.send(words(XID, version, 100, ERROR, BAD_XDR))
        with pytest.raises(BackwardError):
            await call
        assert rig.connection.responder.backward.window == 1

    run(test)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (words(XID, 2, 1, ERROR, 1, 1, 1), "RDMA2_ERR_VERS \\(versions 1 to 1\\)"),
        (words(XID, 2, 1, ERROR, 3, 1, 0, 0), "CANT_REPLY \\(processed, segment 0, 0 octets needed\\)"),
        (words(XID, 2, 1, ERROR, 4), "INVAL_PROC"),
        (words(XID, 2, 1, ERROR, 5), "INVAL_OPTION"),
    ],
)
def test_what_the_error_said_is_in_the_exception(message, text):
    async def test(rig):
        peer, transport = await connect(rig, 2)
        call = asyncio.ensure_future(transport.call_back(callback(XID)))
        await peer.message()
        peer.send(message)
        with pytest.raises(BackwardError, match=text):
            await call

    run(test)


@pytest.mark.parametrize(
    "message",
    [
        words(XID, 2, 1, ERROR, 6),
        words(XID, 2, 1, ERROR),
        words(XID, 2, 1, ERROR, 3, 0, 0),
        words(XID, 2, 1, ERROR, 3, 2, 0, 0),
        words(XID, 2, 1, ERROR, 1, 1),
        words(XID, 9, 1, ERROR, 2, 0, 0),
        words(XID + 1, 2, 1, ERROR, 2, 0, 0),
    ],
)
def test_errors_that_cannot_be_decoded_are_discarded(message):
    """RFC 8166 section 4.5."""

    async def test(rig):
        peer, transport = await connect(rig, 2)
        call = asyncio.ensure_future(transport.call_back(callback(XID)))
        await peer.message()
        peer.send(message)
        await rig.until(lambda: rig.server.counters.discards)
        assert peer.waiting == 0
        peer.send(short(2, XID))
        await call

    run(test)


def test_cant_reply_brings_the_call_again_with_a_larger_reply_chunk():
    """ "Transport Errors": with the same XID and larger reply resources."""

    async def test(rig):
        peer, transport = await connect(rig, 2)
        call = asyncio.ensure_future(transport.call_back(callback(XID), long=True))
        head, _ = await receive(peer)
        assert head.reply is None
        peer.send(words(XID, 2, 4, ERROR, CANT_REPLY, 1, 0, 9001))
        head, _ = await receive(peer)
        (sink,) = head.reply
        assert (head.xid, sink.length) == (XID, 9004)
        reply = answer(XID, bytes(9001 - 24))
        peer.place(sink, reply)
        written = [Segment(sink.handle, len(reply), sink.offset)]
        peer.send(header_two(XID, procedure=NOMSG, direction=REPLY, reply=written))
        assert bytes(await call) == reply

    run(test)


def test_cant_reply_beyond_the_bound_or_without_end_fails():
    async def test(rig):
        peer, transport = await connect(rig, 2)
        for needed in (0, 10, 5001):
            call = asyncio.ensure_future(transport.call_back(callback(XID), long=True))
            await peer.message()
            peer.send(words(XID, 2, 4, ERROR, CANT_REPLY, 1, 0, needed))
            with pytest.raises(BackwardError):
                await call
        call = asyncio.ensure_future(transport.call_back(callback(XID), long=True))
        for _ in range(2):
            await peer.message()
            peer.send(words(XID, 2, 4, ERROR, CANT_REPLY, 1, 1, 4999))
        with pytest.raises(BackwardError):
            await call

    run(test, max_backward_size=5000)


def test_bounds_of_long_messages(version):
    async def test(rig):
        peer, transport = await connect(rig, version)
        assert transport.max_long_backchannel_size == 5000
        with pytest.raises(ValueError, match="5001 octets"):
            await transport.call_back(callback(XID, 5001), long=True)
        call = asyncio.ensure_future(transport.call_back(callback(XID, 5000), long=True, reply_size=1 << 30))
        head, ((_, source),) = await receive(peer)
        assert source.length == head.reply[0].length == 5000
        peer.send(short(version, XID, reply=[Segment(*head.reply[0])._replace(length=0)]))
        await call

    run(test, max_backward_size=5000)


@covers("RFC 8167 5.4 timeout")
def test_time_is_up(version):
    """RFC 8167 section 5.4. The credit and the chunks stay in use until the peer answers: it may be at work."""

    async def test(rig):
        peer, transport = await connect(rig, version)
        call = asyncio.ensure_future(transport.call_back(callback(XID, 5000), timeout=0.001, long=True))
        _, ((_, source),) = await receive(peer)
        with pytest.raises(TimeoutError):
            await call
        assert rig.connection.responder.credits.backward == 1
        assert await peer.fetch(source) == callback(XID, 5000)
        peer.send(short(version, XID))
        await rig.until(lambda: not rig.connection.responder.credits.backward)
        assert no_chunks_left(rig)
        assert peer.reason is None

    run(test)


@pytest.mark.parametrize("sent", [False, True])
def test_the_end_of_the_connection_releases_the_chunks(version, sent):
    async def test(rig):
        peer, transport = await connect(rig, version)
        first = asyncio.ensure_future(transport.call_back(callback(1, 5000), long=True, reply_size=5000))
        second = asyncio.ensure_future(transport.call_back(callback(2, 5000), long=True, reply_size=5000))
        await receive(peer)
        if sent:
            second.cancel()
        peer.endpoint.close(abort=True)
        for call in (first, second):
            with pytest.raises((ConnectionError, asyncio.CancelledError)):
                await call
        # The rig checks on its way out that every buffer came back.

    run(test)


def test_a_call_nobody_waits_for_any_more_is_not_sent(version):
    async def test(rig):
        peer, transport = await connect(rig, version)
        first = asyncio.ensure_future(transport.call_back(callback(1)))
        second = asyncio.ensure_future(transport.call_back(callback(2, 5000), long=True))
        await receive(peer)
        await rig.until(lambda: rig.connection.responder.backward.waiting)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        peer.send(short(version, 1))
        await first
        await rig.until(lambda: not rig.connection.responder.backward.waiting)
        assert peer.waiting == 0
        assert no_chunks_left(rig)

    run(test)


def test_a_long_call_needs_memory_and_gives_it_back_when_refused(version):
    async def test(rig):
        peer, transport = await connect(rig, version)
        call = asyncio.ensure_future(transport.call_back(callback(XID)))
        await receive(peer)
        with pytest.raises(ValueError, match="in use"):
            await transport.call_back(callback(XID, 5000), long=True, reply_size=5000)
        assert no_chunks_left(rig)
        peer.send(short(version, XID))
        await call

    run(test)
