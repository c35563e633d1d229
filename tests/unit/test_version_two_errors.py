"""Version Two's errors, each with its body (draft-cel-nfsv4-rpcrdma-version-two-02, "Transport Errors")."""

from __future__ import annotations

import pytest

from tests.peer import (
    BAD_XDR,
    CALL,
    CANT_REPLY,
    ERROR,
    FILL,
    MSG,
    NOMSG,
    ONCE,
    REPLY,
    Segment,
    echo_arguments,
    echo_results,
    header_two,
    rpc_call,
    run,
    words,
)
from tests.peer.providers import provider  # noqa: F401 (runs each test on every provider)
from tests.rfc.plugin import covers
from tests.unit.version_two_support import XID, call, negotiated, null

SEGMENT = words(1, 16, 0, 0)


@covers(
    "draft-cel-nfsv4-rpcrdma-version-two-02 Transport-Errors bad-xdr",
    "draft-cel-nfsv4-rpcrdma-version-two-02 Transport-Errors fields",
)
@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"", id="lists missing"),
        pytest.param(words(0, 0), id="Reply chunk missing"),
        pytest.param(words(2, 0, 0), id="Read list neither there nor not"),
        pytest.param(words(0, 2, 0), id="Write list neither there nor not"),
        pytest.param(words(0, 0, 2), id="Reply chunk neither there nor not"),
        pytest.param(words(1, 0) + SEGMENT[:-4], id="a read segment cut off"),
        pytest.param(words(0, 1, 1) + SEGMENT[:-4], id="a Write chunk cut off"),
        pytest.param(words(0, 1, 0xFFFFFFFF) + SEGMENT, id="segments without end"),
        pytest.param(words(0, 0, 1, 0x10000000) + SEGMENT, id="a Reply chunk without end"),
        pytest.param(words(1, 4) + SEGMENT + words(1, 4097) * 3, id="nonsense"),
    ],
)
def test_a_header_that_cannot_be_parsed_gets_bad_xdr(tail):
    """RDMA2_ERR_BAD_XDR, before any processing by the upper layer."""

    async def test(rig, peer):
        await negotiated(peer)
        message = words(XID, 2, 32, MSG, CALL, 0) + tail
        peer.send(message + bytes(max(0, 28 - len(message))))
        assert (await peer.message()).octets == words(XID, 2, 128, ERROR, BAD_XDR)
        assert rig.control.executed == 1
        assert rig.server.counters.err_bad_xdr == 1

    run(test)


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Transport-Errors bad-xdr")
@pytest.mark.parametrize(
    ("fields", "body"),
    [
        pytest.param({"procedure": NOMSG}, b"", id="RDMA2_NOMSG without chunks"),
        pytest.param({"procedure": NOMSG, "reply": [Segment(1, 99, 0)]}, b"", id="RDMA2_NOMSG without a Read chunk"),
        pytest.param({"reads": [(0, Segment(1, 40, 0))]}, rpc_call(XID), id="two payload streams"),
        pytest.param({"reads": [(6, Segment(1, 40, 0))]}, rpc_call(XID), id="position no multiple of four"),
        pytest.param({"reads": [(44000, Segment(1, 40, 0))]}, rpc_call(XID), id="position beyond the message"),
        pytest.param({}, rpc_call(XID + 1), id="the RPC message has another XID"),
    ],
)
def test_chunks_and_payload_that_contradict_each_other_get_bad_xdr(fields, body):
    """What version One answers with ERR_CHUNK, whose equivalent this is (RFC 8166 section 4.5.2)."""

    async def test(rig, peer):
        reply = await peer.call(header_two(XID, **fields) + body)
        assert (reply.procedure, reply.error) == (ERROR, BAD_XDR)
        assert rig.control.executed == 0

    run(test)


def test_malformed_replies_are_discarded():
    async def test(rig, peer):
        peer.send(words(XID, 2, 32, MSG, REPLY, 0, 2, 0, 0))
        await negotiated(peer)
        assert peer.waiting == 0

    run(test)


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Message-Direction error")
def test_errors_are_never_answered():
    async def test(rig, peer):
        for code in range(7):
            peer.send(words(XID, 2, 32, ERROR, code, 0, 0, 0))
        await negotiated(peer)
        assert peer.waiting == 0

    run(test)


@covers(
    "draft-cel-nfsv4-rpcrdma-version-two-02 Transport-Errors cant-reply",
    "draft-cel-nfsv4-rpcrdma-version-two-02 Transport-Errors segment",
    "draft-cel-nfsv4-rpcrdma-version-two-02 Transport-Errors needed",
)
@pytest.mark.parametrize(
    ("sizes", "reply_size", "expected"),
    [
        pytest.param([[4, 4]], None, (1, 2, 6), id="the last segment of the Write chunk"),
        pytest.param([[9]], None, (1, 1, 10), id="the only segment"),
        pytest.param([[0, 0, 0]], None, (1, 3, 10), id="empty segments"),
        pytest.param([[10], [4, 10]], None, (1, 3, 16), id="the second Write chunk"),
        pytest.param([[3], [4, 10]], None, (1, 1, 10), id="the first of two that are too short"),
        pytest.param([[10], [20]], [100, 100], (1, 4, 5048 - 100), id="the Reply chunk"),
        pytest.param([], [4], (1, 1, 5048 + 12 + 20), id="the Reply chunk alone"),
        pytest.param([], [], (1, 0, 5048 + 12 + 20), id="a Reply chunk without segments"),
        pytest.param([], None, (1, 0, 5048 + 12 + 20), id="no Reply chunk"),
    ],
)
def test_a_shortage_is_described_to_the_segment(sizes, reply_size, expected):
    """RDMA2_ERR_CANT_REPLY: counted from 1 over Write list and Reply chunk, with the octets that segment needs."""

    async def test(rig, peer):
        await negotiated(peer)
        arguments = echo_arguments([bytes(10), bytes(20)], 5000)
        regions = [(peer.writable(sum(cut) or 1), cut) for cut in sizes]
        area = peer.writable(sum(reply_size or [1]))
        fields = {"writes": [region.segments(*cut) for region, cut in regions]}
        if reply_size is not None:
            fields["reply"] = area.segments(*reply_size)
        peer.send(call(arguments, **fields))
        message = await peer.message()
        assert message.octets == words(XID, 2, 128, ERROR, CANT_REPLY, *expected)
        for region, _ in [*regions, (area, None)]:
            assert set(region.memory) <= {FILL}
        assert rig.server.counters.err_cant_reply == 1

    run(test)


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Transport-Errors needed")
@pytest.mark.parametrize("kind", ["write", "reply", "none"])
def test_what_the_error_says_is_enough(kind):
    """Resources of the length that the error names make the same call succeed, with the same XID."""

    async def test(rig, peer):
        await negotiated(peer)
        arguments = echo_arguments([bytes(range(200))], 20 if kind == "write" else 6000)

        def chunks(last: int):
            region = peer.writable(100 + last)
            segments = region.segments(100, last)
            return {"writes": [segments]} if kind == "write" else {"reply": segments}

        reply = await peer.call(call(arguments, **({} if kind == "none" else chunks(7))))
        processed, index, needed = reply.shortage
        assert (processed, index) == (1, 0 if kind == "none" else 2)
        if kind == "none":
            area = peer.writable(needed)
            reply = await peer.call(call(arguments, reply=[area.segment()]))
        else:
            less = await peer.call(call(arguments, **chunks(needed - 4)))
            assert less.shortage == (1, 2, needed)
            reply = await peer.call(call(arguments, **chunks(needed)))
        assert (reply.error, reply.xid) == (0, XID)

    run(test)


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Transport-Errors processed")
def test_a_shortage_found_before_processing_says_so():
    """rdma_processed is false: the header of the reply alone would be too large for the first."""

    async def test(rig, peer):
        target = peer.writable(4)
        reply = await peer.call(null(writes=[target.segments(*[0] * 70)]))
        assert (reply.error, reply.shortage) == (CANT_REPLY, (0, 0, 0))
        assert rig.control.executed == 0
        await negotiated(peer)
        assert (await peer.call(null(writes=[target.segments(*[0] * 70)]))).error == 0

    run(test)


@covers(
    "draft-cel-nfsv4-rpcrdma-version-two-02 Transport-Errors retry",
    "draft-cel-nfsv4-rpcrdma-version-two-02 Transport-Errors processed",
)
@pytest.mark.parametrize("reconnect", [False, True])
def test_the_same_xid_with_larger_resources_is_answered_from_the_replay_cache(reconnect):
    """RDMA2_ERR_CANT_REPLY with rdma_processed: the call must not be executed again, and its results go where the
    retransmission's chunks say."""

    async def test(rig, peer):
        await negotiated(peer)
        item = bytes(range(256))
        arguments = echo_arguments([item], 8)
        small = peer.writable(100)
        reply = await peer.call(call(arguments, procedure=ONCE, writes=[[small.segment()]]))
        assert (reply.error, reply.shortage) == (CANT_REPLY, (1, 1, 256))
        executed = rig.control.executed
        if reconnect:
            peer = await negotiated(await rig.peer())
            executed += 1
        target = peer.writable(256)
        reply = await peer.call(call(arguments, procedure=ONCE, writes=[[target.segment()]], inv_handle=target.handle))
        assert rig.control.executed == executed
        assert reply.payload == echo_results(arguments, XID, [0])
        assert target.memory == item
        # And once more, another way: the whole reply into the Reply chunk is as good.
        reply = await peer.call(call(arguments, procedure=ONCE))
        assert reply.payload == echo_results(arguments, XID)
        assert rig.control.executed == executed
        assert rig.dispatcher.replay.hits == 2

    run(test)
