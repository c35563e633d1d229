"""Where the responder puts results: Write chunks, inline, Reply chunk (RFC 8166 sections 3.4.6, 3.5.3, 4.3)."""

from __future__ import annotations

import pytest

from rpcrdma.wire.private_data import PrivateData
from tests.peer import (
    ERR_CHUNK,
    ERROR,
    FILL,
    MSG,
    NOMSG,
    NULL,
    REPLY_HEADER,
    Arguments,
    Segment,
    accept_status,
    echo_arguments,
    echo_results,
    header,
    rpc_call,
    run,
)
from tests.peer.providers import provider  # noqa: F401 (runs each test on every provider)
from tests.rfc.plugin import covers

XID = 0x0A0B0C0D


def pattern(length: int, seed: int = 1) -> bytes:
    return bytes((index * 11 + (index >> 8) * 5 + seed) & 0xFF for index in range(length))


def call(arguments: Arguments, xid: int = XID, **lists) -> bytes:
    return header(xid, **lists) + rpc_call(xid, arguments.octets)


def long_call(peer, arguments: Arguments, **lists) -> bytes:
    """A call too large for the inline threshold."""
    body = peer.readable(rpc_call(XID, arguments.octets))
    return header(XID, procedure=NOMSG, reads=[(0, body.segment())], **lists)


def lengths(chunk: tuple[Segment, ...] | None) -> list[int]:
    assert chunk is not None
    return [segment.length for segment in chunk]


def same_but_lengths(returned: tuple[Segment, ...], offered: list[Segment]) -> bool:
    """Section 3.4.6: the segment count and all segments are copied, only lengths change."""
    return [(part.handle, part.offset) for part in returned] == [(part.handle, part.offset) for part in offered]


# Section 3.4.6: Write chunks


@covers(
    "RFC 8166 3.4.6 segments-in-order",
    "RFC 8166 3.4.6.2 no-roundup",
    "RFC 8166 3.4.6 echo",
    "RFC 8267 6.4.2 write-chunks",
)
@pytest.mark.parametrize(
    ("size", "cut", "filled"),
    [
        (10, [10], [10]),
        (10, [20], [10]),
        (10, [4, 4, 4], [4, 4, 2]),
        (10, [4, 6, 8], [4, 6, 0]),
        (10, [10, 8], [10, 0]),
        (9, [9, 4], [9, 0]),
        (9, [9, 3], [9, 0]),
        (11, [12], [11]),
        (10, [0, 10], [0, 10]),
        (10, [5, 0, 0, 5, 0], [5, 0, 0, 5, 0]),
        (0, [4096], [0]),
        (0, [16, 16], [0, 0]),
        (1, [1] * 16, [1] + [0] * 15),
        (16, [1] * 16, [1] * 16),
        (3000, [1000, 1000, 1000, 1000], [1000, 1000, 1000, 0]),
    ],
)
def test_segments_are_filled_in_order_without_padding(size, cut, filled):
    async def test(rig, peer):
        arguments = echo_arguments([pattern(size)])
        target = peer.writable(sum(cut) + 8)
        offered = target.segments(*cut)
        reply = await peer.call(call(arguments, writes=[offered]))
        assert reply.procedure == MSG
        assert lengths(reply.writes[0]) == filled
        assert same_but_lengths(reply.writes[0], offered)
        assert reply.payload == echo_results(arguments, XID, [0])
        assert target.memory == pattern(size) + bytes([FILL]) * (sum(cut) + 8 - size)

    run(test)


def test_segments_anywhere_in_memory_and_in_any_order():
    async def test(rig, peer):
        arguments = echo_arguments([pattern(100)])
        first, second = peer.writable(64), peer.writable(64)
        offered = [second.segment(32, 32), first.segment(0, 16), second.segment(0, 32), first.segment(20, 44)]
        reply = await peer.call(call(arguments, writes=[offered]))
        assert lengths(reply.writes[0]) == [32, 16, 32, 20]
        data = pattern(100)
        assert second.memory == data[48:80] + data[:32]
        assert first.memory == data[32:48] + bytes([FILL]) * 4 + data[80:] + bytes([FILL]) * 24

    run(test)


@covers("RFC 8267 6.4.1 must-use-write-chunk", "RFC 8166 3.4.4.1 length-stays")
def test_a_result_with_a_write_chunk_goes_there_though_it_would_fit_inline():
    """RFC 8267 section 6.4.1."""

    async def test(rig, peer):
        arguments = echo_arguments([b"tiny"])
        target = peer.writable(4)
        reply = await peer.call(call(arguments, writes=[[target.segment()]]))
        assert target.memory == b"tiny"
        assert reply.payload == echo_results(arguments, XID, [0])

    run(test)


@covers("RFC 8166 4.3.2.1 pairing", "RFC 8166 4.3.2.3 empty")
def test_several_write_chunks_pair_with_results_in_order():
    """Section 4.3.2.1. An empty chunk asks for its result inline; more results than chunks go inline too."""

    async def test(rig, peer):
        items = [pattern(100 + index, index) for index in range(5)]
        arguments = echo_arguments(items)
        targets = [peer.writable(200) for _ in range(4)]
        offered = [[target.segment()] for target in targets]
        offered[1] = []
        reply = await peer.call(call(arguments, writes=offered))
        assert [lengths(chunk) for chunk in reply.writes] == [[100], [], [102], [103]]
        assert reply.payload == echo_results(arguments, XID, [0, 2, 3])
        assert [bytes(target.memory[:104]) for target in targets] == [
            items[0] + bytes([FILL]) * 4,
            bytes([FILL]) * 104,
            items[2] + bytes([FILL]) * 2,
            items[3] + bytes([FILL]),
        ]

    run(test)


@covers("RFC 8166 4.3.2.2 unused")
def test_unused_write_chunks_are_returned_with_all_lengths_zero():
    """Section 4.3.2.2."""

    async def test(rig, peer):
        arguments = echo_arguments([b"data", b"more"])
        targets = [peer.writable(8) for _ in range(4)]
        offered = [target.segments(4, 4) for target in targets]
        reply = await peer.call(call(arguments, writes=offered))
        assert [lengths(chunk) for chunk in reply.writes] == [[4, 0], [4, 0], [0, 0], [0, 0]]
        assert all(same_but_lengths(*pair) for pair in zip(reply.writes, offered, strict=True))

    run(test)


def test_a_result_without_data_leaves_its_chunk_to_the_next():
    """Section 4.3.2.2: a subsequent DDP-eligible result must be placed in an unconsumed chunk."""

    async def test(rig, peer):
        arguments = echo_arguments([b"none", b"data"], dropped=[0])
        first, second = peer.writable(8), peer.writable(8)
        reply = await peer.call(call(arguments, writes=[[first.segment()], [second.segment()]]))
        assert [lengths(chunk) for chunk in reply.writes] == [[4], [0]]
        assert first.memory[:4] == b"data"
        assert reply.payload == echo_results(arguments, XID, [1])

    run(test)


def test_error_replies_return_write_and_reply_chunks_unused():
    async def test(rig, peer):
        target, area = peer.writable(64), peer.writable(64)
        message = header(XID, writes=[target.segments(32, 32)], reply=[area.segment()])
        reply = await peer.call(message, rpc_call(XID, b"\xff" * 4))
        assert accept_status(reply.payload) == 4
        assert lengths(reply.writes[0]) == [0, 0]
        assert lengths(reply.reply) == [0]

    run(test)


def test_a_write_chunk_of_empty_segments_only():
    async def test(rig, peer):
        target = peer.writable(8)
        nothing = [target.segment(0, 0), target.segment(4, 0)]
        empty = await peer.call(call(echo_arguments([b""]), writes=[nothing]))
        assert lengths(empty.writes[0]) == [0, 0]
        # It has segments, so it is no empty chunk, and a result with data finds no room in it.
        reply = await peer.call(call(echo_arguments([b"data"]), writes=[nothing]))
        assert (reply.procedure, reply.error) == (ERROR, ERR_CHUNK)

    run(test)


@covers("RFC 8166 4.5.3 no-room")
@pytest.mark.parametrize(("size", "cut"), [(5, [4]), (4096, [4095]), (4097, [4096, 0]), (10, [3, 3, 3])])
def test_a_write_chunk_that_is_too_short_gets_err_chunk_and_stays_untouched(size, cut):
    """Section 4.5.3. The Reply chunk is no way out: the result must go into its Write chunk."""

    async def test(rig, peer):
        arguments = echo_arguments([b"fits", pattern(size)])
        first, target, area = peer.writable(4), peer.writable(sum(cut)), peer.writable(9000)
        message = long_call(peer, arguments, writes=[[first.segment()], target.segments(*cut)], reply=[area.segment()])
        reply = await peer.call(message)
        assert (reply.xid, reply.procedure, reply.error) == (XID, ERROR, ERR_CHUNK)
        for memory in (first.memory, target.memory, area.memory):
            assert set(memory) == {FILL}
        again = await peer.call(header(7), rpc_call(7, procedure=NULL))
        assert accept_status(again.payload) == 0

    run(test)


# Sections 3.5.3 and 4.3.3: inline or Reply chunk


def fitting(threshold: int, header_size: int = 28) -> Arguments:
    """Arguments whose reply fills ``threshold`` to the last word."""
    arguments = echo_arguments([], filler=0)
    room = threshold - header_size - len(echo_results(arguments, XID))
    return echo_arguments([], filler=room)


@covers("RFC 8166 3.5.3 placement", "RFC 8166 3.3.2 send-size")
def test_a_reply_of_exactly_the_threshold_goes_inline():
    async def test(rig, peer):
        arguments = fitting(4096)
        peer.send(call(arguments))
        message = await peer.message()
        assert len(message.octets) == 4096
        assert message.header.payload == echo_results(arguments, XID)

    run(test)


@covers("RFC 8166 3.5.3 placement", "RFC 8166 4.5.3 no-room")
def test_a_reply_above_the_threshold_without_a_reply_chunk_gets_err_chunk():
    async def test(rig, peer):
        arguments = fitting(4100)
        reply = await peer.call(call(arguments))
        assert (reply.procedure, reply.error) == (ERROR, ERR_CHUNK)
        assert reply.credit == 128

    run(test)


@covers("RFC 8166 4.3.3 reply-chunk-unused")
def test_inline_when_it_fits_though_a_reply_chunk_is_offered():
    async def test(rig, peer):
        area = peer.writable(9000)
        offered = area.segments(4000, 5000)
        arguments = fitting(4096, 28 + 4 + 32)
        reply = await peer.call(call(arguments, reply=offered))
        assert reply.procedure == MSG
        assert lengths(reply.reply) == [0, 0]
        assert same_but_lengths(reply.reply, offered)
        assert reply.payload == echo_results(arguments, XID)
        assert set(area.memory) == {FILL}

    run(test)


@covers("RFC 8166 3.5.3 placement", "RFC 8166 4.2.4 nomsg", "RFC 8267 6.4.2 write-chunks")
@pytest.mark.parametrize("cut", [[20000], [1, 2, 3, 5000, 0, 9000, 5994], [4000] * 5])
def test_long_reply(cut):
    async def test(rig, peer):
        arguments = echo_arguments([], filler=8999)
        area = peer.writable(20000)
        offered = area.segments(*cut)
        reply = await peer.call(call(arguments, reply=offered))
        expected = echo_results(arguments, XID)
        assert (reply.xid, reply.procedure, reply.payload, reply.writes) == (XID, NOMSG, b"", ())
        assert same_but_lengths(reply.reply, offered)
        assert sum(lengths(reply.reply)) == len(expected)
        room = len(expected)
        for got, segment in zip(lengths(reply.reply), offered, strict=True):
            assert got == min(room, segment.length)
            room -= got
        assert area.memory[: len(expected)] == expected
        assert set(area.memory[len(expected) :]) == {FILL}

    run(test)


def test_long_reply_with_results_that_found_no_write_chunk():
    """Data in the Reply chunk is part of the payload stream, and padded (section 3.5.3)."""

    async def test(rig, peer):
        arguments = echo_arguments([pattern(1001), pattern(3, 2), pattern(7000, 3)], filler=3)
        area = peer.writable(20000)
        reply = await peer.call(long_call(peer, arguments, reply=area.segments(500, 502, 10000)))
        expected = echo_results(arguments, XID)
        assert reply.procedure == NOMSG
        assert sum(lengths(reply.reply)) == len(expected)
        assert area.memory[: len(expected)] == expected

    run(test)


def test_write_list_together_with_a_long_reply():
    async def test(rig, peer):
        arguments = echo_arguments([pattern(1001), pattern(55, 2)], filler=8000)
        target, area = peer.writable(1004), peer.writable(9000)
        reply = await peer.call(call(arguments, writes=[target.segments(1000, 4), []], reply=[area.segment()]))
        expected = echo_results(arguments, XID, [0])
        assert (reply.procedure, reply.payload) == (NOMSG, b"")
        assert [lengths(chunk) for chunk in reply.writes] == [[1000, 1], []]
        assert lengths(reply.reply) == [len(expected)]
        assert target.memory == pattern(1001) + bytes([FILL]) * 3
        assert area.memory[: len(expected)] == expected

    run(test)


def test_write_list_together_with_a_reply_chunk_that_is_not_needed():
    async def test(rig, peer):
        arguments = echo_arguments([pattern(5000)])
        target, area = peer.writable(5000), peer.writable(9000)
        reply = await peer.call(call_of_chunks(peer, arguments, [target.segment()], [area.segment()]))
        assert reply.procedure == MSG
        assert (lengths(reply.writes[0]), lengths(reply.reply)) == ([5000], [0])
        assert reply.payload == echo_results(arguments, XID, [0])

    run(test)


def call_of_chunks(peer, arguments: Arguments, write: list[Segment], reply: list[Segment]) -> bytes:
    source = peer.readable(arguments.items[0])
    reads = [(arguments.positions[0], source.segment())]
    return header(XID, reads=reads, writes=[write], reply=reply) + rpc_call(XID, arguments.without(0))


@covers("RFC 8166 4.5.3 no-room")
@pytest.mark.parametrize("missing", [1, 4, 4000])
def test_a_reply_chunk_that_is_too_short_gets_err_chunk_and_stays_untouched(missing):
    async def test(rig, peer):
        arguments = echo_arguments([pattern(100)], filler=8000)
        target = peer.writable(100)
        area = peer.writable(len(echo_results(arguments, XID, [0])) - missing)
        reply = await peer.call(call(arguments, writes=[[target.segment()]], reply=[area.segment()]))
        assert (reply.procedure, reply.error) == (ERROR, ERR_CHUNK)
        assert set(area.memory) == set(target.memory) == {FILL}

    run(test)


def test_a_reply_chunk_of_exactly_the_size():
    async def test(rig, peer):
        arguments = echo_arguments([], filler=8000)
        expected = echo_results(arguments, XID)
        area = peer.writable(len(expected))
        reply = await peer.call(call(arguments, reply=[area.segment()]))
        assert reply.procedure == NOMSG
        assert area.memory == expected

    run(test)


def test_an_empty_reply_chunk_is_echoed_and_holds_nothing():
    async def test(rig, peer):
        reply = await peer.call(call(echo_arguments([]), reply=[]))
        assert (reply.procedure, reply.reply) == (MSG, ())
        reply = await peer.call(call(echo_arguments([], filler=5000), reply=[]))
        assert (reply.procedure, reply.error) == (ERROR, ERR_CHUNK)

    run(test)


def test_lists_too_long_to_be_echoed_are_refused_before_the_call_is_executed():
    async def test(rig):
        peer = await rig.peer(PrivateData(False, 4096, 1024).encode())
        message = header(XID, writes=[[Segment(1, 1, 1)] * 62])
        reply = await peer.call(message, rpc_call(XID, procedure=NULL))
        assert (reply.procedure, reply.error) == (ERROR, ERR_CHUNK)
        assert rig.control.executed == 0
        # 16 + 4 + 8 + 61 * 16 + 8 = 1012, and 24 of the RPC reply do not fit: that takes a Reply chunk.
        message = header(XID, writes=[[Segment(1, 1, 1)] * 61])
        reply = await peer.call(message, rpc_call(XID, procedure=NULL))
        assert (reply.procedure, reply.error) == (ERROR, ERR_CHUNK)
        area = peer.writable(REPLY_HEADER)
        message = header(XID, writes=[[Segment(1, 1, 1)] * 60], reply=[area.segment()])
        reply = await peer.call(message, rpc_call(XID, procedure=NULL))
        assert reply.procedure == NOMSG
        assert accept_status(bytes(area.memory)) == 0

    run(test)


@pytest.mark.parametrize("sizes", [[600], [511, 512, 513], [700] * 5, [64] * 20, [513, 1, 514, 2, 515, 3], [520] * 7])
def test_inline_results_are_gathered_in_their_places(sizes):
    """Large payloads are gathered by the Send, small ones copied: the octets must not show the difference."""

    async def test(rig):
        peer = await rig.peer(PrivateData(True, 8192, 8192).encode(), receive_size=8192)
        arguments = echo_arguments([pattern(size, index) for index, size in enumerate(sizes)], filler=5)
        reply = await peer.call(call(arguments))
        assert reply.payload == echo_results(arguments, XID)

    run(test, send_size=8192, receive_size=8192)


# Send With Invalidate (RFC 8797 section 4.1; the choice is ours)


@covers("RFC 8797 4.1 both-r")
def test_invalidates_the_first_handle_of_the_call():
    async def test(rig, peer):
        data = pattern(100)
        arguments = echo_arguments([data])
        first, second, target, area = peer.readable(data), peer.readable(data), peer.writable(104), peer.writable(9)
        reads = [(arguments.positions[0], first.segment(0, 50)), (arguments.positions[0], second.segment(50))]
        lists = {"reads": reads, "writes": [[target.segment()]], "reply": [area.segment()]}
        message = header(XID, **lists) + rpc_call(XID, arguments.without(0))
        peer.send(message)
        assert (await peer.message()).invalidated == first.handle
        with pytest.raises(KeyError):
            peer.endpoint.invalidate(first.handle)
        # Without a Read list it is the Write list's, then the Reply chunk's.
        peer.send(call(arguments, writes=[[], [target.segment()]], reply=[area.segment()]))
        assert (await peer.message()).invalidated == target.handle
        peer.send(call(arguments, reply=[area.segment()]))
        assert (await peer.message()).invalidated == area.handle
        peer.send(call(arguments))
        assert (await peer.message()).invalidated is None

    run(test)


def test_never_invalidates_the_trailing_pad_segment():
    """Linux appends its one pad buffer to every Write chunk of unaligned length, and needs it for the next call."""

    async def test(rig, peer):
        pad = peer.writable(4)
        for size in (1, 2, 3, 5, 1023):
            arguments = echo_arguments([pattern(size)])
            target = peer.writable(size)
            peer.send(call(arguments, writes=[[target.segment(), pad.segment()]]))
            message = await peer.message()
            assert message.invalidated == target.handle
            assert lengths(message.header.writes[0]) == [size, 0]
            assert target.memory == pattern(size)
            peer.send(call(echo_arguments([b""]), writes=[[target.segment(0, 0), pad.segment()]]))
            message = await peer.message()
            assert message.invalidated is None
        assert set(pad.memory) == {FILL}
        peer.endpoint.invalidate(pad.handle)

    run(test)


@covers("RFC 8797 4.1 either-clear")
@pytest.mark.parametrize(("ours", "theirs"), [(True, False), (False, True), (False, False)])
def test_plain_send_unless_both_peers_set_r(ours, theirs):
    async def test(rig):
        peer = await rig.peer(PrivateData(theirs, 4096, 4096).encode())
        target = peer.writable(100)
        peer.send(call(echo_arguments([b"data"]), writes=[[target.segment()]]))
        assert (await peer.message()).invalidated is None

    run(test, remote_invalidation=ours)


def test_errors_invalidate_nothing():
    async def test(rig, peer):
        target = peer.writable(2)
        peer.send(call(echo_arguments([b"data"]), writes=[[target.segment()]]))
        message = await peer.message()
        assert (message.header.procedure, message.invalidated) == (ERROR, None)

    run(test)


@covers("RFC 8166 3.3.2 send-size")
def test_replies_of_any_size_in_any_place_never_exceed_the_threshold():
    async def test(rig):
        peer = await rig.peer(PrivateData(True, 1024, 1024).encode(), receive_size=1024)
        area = peer.writable(4000)
        for size in range(900, 1000):
            arguments = echo_arguments([], filler=size)
            peer.send(call(arguments, xid=size, reply=[area.segment()]))
            message = await peer.message()
            assert len(message.octets) <= 1024
            assert message.header.procedure in (MSG, NOMSG)
            assert (message.header.procedure == MSG) == (48 + len(echo_results(arguments, size)) <= 1024)
            if message.invalidated is not None:
                area = peer.writable(4000)

    run(test)
