"""What holds for every message and every layout of chunks, found by random search."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rpcrdma.engine.reduce import fill
from rpcrdma.peer.wire import Malformed, ReplyHeader, words
from rpcrdma.server.rdma import RdmaConnection
from rpcrdma.wire.header import Discard, HeaderFault
from rpcrdma.wire.version_one import VersionOne
from tests.peer import (
    CALL_HEADER,
    ERR_CHUNK,
    ERR_VERS,
    ERROR,
    MSG,
    NOMSG,
    NULL,
    REPLY,
    Rig,
    Segment,
    accept_status,
    echo_arguments,
    header,
    header_two,
    rpc_call,
)
from tests.rfc.plugin import covers

segments = st.builds(Segment, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
positions = st.one_of(st.just(0), st.integers(0, 40).map(lambda n: n * 4), st.integers(0, 2**32 - 1))
version_two_messages = st.builds(
    lambda procedure, direction, inv_handle, reads, writes, reply, tail, cut: (
        header_two(
            7,
            procedure=procedure,
            direction=direction,
            inv_handle=inv_handle,
            reads=reads,
            writes=writes,
            reply=reply,
        )
        + tail
    )[:cut],
    st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 5]),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(positions, segments), max_size=4),
    st.lists(st.lists(segments, max_size=3), max_size=3),
    st.none() | st.lists(segments, max_size=3),
    st.binary(max_size=100) | st.just(rpc_call(7, procedure=NULL)),
    st.none() | st.integers(0, 300),
)
messages = version_two_messages | st.builds(
    lambda fixed, reads, writes, reply, tail, cut: (
        header(7, version=fixed[0], procedure=fixed[1], reads=reads, writes=writes, reply=reply) + tail
    )[:cut],
    st.tuples(st.sampled_from([1, 1, 1, 1, 3]), st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 5])),
    st.lists(st.tuples(positions, segments), max_size=4),
    st.lists(st.lists(segments, max_size=3), max_size=3),
    st.none() | st.lists(segments, max_size=3),
    st.binary(max_size=100) | st.just(rpc_call(7, procedure=NULL)),
    st.none() | st.integers(0, 300),
)


def mutated(message: bytes, seed: int) -> bytes:
    chance = random.Random(seed)
    octets = bytearray(message)
    for _ in range(chance.randrange(4)):
        if octets:
            octets[chance.randrange(len(octets))] = chance.choice([0, 1, 2, 4, 255, chance.randrange(256)])
    return bytes(octets)


@covers("RFC 8166 8.1.4 bounds")
@settings(max_examples=300, deadline=None)
@given(
    st.binary(min_size=28, max_size=400).map(lambda octets: octets[:4] + words(1) + octets[8:])
    | st.builds(mutated, messages, st.integers(0, 10**6))
)
@example(words(1, 1, 1, 0, 0, 1, 0xFFFFFFFF))
def test_no_octets_make_the_decoder_raise_anything_else(octets):
    try:
        decoded = VersionOne().decode(memoryview(octets), 64)
    except (Discard, HeaderFault):
        return
    assert 28 <= decoded.payload <= len(octets)
    count = len(decoded.reads) + sum(map(len, decoded.writes)) + len(decoded.reply or ())
    assert count <= 64
    assert len(decoded.writes) <= 64
    assert count * 16 <= len(octets)


@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 1), segments), max_size=5),
    st.lists(st.lists(segments, max_size=4), max_size=4),
    st.none() | st.lists(segments, max_size=4),
)
def test_lists_survive_decoding_and_encoding(reads, writes, reply):
    message = header(1, reads=reads, writes=writes, reply=reply)
    codec = VersionOne()
    call = codec.decode(memoryview(message), 100)
    assert call.reads == [(position, *part) for position, part in reads]
    assert (call.writes, call.reply, call.payload) == (writes, reply, len(message))
    # A reply echoes the Write list and the Reply chunk, and has an empty Read list.
    buffer = memoryview(bytearray(len(message)))
    sizes = [sum(part.length for part in chunk) for chunk in [*writes, reply or []]]
    end = codec.encode_reply(buffer, call, 32, MSG, sizes[:-1], sizes[-1])
    assert end == codec.reply_size(call)
    assert bytes(buffer[:end]) == header(1, writes=writes, reply=reply)


@given(st.lists(st.integers(0, 40), max_size=12), st.lists(st.binary(max_size=30), max_size=6))
def test_fill_places_every_octet_in_order(cut, sources):
    total = sum(map(len, sources))
    if total > sum(cut):
        return
    chunk = [(index, length, 1000 * index) for index, length in enumerate(cut)]
    memory = {index: bytearray(length) for index, length in enumerate(cut)}
    for handle, offset, source in fill(chunk, [memoryview(source) for source in sources]):
        assert len(source) > 0
        start = offset - 1000 * handle
        memory[handle][start : start + len(source)] = source
    assert b"".join(bytes(memory[index]) for index in range(len(cut)))[:total] == b"".join(sources)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.builds(mutated, messages, st.integers(0, 10**6)), min_size=1, max_size=12))
def test_no_message_harms_the_server(octets):
    """Each gets at most one answer, of the kinds there are; memory is bounded; another connection never notices."""

    async def main() -> None:
        crashes = []

        def crashed(connection: RdmaConnection) -> None:
            crashes.append(connection)
            connection.abort()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RdmaConnection, "crashed", crashed)
            async with Rig() as rig:
                witness = await rig.peer()
                peer = await rig.peer()
                for message in octets:
                    if peer.reason is not None:
                        peer = await rig.peer()
                    peer.send(message)
                    await rig.settle()
                    assert rig.pool.in_use < 8 << 20
                    assert peer.waiting <= 1
                    if peer.waiting:
                        reply = await peer.reply()
                        assert reply.xid == int.from_bytes(message[:4], "big")
                        assert reply.credit == 128
                        assert reply.error in ((0, ERR_CHUNK, ERR_VERS) if reply.version == 1 else range(6))
                        assert reply.procedure in (MSG, NOMSG, ERROR)
                    elif peer.reason is None and len(message) >= 28:
                        # Only RDMA_DONE, RDMA_ERROR and replies to calls we never made go without an answer.
                        two = message[4:8] == words(2)
                        assert (
                            message[12:16] == words(4)
                            or (message[12:16] == words(3) and not two)
                            or (message[16:20] == words(REPLY) if two else is_reply(message))
                        )
                assert accept_status((await witness.call(header(9), rpc_call(9, procedure=NULL))).payload) == 0
        assert not crashes

    asyncio.run(main())


def is_reply(message: bytes) -> bool:
    try:
        return ReplyHeader.parse(message).payload[4:8] == words(1)
    except Malformed:
        # The count of read segments is all that parse() needs to skip them.
        return False


def test_the_echo_of_the_test_suite_knows_its_offsets():
    """What the tests above rest upon."""
    arguments = echo_arguments([b"abcde", b"", b"xyz"], filler=2)
    call = rpc_call(1, arguments.octets)
    for position, item in zip(arguments.positions, arguments.items, strict=True):
        assert call[position : position + len(item)] == item
        assert call[position - 4 : position] == words(len(item))
    assert len(rpc_call(1)) == CALL_HEADER
    assert len(arguments.without(0, 1, 2)) == 8 + 3 * 8
