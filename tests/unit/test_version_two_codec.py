"""Version Two's codec against the test suite's own encoder, which shares no code with it."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rpcrdma.wire.errors import TransportError, decode_error
from rpcrdma.wire.header import Discard, Fault, HeaderFault, MessageHeader, OptionHeader, Shortage
from rpcrdma.wire.version_one import VersionOne
from rpcrdma.wire.version_two import VersionTwo
from tests.peer import CALL, ERROR, MSG, NOMSG, REPLY, ReplyHeader, Segment, header, header_two, option, words

CODEC = VersionTwo()
uint32 = st.integers(0, 2**32 - 1)
segments = st.builds(Segment, uint32, uint32, st.integers(0, 2**64 - 1))
reads = st.lists(st.tuples(uint32, segments), max_size=5)
writes = st.lists(st.lists(segments, max_size=4), max_size=4)
chunk = st.none() | st.lists(segments, max_size=4)
fields = st.fixed_dictionaries(
    {
        "procedure": st.sampled_from([MSG, NOMSG]),
        "credit": uint32,
        "direction": st.sampled_from([CALL, REPLY]),
        "inv_handle": uint32,
        "reads": reads,
        "writes": writes,
        "reply": chunk,
    }
)


def decode(octets: bytes, most: int = 64):
    return CODEC.decode(memoryview(octets), most)


@settings(deadline=None)
@given(uint32, fields, st.binary(max_size=20))
def test_what_is_decoded_is_what_was_built(xid, built, rest):
    message = header_two(xid, **built)
    decoded = decode(message + rest)
    assert isinstance(decoded, MessageHeader)
    assert (decoded.xid, decoded.version, decoded.credits) == (xid, 2, built["credit"])
    for name in ("procedure", "direction", "inv_handle", "writes", "reply"):
        assert getattr(decoded, name) == built[name]
    assert decoded.reads == [(position, *part) for position, part in built["reads"]]
    assert decoded.payload == len(message)


@settings(deadline=None)
@given(uint32, fields)
def test_calls_are_encoded_as_the_test_suite_encodes_them(xid, built):
    built["direction"] = CALL
    encoded = CODEC.encode_call(
        xid,
        built["credit"],
        built["procedure"],
        [(position, *part) for position, part in built["reads"]],
        built["writes"],
        built["reply"],
        built["inv_handle"],
    )
    assert encoded == header_two(xid, **built)
    assert CODEC.call_size == len(CODEC.encode_call(xid, 1))


@settings(deadline=None)
@given(uint32, uint32, reads, writes, chunk)
def test_version_one_calls_too(xid, credit, read_list, write_list, reply):
    encoded = VersionOne().encode_call(
        xid, credit, NOMSG, [(position, *part) for position, part in read_list], write_list, reply, invalidate=77
    )
    assert encoded == header(xid, credit=credit, procedure=NOMSG, reads=read_list, writes=write_list, reply=reply)


@settings(deadline=None)
@given(uint32, fields, uint32)
def test_replies_echo_handle_and_lists(xid, built, grant):
    built["direction"] = CALL
    call = decode(header_two(xid, **built))
    size = CODEC.reply_size(call)
    buffer = memoryview(bytearray(size + 8))
    sizes = [sum(part.length for part in target) for target in [*built["writes"], built["reply"] or []]]
    end = CODEC.encode_reply(buffer, call, grant, NOMSG, sizes[:-1], sizes[-1])
    expected = header_two(
        xid,
        procedure=NOMSG,
        credit=grant,
        direction=REPLY,
        inv_handle=built["inv_handle"],
        writes=built["writes"],
        reply=built["reply"],
    )
    assert end == size == len(expected)
    assert bytes(buffer) == expected + bytes(8)


@settings(deadline=None)
@given(uint32, fields)
def test_the_handle_to_invalidate_is_the_named_one_or_none(xid, built):
    call = decode(header_two(xid, **built))
    offered = {part.handle for _, part in built["reads"]}
    offered |= {part.handle for target in [*built["writes"], built["reply"] or []] for part in target}
    named = built["inv_handle"]
    assert CODEC.invalidates(call) == (named if named and named in offered else None)
    for handle in offered - {0}:
        call = decode(header_two(xid, **{**built, "inv_handle": handle}))
        assert CODEC.invalidates(call) == handle


@settings(deadline=None)
@given(uint32, uint32, st.binary(max_size=40), st.sampled_from([CALL, REPLY]), uint32, st.binary(max_size=9))
def test_options_both_ways(xid, opttype, info, direction, credit, rest):
    message = option(xid, opttype, info, direction=direction, credit=credit)
    assert CODEC.encode_option(xid, credit, direction, opttype, info) == message
    decoded = decode(message + rest)
    assert isinstance(decoded, OptionHeader)
    assert (decoded.xid, decoded.credits, decoded.optdir) == (xid, credit, direction)
    assert (decoded.opttype, bytes(decoded.info), decoded.payload) == (opttype, info, len(message))


@settings(deadline=None)
@given(uint32, uint32, st.booleans(), uint32, st.integers(0, 2**40))
def test_errors_both_ways(xid, credit, processed, segment, needed):
    shortage = Shortage(processed, segment, needed)
    bodies = {
        Fault.HEADER: (2,),
        Fault.NO_ROOM: (3, int(processed), segment, min(needed, 2**32 - 1)),
        Fault.PROCEDURE: (4,),
        Fault.OPTION: (5,),
    }
    for fault, body in bodies.items():
        message = CODEC.encode_error(xid, credit, fault, shortage)
        assert message == words(xid, 2, credit, ERROR, *body)
        decoded = decode_error(memoryview(message))
        assert decoded is not None
        assert decoded[:3] == (xid, 2, body[0])
        if fault is Fault.NO_ROOM:
            assert decoded.shortage == (processed, segment, body[3])
        assert ReplyHeader.parse(message).error == body[0]


def test_version_errors_are_read_in_any_version():
    for version in (1, 2, 3, 77):
        decoded = decode_error(memoryview(words(5, version, 1, ERROR, 1, 1, 2)))
        assert decoded == TransportError(5, version, 1, (1, 2))
        assert str(decoded).endswith("ERR_VERS (versions 1 to 2)")


@pytest.mark.parametrize(
    "message",
    [
        words(5, 2, 1, ERROR),
        words(5, 2, 1, MSG, 2),
        words(5, 2, 1, ERROR, 0),
        words(5, 2, 1, ERROR, 6),
        words(5, 1, 1, ERROR, 3, 1, 1, 1),
        words(5, 2, 1, ERROR, 1, 1),
        words(5, 2, 1, ERROR, 3, 1, 1),
        words(5, 2, 1, ERROR, 3, 7, 1, 1),
        words(5, 3, 1, ERROR, 2),
    ],
)
def test_what_is_no_error(message):
    for end in range(len(message) + 1):
        assert decode_error(memoryview(message[:end])) is None


@settings(max_examples=60, deadline=None)
@given(fields)
def test_a_message_cut_off_anywhere_is_an_error_and_nothing_else(built):
    message = header_two(7, **built)
    for end in range(28, len(message)):
        if built["direction"] == REPLY:
            with pytest.raises(Discard):
                decode(message[:end])
            continue
        with pytest.raises(HeaderFault) as caught:
            decode(message[:end])
        assert (caught.value.xid, caught.value.version, caught.value.fault) == (7, 2, Fault.HEADER)


def test_an_option_cut_off_anywhere_too():
    message = option(7, 1, b"thirteen octets")
    for end in range(28, len(message)):
        with pytest.raises(HeaderFault):
            decode(message[:end])


@pytest.mark.parametrize("most", [1, 2, 3, 10])
def test_no_more_segments_than_allowed(most):
    part = Segment(1, 2, 3)
    for lists in (
        {"reads": [(0, part)] * (most + 1)},
        {"writes": [[part] * (most + 1)]},
        {"writes": [[]] * (most + 1)},
        {"reply": [part] * (most + 1)},
        {"reads": [(0, part)], "reply": [part] * most},
    ):
        with pytest.raises(HeaderFault):
            decode(header_two(1, **lists), most)


@settings(max_examples=400, deadline=None)
@given(st.binary(min_size=28, max_size=300) | st.binary(max_size=200).map(lambda rest: words(7, 2, 1) + rest))
@example(words(1, 2, 1, 0, 0, 0, 1, 0xFFFFFFFF))
@example(words(1, 2, 1, 0, 0, 0, 0, 1, 0xFFFFFFFF, 0, 0, 0, 0))
@example(words(1, 2, 1, 5, 0, 0, 0xFFFFFFFF))
def test_no_octets_make_the_decoder_raise_anything_else(octets):
    if len(octets) < 28:
        return
    try:
        decoded = decode(octets)
    except (Discard, HeaderFault):
        return
    assert 28 <= decoded.payload <= len(octets)
    count = len(decoded.reads) + sum(map(len, decoded.writes)) + len(decoded.reply or ())
    assert count <= 64
    assert len(decoded.writes) <= 64
    assert count * 16 <= len(octets)
    decode_error(memoryview(octets))
