"""How the responder takes calls: headers, Read chunks, Position Zero Read chunks (RFC 8166 sections 3.4.5, 4)."""

from __future__ import annotations

import struct

import pytest

from rpcrdma.verbs.loopback import LoopbackEndpoint
from tests.peer import (
    CALL_HEADER,
    DONE,
    ERR_CHUNK,
    ERR_VERS,
    ERROR,
    MSG,
    MSGP,
    NOMSG,
    NULL,
    Peer,
    Segment,
    accept_status,
    echo_arguments,
    echo_results,
    header,
    rpc_call,
    run,
    words,
)
from tests.peer.providers import provider  # noqa: F401 (runs each test on every provider)
from tests.rfc.plugin import covers

XID = 0x10203040
GARBAGE_ARGS = 4


def pattern(length: int, seed: int = 1) -> bytes:
    return bytes((index * 7 + (index >> 8) * 13 + seed) & 0xFF for index in range(length))


def null(xid: int = XID, **fields) -> bytes:
    return header(xid, **fields) + rpc_call(xid, procedure=NULL)


async def assert_alive(peer: Peer, xid: int = 0x7777) -> None:
    reply = await peer.call(null(xid))
    assert (reply.xid, reply.procedure) == (xid, MSG)
    assert accept_status(reply.payload) == 0


async def assert_refused(rig, peer: Peer, *parts: bytes, xid: int = XID) -> None:
    """The call gets ERR_CHUNK, is not executed, and costs neither the connection nor a buffer."""
    before = rig.control.executed
    reply = await peer.call(*parts)
    assert (reply.xid, reply.version, reply.procedure, reply.error) == (xid, 1, ERROR, ERR_CHUNK)
    assert reply.credit == rig.options.responder.credits
    assert rig.control.executed == before
    await assert_alive(peer)


@covers("RFC 8166 3.2 one-send", "RFC 8166 4.2.1 xid", "RFC 8166 4.3.1 reply-read-list")
def test_short_call_and_reply():
    async def test(rig, peer):
        arguments = echo_arguments([b"hello", b""], filler=3)
        reply = await peer.call(header(XID), rpc_call(XID, arguments.octets))
        assert reply.payload == echo_results(arguments, XID)
        assert (reply.xid, reply.version, reply.procedure) == (XID, 1, MSG)
        assert (reply.reads, reply.writes, reply.reply) == (0, (), None)

    run(test)


# Section 4.2.2 and 4.5.1: versions


@covers(
    "RFC 8166 4.2.2 version",
    "RFC 8166 4.5.1 range",
    "RFC 8166 4.5 error-fields",
    "draft-cel-nfsv4-rpcrdma-version-two-02 Negotiation unsupported",
)
@pytest.mark.parametrize(
    ("two", "version"), [(True, 0), (True, 3), (True, 0xFFFFFFFF), (False, 0), (False, 2), (False, 3)]
)
@pytest.mark.parametrize("procedure", [MSG, NOMSG, 2, 3, 77])
def test_unsupported_version_gets_err_vers_with_the_range_and_is_not_executed(version, procedure, two):
    async def test(rig, peer):
        reply = await peer.call(header(XID, version=version, procedure=procedure), b"whatever it says")
        assert (reply.xid, reply.version, reply.procedure) == (XID, version, ERROR)
        assert (reply.error, reply.versions) == (ERR_VERS, (1, 2 if two else 1))
        assert reply.credit == 128
        assert rig.control.executed == 0
        await assert_alive(peer)

    run(test, version_two=two)


# Section 4.5: what is discarded silently


@covers("RFC 8166 4.5 too-short")
@pytest.mark.parametrize("length", range(28))
def test_messages_shorter_than_the_smallest_header_are_discarded(length):
    async def test(rig, peer):
        peer.send(header(XID, procedure=NOMSG)[:length])
        await assert_alive(peer)
        assert peer.waiting == 0
        assert rig.server.counters.discards == 1

    run(test)


@covers("RFC 8166 4.2.4 error-unanswered")
@pytest.mark.parametrize("version", [1, 2, 99])
def test_rdma_error_is_never_answered(version):
    async def test(rig, peer):
        peer.send(words(XID, version, 1, ERROR, 2, 0, 0))
        peer.send(words(XID, version, 1, ERROR, 1, 1, 1))
        await assert_alive(peer)
        assert peer.waiting == 0

    run(test)


@covers("RFC 8166 4.6.2 done")
def test_rdma_done_is_discarded():
    async def test(rig, peer):
        peer.send(header(XID, procedure=DONE))
        await assert_alive(peer)
        assert peer.waiting == 0

    run(test)


def test_discarded_messages_use_up_no_receives():
    async def test(rig, peer):
        for _ in range(5):
            for xid in range(100):
                peer.send(header(xid, procedure=DONE))
            await rig.settle()
        await assert_alive(peer)
        assert rig.connection.responder.credits.posted == rig.options.responder.receives

    run(test)


# Section 4.5.2: headers that cannot be parsed


@covers("RFC 8166 4.5.2 malformed", "RFC 8166 4.6.1 msgp")
@pytest.mark.parametrize("procedure", [MSGP, 5, 6, 0x80000000, 0xFFFFFFFF])
def test_unknown_procedures_get_err_chunk(procedure):
    async def test(rig, peer):
        await assert_refused(rig, peer, header(XID, procedure=procedure), rpc_call(XID, procedure=NULL))

    run(test)


SEGMENT = Segment(0x1111, 100, 0x2222)


@covers("RFC 8166 4.5.2 malformed")
@pytest.mark.parametrize(
    "message",
    [
        pytest.param(words(XID, 1, 32, NOMSG, 0, 0, 0), id="NOMSG without chunks"),
        pytest.param(header(XID, procedure=NOMSG, writes=[[SEGMENT]]), id="NOMSG with a Write list only"),
        pytest.param(header(XID, procedure=NOMSG, reply=[SEGMENT]), id="NOMSG with a Reply chunk only"),
        pytest.param(header(XID, procedure=NOMSG, reads=[(64, SEGMENT)]), id="NOMSG without Position Zero"),
        pytest.param(header(XID, procedure=NOMSG, reads=[(0, Segment(1, 0, 0))]), id="NOMSG of no octets"),
        pytest.param(header(XID, procedure=NOMSG, reads=[(0, Segment(1, 7, 0))]), id="NOMSG of seven octets"),
        pytest.param(header(XID, reads=[(0, SEGMENT)]) + rpc_call(XID), id="MSG with Position Zero"),
        pytest.param(header(XID, reads=[(0, SEGMENT), (48, SEGMENT)]) + rpc_call(XID), id="MSG with both"),
        pytest.param(words(XID, 1, 32, MSG, 2, 0, 0) + rpc_call(XID), id="optional-data word 2 (reads)"),
        pytest.param(words(XID, 1, 32, MSG, 0, 7, 0) + rpc_call(XID), id="optional-data word 7 (writes)"),
        pytest.param(words(XID, 1, 32, MSG, 0, 0, 0xFFFFFFFF) + rpc_call(XID), id="optional-data word ~0 (reply)"),
        pytest.param(words(XID, 1, 32, MSG, 1, 0, 1, 1), id="cut off in a read segment"),
        pytest.param(words(XID, 1, 32, MSG, 0, 1, 2, 1, 1, 1, 1), id="cut off in a Write chunk"),
        pytest.param(words(XID, 1, 32, MSG, 0, 0, 1, 1, 1, 1, 1), id="cut off in the Reply chunk"),
        pytest.param(words(XID, 1, 32, MSG, 0, 0, 1), id="cut off before the Reply chunk's count"),
        pytest.param(words(XID, 1, 32, MSG, 0, 1, 0xFFFFFFFF), id="four billion segments (Write)"),
        pytest.param(words(XID, 1, 32, MSG, 0, 1, 0x10000001, 1, 1, 1, 1, 0, 0), id="count times 16 overflows"),
        pytest.param(words(XID, 1, 32, MSG, 0, 0, 1, 0xFFFFFFFF), id="four billion segments (Reply)"),
        pytest.param(words(XID, 1, 32, MSG, 0, 1, 0, 1, 0, 1, 0), id="cut off in the Write list"),
    ],
)
def test_malformed_headers_get_err_chunk(message):
    async def test(rig, peer):
        await assert_refused(rig, peer, message)
        assert rig.server.counters.err_chunk == 1

    run(test)


@covers("RFC 8166 4.2.1 xid")
@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(rpc_call(XID + 1, procedure=NULL), id="another XID"),
        pytest.param(b"", id="no payload"),
        pytest.param(words(XID), id="only an XID"),
        pytest.param(words(XID, 2) + rpc_call(XID, procedure=NULL)[8:], id="neither call nor reply"),
    ],
)
def test_payload_that_is_not_this_call_gets_err_chunk(payload):
    """Section 4.2.1: the XIDs of both headers must agree."""

    async def test(rig, peer):
        await assert_refused(rig, peer, header(XID), payload)

    run(test)


@covers("RFC 8166 4.2.1 xid")
def test_long_call_with_another_xid_gets_err_chunk():
    async def test(rig, peer):
        body = peer.readable(rpc_call(XID + 1, procedure=NULL))
        await assert_refused(rig, peer, header(XID, procedure=NOMSG, reads=[(0, body.segment())]))

    run(test)


def test_long_call_that_is_a_reply_gets_err_chunk():
    async def test(rig, peer):
        body = peer.readable(words(XID, 1, 0, 0, 0, 0, 0, 0, 0, 0))
        await assert_refused(rig, peer, header(XID, procedure=NOMSG, reads=[(0, body.segment())]))

    run(test)


# Section 3.4.5: Read chunks


@covers("RFC 8166 3.4.5 same-position")
def test_segments_of_one_position_are_concatenated_in_list_order():
    async def test(rig, peer):
        data = pattern(10_001)
        arguments = echo_arguments([data])
        source = peer.readable(data)
        target = peer.writable(len(data))
        cut = source.segments(1, 2, 3, 4000, 0, 5995)
        # One of them is in another region.
        other = peer.readable(b"junk" + data[6:4006])
        cut[3] = other.segment(4, 4000)
        message = header(XID, reads=[(arguments.positions[0], part) for part in cut], writes=[[target.segment()]])
        reply = await peer.call(message, rpc_call(XID, arguments.without(0)))
        assert reply.payload == echo_results(arguments, XID, [0])
        assert target.memory == data

    run(test)


@covers("RFC 8267 6.4.2 read-chunks")
@pytest.mark.parametrize("count", [1, 15, 16, 17, 100])
def test_sixteen_segments_and_more_per_chunk(count):
    """RFC 8267 section 6.4.2 demands sixteen."""

    async def test(rig, peer):
        data = pattern(count * 13)
        arguments = echo_arguments([data])
        source = peer.readable(data)
        target = peer.writable(len(data))
        message = header(
            XID,
            reads=[(arguments.positions[0], part) for part in source.segments(*[13] * count)],
            writes=[target.segments(*[13] * count)] if count <= 17 else (),
        )
        reply = await peer.call(message, rpc_call(XID, arguments.without(0)))
        assert reply.payload == echo_results(arguments, XID, [0] if count <= 17 else [])
        assert count > 17 or target.memory == data

    run(test)


@covers("RFC 8166 3.4.5.2 roundup")
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 4095, 4096])
@pytest.mark.parametrize("padding", ["none", "in the last segment", "in a segment of its own"])
def test_chunks_with_and_without_round_up(length, padding):
    """Section 3.4.5.2: the requester may put the padding into the chunk, whatever it holds, or leave it out."""

    async def test(rig, peer):
        data = pattern(length)
        arguments = echo_arguments([data, b"behind"])
        pad = -length & 3
        source = peer.readable(data + b"\xff" * pad)
        cut = {
            "none": [source.segment(0, length)],
            "in the last segment": [source.segment(0, length + pad)],
            "in a segment of its own": source.segments(length, pad),
        }[padding]
        target = peer.writable(length)
        message = header(XID, reads=[(arguments.positions[0], part) for part in cut], writes=[[target.segment()]])
        reply = await peer.call(message, rpc_call(XID, arguments.without(0)))
        assert reply.payload == echo_results(arguments, XID, [0])
        assert target.memory == data

    run(test)


@covers("RFC 8166 3.4.5 position")
def test_several_read_chunks_at_their_positions():
    """Each goes to its own place: offsets within the sink, not page numbers, decide."""

    async def test(rig, peer):
        items = [pattern(5001, 1), pattern(3, 2), pattern(7000, 3), pattern(1, 4)]
        arguments = echo_arguments(items)
        reads = []
        for index, item in enumerate(items):
            if index != 1:
                source = peer.readable(item)
                half = len(item) // 2
                reads += [(arguments.positions[index], part) for part in source.segments(half, len(item) - half)]
        targets = [peer.writable(len(item)) for item in items]
        message = header(XID, reads=reads, writes=[[target.segment()] for target in targets])
        reply = await peer.call(message, rpc_call(XID, arguments.without(0, 2, 3)))
        assert reply.payload == echo_results(arguments, XID, [0, 1, 2, 3])
        assert [bytes(target.memory) for target in targets] == items

    run(test)


@covers("RFC 8166 4.3.1 any-order")
def test_chunks_in_any_order_of_positions():
    async def test(rig, peer):
        items = [pattern(100, 1), pattern(200, 2), pattern(300, 3)]
        arguments = echo_arguments(items)
        sources = [peer.readable(item) for item in items]
        reads = [(arguments.positions[index], sources[index].segment()) for index in (2, 0, 1)]
        # Segments of one chunk need not be neighbours either.
        reads[1:2] = [(arguments.positions[0], sources[0].segment(0, 60))]
        reads.append((arguments.positions[0], sources[0].segment(60)))
        reply = await peer.call(header(XID, reads=reads), rpc_call(XID, arguments.without(0, 1, 2)))
        assert reply.payload == echo_results(arguments, XID)

    run(test)


@covers("RFC 8166 4.2.4 nomsg")
def test_long_call():
    async def test(rig, peer):
        arguments = echo_arguments([pattern(9001)])
        body = peer.readable(rpc_call(XID, arguments.octets))
        target = peer.writable(9001)
        message = header(
            XID,
            procedure=NOMSG,
            reads=[(0, part) for part in body.segments(5, 4091, 0, len(body.memory) - 4096)],
            writes=[[target.segment()]],
        )
        reply = await peer.call(message)
        assert reply.payload == echo_results(arguments, XID, [0])
        assert target.memory == pattern(9001)

    run(test)


@covers("RFC 8166 4.3.2 long-call-and-read-chunk", "RFC 8267 6.4.2 read-chunks")
def test_long_call_with_a_further_read_chunk():
    """RFC 8267 section 6.4.2. The other chunk's Position counts in the unreduced stream, behind the body's own."""

    async def test(rig, peer):
        items = [pattern(77, 1), pattern(8191, 2), pattern(600, 3)]
        arguments = echo_arguments(items)
        for order in (1, -1):
            body = peer.readable(rpc_call(XID, arguments.without(1)))
            data = peer.readable(items[1])
            reads = [(0, body.segment()), (arguments.positions[1], data.segment())][::order]
            target = peer.writable(8191)
            message = header(XID, procedure=NOMSG, reads=reads, writes=[(), [target.segment()]], reply=None)
            reply = await peer.call(message)
            assert reply.payload == echo_results(arguments, XID, [1])
            assert target.memory == items[1]

    run(test)


def test_octets_behind_the_header_of_a_long_call_are_ignored():
    async def test(rig, peer):
        body = peer.readable(rpc_call(XID, procedure=NULL))
        reply = await peer.call(header(XID, procedure=NOMSG, reads=[(0, body.segment())]), b"\xff" * 100)
        assert accept_status(reply.payload) == 0

    run(test)


@covers("RFC 8166 3.4.5 position", "RFC 8166 3.5.3 long-call-inline", "RFC 8166 4.2.4 nomsg", "RFC 8166 8.1.4 bounds")
@pytest.mark.parametrize(
    "reads",
    [
        pytest.param([(57, 4)], id="position not a multiple of four"),
        pytest.param([(56, 8), (58, 8)], id="second position not a multiple of four"),
        pytest.param([(56, 8), (60, 8)], id="overlap"),
        pytest.param([(56, 5), (60, 8)], id="overlap with the round-up"),
        pytest.param([(60, 8), (56, 8)], id="overlap, in reverse"),
        pytest.param([(200, 4)], id="behind the end of the stream"),
        pytest.param([(0xFFFFFFFC, 4)], id="the last position there is"),
        pytest.param([(56, 4), (0xFFFFFFFC, 0xFFFFFFFF)], id="sum over 32 bits"),
        pytest.param([(56, 0xFFFFFFFF), (56, 0xFFFFFFFF)], id="length over 32 bits"),
        pytest.param([(56, 0xFFFFFFFF)], id="four gigabytes"),
        pytest.param([(56, (1 << 20) + (128 << 10) + 1)], id="one octet too many"),
        pytest.param([(56, 1 << 20), (56, 1 << 20)], id="too many in two segments"),
    ],
)
def test_impossible_read_lists_get_err_chunk_before_anything_is_read(reads):
    async def test(rig, peer):
        arguments = echo_arguments([b"12345678"])
        message = header(XID, reads=[(position, Segment(0xBAD, length, 0)) for position, length in reads])
        await assert_refused(rig, peer, message, rpc_call(XID, arguments.without(0)))
        assert rig.server.counters.reads == 0
        assert rig.pool.in_use < 2 << 20

    run(test)


def test_the_largest_call_is_taken():
    async def test(rig, peer):
        data = pattern(1 << 20)
        arguments = echo_arguments([data])
        source, target = peer.readable(data), peer.writable(len(data))
        message = header(
            XID,
            reads=[(arguments.positions[0], part) for part in source.segments(*[131072] * 8)],
            writes=[target.segments(*[122880] * 8, 65536)],
        )
        reply = await peer.call(message, rpc_call(XID, arguments.without(0)))
        assert reply.payload == echo_results(arguments, XID, [0])
        assert target.memory == data

    run(test)


@covers("RFC 8166 8.1.4 bounds")
def test_too_many_segments_get_err_chunk():
    async def test(rig):
        peer = await rig.peer(receive_size=65536)
        reads = [(56, Segment(1, 0, 0))] * 65
        await assert_refused(rig, peer, header(XID, reads=reads), rpc_call(XID))
        await assert_refused(rig, peer, header(XID, writes=[()] * 65), rpc_call(XID))
        await assert_refused(rig, peer, header(XID, reply=[Segment(1, 1, 1)] * 65), rpc_call(XID))
        mixed = header(XID, reads=reads[:22], writes=[[Segment(1, 1, 1)] * 22], reply=[Segment(1, 1, 1)] * 22)
        await assert_refused(rig, peer, mixed, rpc_call(XID))

    run(test, max_segments=64)


@covers("RFC 8166 4.5.2 garbage-arguments")
@pytest.mark.parametrize(
    ("position", "length"),
    [
        pytest.param(40, 8, id="over the filler"),
        pytest.param(48, 8, id="over the union's discriminant"),
        pytest.param(0, 0, id="chunk shorter than its item"),
        pytest.param(0, 16, id="chunk longer than its item and padding"),
    ],
)
def test_chunks_that_match_no_eligible_argument_get_garbage_args(position, length):
    """Section 4.5.2: the header is valid; the upper layer cannot parse its arguments."""

    async def test(rig, peer):
        arguments = echo_arguments([b"12345678"])
        source = peer.readable(bytes(64))
        read = (position or arguments.positions[0], source.segment(0, length))
        reply = await peer.call(header(XID, reads=[read]), rpc_call(XID, arguments.without(0)))
        assert reply.procedure == MSG
        assert accept_status(reply.payload) == GARBAGE_ARGS
        await assert_alive(peer)

    run(test)


def test_chunk_within_the_rpc_header_is_not_guessed_at():
    async def test(rig, peer):
        source = peer.readable(bytes(4))
        read = (CALL_HEADER - 8, source.segment())
        reply = await peer.call(header(XID, reads=[read]), rpc_call(XID, procedure=NULL)[:-4])
        assert reply.procedure == MSG
        assert accept_status(reply.payload) == GARBAGE_ARGS

    run(test)


def test_chunk_beside_a_procedure_without_arguments_gets_garbage_args_or_is_ignored():
    async def test(rig, peer):
        source = peer.readable(b"data")
        reply = await peer.call(null(reads=[(CALL_HEADER, source.segment())]))
        assert accept_status(reply.payload) in (0, GARBAGE_ARGS)
        await assert_alive(peer)

    run(test)


@covers("RFC 8166 3.4.5.1 reads-first")
def test_the_call_runs_only_when_all_its_reads_have_completed():
    """Section 3.4.5.1. The provider executes two Reads a turn here."""

    async def test(rig):
        peer = await rig.peer(initiator_depth=2, responder_resources=2)
        data = pattern(1000)
        arguments = echo_arguments([data])
        source = peer.readable(data)
        reads = [(arguments.positions[0], part) for part in source.segments(*[100] * 10)]
        reply = await peer.call(header(XID, reads=reads), rpc_call(XID, arguments.without(0)))
        assert reply.payload == echo_results(arguments, XID)
        assert rig.connection._endpoint.max_reads == 2
        if isinstance(rig.connection._endpoint, LoopbackEndpoint):
            assert rig.connection._endpoint.most_reads == 2

    run(test)


def test_a_call_without_chunks_overtakes_one_that_is_being_read():
    async def test(rig):
        peer = await rig.peer(responder_resources=1)
        data = pattern(100)
        arguments = echo_arguments([data])
        source = peer.readable(data)
        reads = [(arguments.positions[0], part) for part in source.segments(*[10] * 10)]
        peer.send(header(1, reads=reads), rpc_call(1, arguments.without(0)))
        peer.send(null(2))
        assert [(await peer.reply()).xid for _ in range(2)] == [2, 1]

    run(test)


def test_rpc_level_errors_travel_in_ordinary_replies():
    async def test(rig, peer):
        call = bytearray(rpc_call(XID, procedure=NULL))
        struct.pack_into(">I", call, 12, 100227)
        reply = await peer.call(header(XID), bytes(call))
        assert (reply.procedure, accept_status(reply.payload)) == (MSG, 1)
        call = bytearray(rpc_call(XID, procedure=99))
        reply = await peer.call(header(XID), bytes(call))
        assert (reply.procedure, accept_status(reply.payload)) == (MSG, 3)

    run(test)
