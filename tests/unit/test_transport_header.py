"""The codec sees in a transport header what the reference sees, and writes the same replies."""

import random
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rpcrdma.wire.header import HeaderFault
from rpcrdma.wire.version_one import VersionOne
from rpcrdma.wire.version_two import VersionTwo
from tests.fuzz.mutate import mutated
from tests.peer import CALL, MSG, NOMSG, REPLY, Segment, header, header_two, option, words
from tests.support.headers import check_header, decoded

MOST = 24
CODECS = {1: VersionOne(), 2: VersionTwo()}
uint32 = st.integers(0, 2**32 - 1)
# Few handles, so that the one that version Two names is sometimes one of the call's; often nothing in a segment.
handles = st.integers(0, 5) | uint32
lengths = st.sampled_from([0, 0, 1, 4, 1000]) | uint32
segments = st.builds(Segment, handles, lengths, st.integers(0, 2**64 - 1))
reads = st.lists(st.tuples(st.sampled_from([0, 4, 100]) | uint32, segments), max_size=5)
chunk = st.lists(segments, max_size=5)
shapes = st.fixed_dictionaries(
    {
        "procedure": st.sampled_from([MSG, MSG, NOMSG]),
        "credit": uint32,
        "reads": reads,
        "writes": st.lists(chunk, max_size=4),
        "reply": st.none() | chunk,
    }
)
# Some begin as an RPC message does, of either direction.
payloads = st.binary(max_size=20) | st.builds(words, uint32, st.integers(0, 2))


def built(version, xid, shape, direction, inv_handle):
    if version == 1:
        return header(xid, **shape)
    return header_two(xid, direction=direction, inv_handle=inv_handle, **shape)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from([1, 2]), uint32, shapes, st.integers(0, 2), handles, payloads)
def test_headers_that_are_well_built(version, xid, shape, direction, inv_handle, payload):
    message = built(version, xid, shape, direction, inv_handle) + payload
    check_header(CODECS[version], memoryview(message), MOST)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from([1, 2]), st.binary(max_size=200))
@example(1, bytes(28))
@example(2, bytes(28))
@example(1, words(1, 1, 1, 1, 0, 0, 0))
@example(2, words(1, 2, 1, 1, 0, 0, 0, 0, 0))
@example(1, words(1, 1, 1, 2, 0, 0, 0))
@example(2, words(1, 2, 1, 5, 1, 0, 0xFFFFFFFF))
def test_random_octets(version, octets):
    message = octets[:4] + words(version) + octets[8:]
    check_header(CODECS[version], memoryview(message), MOST)


@pytest.mark.parametrize("version", [1, 2])
def test_mutated_headers(version):
    rng = random.Random(version)
    part = Segment(7, 4096, 1 << 40)
    seeds = [
        built(version, 1, {"procedure": procedure, "reads": reads, "writes": writes, "reply": reply}, CALL, 7) + rest
        for procedure in (MSG, NOMSG)
        for reads in ([], [(100, part)], [(0, part), (0, part), (8, part)])
        for writes in ([], [[part]], [[part, part], [], [part]])
        for reply in (None, [], [part, part])
        for rest in (words(1, 0, 2), words(1, 1, 0), b"")
    ]
    if version == 2:
        seeds += [option(1, 9, bytes(13)), option(1, 9, bytes(13), direction=REPLY)]
    good = {False: 0, True: 0}
    for _ in range(6000):
        message = mutated(rng, rng.choice(seeds), seeds)
        message = message[:4] + words(version) + message[8:]
        good[isinstance(check_header(CODECS[version], memoryview(message), MOST), str)] += 1
    assert min(good.values()) > 1000


def test_more_segments_than_are_taken():
    part = Segment(1, 2, 3)
    for version, codec in CODECS.items():
        for most in (0, 1, 5, 6):
            for shape in ({"reads": [(4, part)] * 6}, {"writes": [[]] * 6}, {"writes": [[part] * 5], "reply": [part]}):
                message = built(version, 1, shape, CALL, 0)
                assert (check_header(codec, memoryview(message), most) == "header") == (most < 6)


def test_versions_that_are_not_known():
    for version in (0, 3, 0xFFFFFFFF):
        message = struct.pack(">7I", 1, version, 1, 0, 0, 0, 0)
        assert decoded(CODECS[1], memoryview(message), MOST) == "version"
        assert decoded(CODECS[1], memoryview(message)[:27], MOST) == "discard"


PART = Segment(1, 2, 3)
LISTS = {"reads": [(4, PART)], "writes": [[PART], []], "reply": [PART]}


@pytest.mark.parametrize(
    ("message", "most", "reason"),
    [
        (header(1, **LISTS)[:30], MOST, "the Read list at octet 16 is malformed or not whole"),
        (header_two(1, **LISTS)[:-28], MOST, "the Write list at octet 52 is malformed or not whole"),
        (header(1, **LISTS)[:-1], MOST, "the Reply chunk at octet 80: 1 segments do not fit the message"),
        (words(1, 1, 1, 0, 0, 1, 9, 0), MOST, "the Write list at octet 20: 9 segments do not fit the message"),
        (words(1, 1, 1, 0, 7, 0, 0), MOST, "the Read list at octet 16 is malformed or not whole"),
        (words(1, 1, 1, 0, 0, 0, 7), MOST, "the Reply chunk at octet 24 is malformed or not whole"),
        (header(1, **LISTS), 0, "the Read list at octet 16 makes more than 0 segments"),
        (header(1, **LISTS), 2, "the Write list at octet 44 makes more than 2 segments"),
        (header(1, **LISTS), 3, "the Reply chunk at octet 80 makes more than 3 segments"),
        (header(1, procedure=NOMSG), MOST, "RDMA_NOMSG without any chunk"),
        (header(1, procedure=2), MOST, "procedure 2"),
        (header_two(1, direction=2), MOST, "direction 2"),
        (option(1, 9, bytes(13))[:-4], MOST, "13 octets of rdma_optinfo do not fit the message"),
    ],
    ids=range(13),
)
def test_a_fault_says_what_is_wrong(message, most, reason):
    with pytest.raises(HeaderFault) as caught:
        CODECS[message[7]].decode(memoryview(message), most)
    assert str(caught.value) == reason


def test_what_a_reply_cannot_say():
    codec = CODECS[1]
    call = codec.decode(memoryview(header(1, writes=[[PART]])), MOST)
    into = memoryview(bytearray(codec.reply_size(call)))
    for writes, reply in (([1, 1], 0), ([1], 1)):
        with pytest.raises(ValueError, match="no such chunk"):
            codec.encode_reply(into, call, 1, MSG, writes, reply)
    with pytest.raises(ValueError, match="octets for a header of"):
        codec.encode_reply(into[:-1], call, 1, MSG, [1], 0)
    asked = CODECS[2].decode(memoryview(option(1, 9)), MOST)
    with pytest.raises(TypeError):
        CODECS[2].reply_size(asked)
