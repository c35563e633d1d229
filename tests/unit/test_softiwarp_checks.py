"""softiwarp's checks on what arrives: each broken rule ends the connection with its Terminate code."""

import asyncio
import random
import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcrdma.verbs.interface import RdmaRead, Send
from rpcrdma.verbs.softiwarp import SoftIwarpOptions
from rpcrdma.verbs.softiwarp.terminate import describe

from .softiwarp_support import (
    CLIENT_REQUEST,
    READ_REQUEST,
    READ_RESPONSE,
    SEND,
    SEND_INVALIDATE,
    TERMINATE,
    WRITE,
    Raw,
    Recorder,
    World,
    control,
    fpdu,
    read_request,
    tagged,
    untagged,
    world,
)

CRC_REQUEST = CLIENT_REQUEST[:16] + b"\x50" + CLIENT_REQUEST[17:]
READER_REQUEST = CLIENT_REQUEST[:22] + b"\x00\x02" + CLIENT_REQUEST[24:]
"""An ORD of 2: the server grants an IRD of 2."""

RDMAP, DDP, LLP = 0, 1, 2
Ulpdus = list[bytes]


async def broken(frames: Callable[[int, int], Ulpdus], request: bytes = READER_REQUEST) -> tuple[bytes, bytes]:
    """Send ``frames(handle, base)`` after one good message. Returns the Terminate and the last ULPDU sent.

    The handle is of 100 octets with both rights, handle + 0 only; the server has 2 Receives of 2048 octets left.
    """
    async with world() as it:
        it.receives, it.receive_size = 3, 2048
        raw = await it.raw(request)
        server = it.servers[0]
        assert server.endpoint is not None
        server.repost = False
        memory = bytearray(100)
        handle, base = server.endpoint.register(memoryview(memory), remote_read=True, remote_write=True)
        await raw.message(b"good")
        ulpdus = frames(handle, base)
        await raw.frame(*ulpdus)
        terminate = await raw.terminate()
        reason = await server.ended()
        assert "the peer broke the protocol" in reason
        assert it.provider.statistics()["connections_ended"] == 1
        assert any(name.startswith("terminates_sent") for name in it.provider.statistics())
        # The good message was delivered, whatever came behind it.
        assert server.messages[:1] == [b"good"]
        return terminate, ulpdus[-1]


def with_version(ulpdu: bytes, ddp: int, rdmap: int) -> bytes:
    return bytes((ulpdu[0] & ~3 | ddp, ulpdu[1] & 0x3F | rdmap << 6)) + ulpdu[2:]


CASES: dict[str, tuple[tuple[int, int, int], Callable[[int, int], Ulpdus]]] = {
    "tagged DDP version": ((DDP, 1, 0x04), lambda h, b: [with_version(tagged(WRITE, h, b), 2, 1)]),
    "untagged DDP version": ((DDP, 2, 0x06), lambda h, b: [with_version(untagged(SEND, 0, 2, 0), 0, 1)]),
    "RDMAP version": ((RDMAP, 2, 0x05), lambda h, b: [with_version(untagged(SEND, 0, 2, 0), 1, 0)]),
    "opcode 8": ((RDMAP, 2, 0x06), lambda h, b: [untagged(8, 0, 2, 0)]),
    "opcode 15 tagged": ((RDMAP, 2, 0x06), lambda h, b: [control(15, tagged=True) + bytes(12)]),
    "tagged Send": ((RDMAP, 2, 0x06), lambda h, b: [control(SEND, tagged=True) + bytes(16)]),
    "untagged Write": ((RDMAP, 2, 0x06), lambda h, b: [control(WRITE, tagged=False) + bytes(16)]),
    "Send to queue 1": ((DDP, 2, 0x01), lambda h, b: [untagged(SEND, 1, 2, 0, b"x")]),
    "Send to queue 7": ((DDP, 2, 0x01), lambda h, b: [untagged(SEND, 7, 2, 0, b"x")]),
    "Send MSN repeated": ((DDP, 2, 0x03), lambda h, b: [untagged(SEND, 0, 1, 0, b"x")]),
    "Send MSN skipped": ((DDP, 2, 0x03), lambda h, b: [untagged(SEND, 0, 3, 0, b"x")]),
    "Send MSN changes within the message": (
        (DDP, 2, 0x03),
        lambda h, b: [untagged(SEND, 0, 2, 0, b"x", last=False), untagged(SEND, 0, 3, 1, b"y")],
    ),
    "Send MO not 0": ((DDP, 2, 0x04), lambda h, b: [untagged(SEND, 0, 2, 1, b"x")]),
    "Send MO with a gap": (
        (DDP, 2, 0x04),
        lambda h, b: [untagged(SEND, 0, 2, 0, b"xy", last=False), untagged(SEND, 0, 2, 3, b"z")],
    ),
    "Send MO going back": (
        (DDP, 2, 0x04),
        lambda h, b: [untagged(SEND, 0, 2, 0, b"xy", last=False), untagged(SEND, 0, 2, 1, b"z")],
    ),
    "Send longer than the Receive": ((DDP, 2, 0x05), lambda h, b: [untagged(SEND, 0, 2, 0, bytes(2049))]),
    "Send longer than the Receive in its second segment": (
        (DDP, 2, 0x05),
        lambda h, b: [untagged(SEND, 0, 2, 0, bytes(2000), last=False), untagged(SEND, 0, 2, 2000, bytes(49))],
    ),
    "no Receive posted": (
        (DDP, 2, 0x02),
        lambda h, b: [untagged(SEND, 0, 2, 0), untagged(SEND, 0, 3, 0), untagged(SEND, 0, 4, 0, b"x")],
    ),
    "Write to an unknown STag": ((DDP, 1, 0x00), lambda h, b: [tagged(WRITE, h ^ 0x100, b, b"x")]),
    "Write to an STag with another key": ((DDP, 1, 0x00), lambda h, b: [tagged(WRITE, h ^ 1, b, b"x")]),
    "Write below the base": ((DDP, 1, 0x01), lambda h, b: [tagged(WRITE, h, b - 1, b"x")]),
    "Write across the end": ((DDP, 1, 0x01), lambda h, b: [tagged(WRITE, h, b + 99, b"xy")]),
    "Write behind the end": ((DDP, 1, 0x01), lambda h, b: [tagged(WRITE, h, b + 100, b"x")]),
    "Write whose TO wraps": ((DDP, 1, 0x03), lambda h, b: [tagged(WRITE, h, 2**64 - 1, b"xy")]),
    "Write with a gap": (
        (DDP, 1, 0x01),
        lambda h, b: [tagged(WRITE, h, b, b"x", last=False), tagged(WRITE, h, b + 2, b"y")],
    ),
    "Write changing its STag": (
        (DDP, 1, 0x00),
        lambda h, b: [tagged(WRITE, h, b, b"x", last=False), tagged(WRITE, h ^ 1, b + 1, b"y")],
    ),
    "Read Request to queue 0": (
        (DDP, 2, 0x01),
        lambda h, b: [read_request(1, (1, 0), 8, (h, b), queue=0)],
    ),
    "Read Request MSN": ((DDP, 2, 0x03), lambda h, b: [read_request(2, (1, 0), 8, (h, b))]),
    "Read Request MO": ((DDP, 2, 0x04), lambda h, b: [read_request(1, (1, 0), 8, (h, b), mo=4)]),
    "Read Request too long": ((DDP, 2, 0x05), lambda h, b: [read_request(1, (1, 0), 8, (h, b)) + b"x"]),
    "Read Request in two segments": (
        (DDP, 2, 0x05),
        lambda h, b: [control(READ_REQUEST, last=False) + read_request(1, (1, 0), 8, (h, b))[2:]],
    ),
    "Read Request too short": ((RDMAP, 2, 0xFF), lambda h, b: [read_request(1, (1, 0), 8, (h, b))[:-1]]),
    "Read of an unknown STag": ((RDMAP, 1, 0x00), lambda h, b: [read_request(1, (1, 0), 8, (h ^ 1, b))]),
    "Read across the end": ((RDMAP, 1, 0x01), lambda h, b: [read_request(1, (1, 0), 8, (h, b + 93))]),
    "Read below the base": ((RDMAP, 1, 0x01), lambda h, b: [read_request(1, (1, 0), 8, (h, b - 1))]),
    "Read whose TO wraps": ((RDMAP, 1, 0x04), lambda h, b: [read_request(1, (1, 0), 8, (h, 2**64 - 7))]),
    "more Reads than granted": (
        (DDP, 2, 0x02),
        lambda h, b: [read_request(number, (1, 0), 100, (h, b)) for number in (1, 2, 3)],
    ),
    "Read Response to nothing": ((DDP, 1, 0x00), lambda h, b: [tagged(READ_RESPONSE, 1, 0, b"x")]),
    "empty Read Response to nothing": ((RDMAP, 2, 0x06), lambda h, b: [tagged(READ_RESPONSE, 1, 0)]),
    "invalidation of an unknown STag": (
        (RDMAP, 2, 0x09),
        lambda h, b: [untagged(SEND_INVALIDATE, 0, 2, 0, b"x", stag=h ^ 1)],
    ),
    "invalidation twice": (
        (RDMAP, 2, 0x09),
        lambda h, b: [untagged(SEND_INVALIDATE, 0, number, 0, b"x", stag=h) for number in (2, 3)],
    ),
    "Write after invalidation": (
        (DDP, 1, 0x00),
        lambda h, b: [untagged(SEND_INVALIDATE, 0, 2, 0, b"x", stag=h), tagged(WRITE, h, b, b"x")],
    ),
    "Read after invalidation": (
        (RDMAP, 1, 0x00),
        lambda h, b: [untagged(SEND_INVALIDATE, 0, 2, 0, b"x", stag=h), read_request(1, (1, 0), 8, (h, b))],
    ),
    "shorter than a tagged header": ((RDMAP, 2, 0xFF), lambda h, b: [tagged(WRITE, h, b)[:13]]),
    "shorter than an untagged header": ((RDMAP, 2, 0xFF), lambda h, b: [untagged(SEND, 0, 2, 0)[:17]]),
    "two octets": ((RDMAP, 2, 0xFF), lambda h, b: [control(SEND)]),
}


@pytest.mark.parametrize("request_frame", [READER_REQUEST, READER_REQUEST[:16] + b"\x50" + READER_REQUEST[17:]])
@pytest.mark.parametrize("name", CASES)
def test_a_broken_rule_is_answered_with_its_terminate(name: str, request_frame: bytes) -> None:
    (layer, etype, code), frames = CASES[name]
    terminate, culprit = asyncio.run(broken(frames, request_frame))
    assert terminate[:2] == bytes((layer << 4 | etype, code)), describe(
        terminate[0] >> 4, terminate[0] & 15, terminate[1]
    )
    if len(culprit) < 14 or "shorter" in name:
        assert terminate[2:] == b"\x00\x00"
        return
    # RFC 5040 Figure 10: the segment's length and DDP header, for a protection error of a Read also its header.
    header = 14 if culprit[0] & 0x80 else 18
    attached = struct.pack(">H", len(culprit)) + culprit[:header]
    is_read = culprit[1] & 15 == READ_REQUEST
    if (layer, etype) == (RDMAP, 1) and is_read:
        assert terminate[2:] == b"\xe0\x00" + attached + culprit[18:46]
    else:
        assert terminate[2:] == b"\xc0\x00" + attached


def test_a_bad_crc_is_answered_with_its_terminate_and_nothing_is_delivered() -> None:
    async def run() -> None:
        async with world() as it:
            raw = await it.raw(CRC_REQUEST)
            await raw.message(b"good")
            bad = bytearray(fpdu(untagged(SEND, 0, 2, 0, b"spoilt")))
            bad[23] ^= 1
            await raw.send(bytes(bad) + fpdu(untagged(SEND, 0, 2, 0, b"behind it")))
            assert await raw.terminate() == b"\x20\x02\x00\x00"
            server = it.servers[0]
            assert "CRC mismatch" in await server.ended()
            assert server.messages == [b"good"]

    asyncio.run(run())


def test_nothing_is_sent_before_a_valid_fpdu_not_even_a_terminate() -> None:
    async def run() -> None:
        async with world() as it:
            raw = await it.raw(CRC_REQUEST)
            server = it.servers[0]
            assert server.endpoint is not None
            server.endpoint.post([], Send([b"too early"]), 1)
            await asyncio.sleep(0)
            bad = bytearray(fpdu(untagged(SEND, 0, 1, 0, b"spoilt")))
            bad[-1] ^= 1
            await raw.send(bytes(bad))
            await raw.end()
            await server.ended()
            assert server.completions == [(1, False)]

    asyncio.run(run())


def test_work_posted_before_the_first_fpdu_follows_it() -> None:
    async def run() -> None:
        async with world() as it:
            raw = await it.raw()
            server = it.servers[0]
            assert server.endpoint is not None
            server.endpoint.post([], Send([b"early"]), 1)
            await asyncio.sleep(0)
            with pytest.raises(BlockingIOError):
                raw.socket.recv(1)
            await raw.message(b"first")
            assert await raw.next_ulpdu() == untagged(SEND, 0, 1, 0, b"early")
            await server.until(lambda me: me.completions == [(1, True)])
            raw.close()

    asyncio.run(run())


def test_no_access_without_the_right() -> None:
    async def run() -> None:
        for rights, ulpdu, expected in (
            ({"remote_read": True}, lambda h, b: tagged(WRITE, h, b, b"x"), b"\x11\x00"),
            ({"remote_write": True}, lambda h, b: read_request(1, (1, 0), 1, (h, b)), b"\x01\x02"),
            ({}, lambda h, b: read_request(1, (1, 0), 1, (h, b)), b"\x01\x02"),
        ):
            async with world() as it:
                raw = await it.raw(READER_REQUEST)
                endpoint = it.servers[0].endpoint
                assert endpoint is not None
                memory = bytearray(b"keep")
                handle, base = endpoint.register(memoryview(memory), **rights)
                await raw.frame(ulpdu(handle, base))
                assert (await raw.terminate())[:2] == expected
                assert memory == b"keep"

    asyncio.run(run())


def test_a_server_without_registrations_refuses_access_in_the_rfcs_words() -> None:
    async def run() -> None:
        for ulpdu, expected in (
            (tagged(WRITE, 1, 0, b"x"), b"\x11\x00"),
            (read_request(1, (1, 0), 1, (1, 0)), b"\x01\x00"),
        ):
            async with world() as it:
                raw = await it.raw()
                await raw.frame(ulpdu)
                assert (await raw.terminate())[:2] == expected

    asyncio.run(run())


def test_zero_length_writes_and_reads_are_taken_without_a_look_at_their_stag() -> None:
    async def run() -> None:
        async with world() as it:
            raw = await it.raw()
            await raw.frame(tagged(WRITE, 0xDEAD, 2**64 - 1), read_request(1, (7, 9), 0, (0xDEAD, 2**64 - 1)))
            assert await raw.next_ulpdu() == tagged(READ_RESPONSE, 7, 9)
            await raw.message(b"fine")
            await it.servers[0].until(lambda me: me.messages == [b"fine"])
            raw.close()

    asyncio.run(run())


def test_reserved_bits_are_not_looked_at() -> None:
    async def run() -> None:
        async with world() as it:
            raw = await it.raw()
            ulpdu = untagged(SEND, 0, 1, 0, b"fine", stag=99)
            await raw.frame(bytes((ulpdu[0] | 0x3C, ulpdu[1] | 0x30)) + ulpdu[2:])
            await it.servers[0].until(lambda me: me.messages == [b"fine"])
            raw.close()

    asyncio.run(run())


ReadAnswer = Callable[[int], Ulpdus]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda sink: [tagged(READ_RESPONSE, sink + 1, 0, bytes(10))], b"\x11\x00"),
        (lambda sink: [tagged(READ_RESPONSE, sink, 1, bytes(10))], b"\x11\x01"),
        (lambda sink: [tagged(READ_RESPONSE, sink, 0, bytes(11))], b"\x11\x01"),
        (lambda sink: [tagged(READ_RESPONSE, sink, 0, bytes(9))], b"\x11\x01"),
        (lambda sink: [tagged(READ_RESPONSE, sink, 0)], b"\x11\x01"),
        (
            lambda sink: [
                tagged(READ_RESPONSE, sink, 0, bytes(6), last=False),
                tagged(READ_RESPONSE, sink, 5, bytes(4)),
            ],
            b"\x11\x01",
        ),
        (
            lambda sink: [
                tagged(READ_RESPONSE, sink, 0, bytes(6), last=False),
                tagged(READ_RESPONSE, sink, 6, bytes(5)),
            ],
            b"\x11\x01",
        ),
        (lambda sink: [tagged(READ_RESPONSE, sink, 0, bytes(10)) for _ in range(2)], b"\x11\x00"),
    ],
)
def test_a_read_response_must_match_its_request(answer: ReadAnswer, expected: bytes) -> None:
    async def run() -> None:
        async with world() as it:
            raw = await it.raw()
            await raw.message()
            server = it.servers[0]
            assert server.endpoint is not None
            around = bytearray(b"<" * 30)
            server.endpoint.post_reads([RdmaRead(1, 2, memoryview(around)[10:20])], "read")
            request = await raw.next_ulpdu()
            await raw.frame(*answer(int.from_bytes(request[18:22], "big")))
            assert (await raw.terminate())[:2] == expected
            await server.ended()
            assert around[:10] == around[20:] == b"<" * 10, "octets were placed outside the sink"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"\x12\x02", "DDP: no buffer available for the message"),
        (b"\x21\x02", "DDP: no buffer available for the message"),  # siw's nibble order
        (b"\x02\x09", "RDMAP: STag cannot be invalidated"),
        (b"\x02\x06", "RDMAP: unexpected opcode"),
        (b"\x20\x06", "LLP: insufficient IRD resources"),
        (b"\xff\x77", "layer 15: error type 15, code 0x77"),
    ],
)
def test_a_received_terminate_is_put_in_words_and_ends_the_connection(
    head: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with world() as it:
            raw = await it.raw()
            await raw.message()
            await raw.frame(untagged(TERMINATE, 2, 1, 0, head + b"\x00\x00" + bytes(100)))
            reason = await it.servers[0].ended()
            assert reason.endswith(words)
            assert it.servers[0].endpoint is not None
            assert it.servers[0].endpoint.terminate_received == tuple(head)
            await raw.end()

    asyncio.run(run())
    assert words in caplog.text


def test_a_terminate_is_sent_between_fpdus_and_nothing_follows_it() -> None:
    """Even with a megabyte half sent, the stream stays well framed up to the Terminate and the FIN."""

    async def run() -> None:
        async with world() as it:
            raw = await it.raw()
            await raw.message()
            server = it.servers[0]
            await server.until(lambda me: len(me.messages) == 1)
            assert server.endpoint is not None
            server.endpoint.post([], Send([bytes(8 << 20)]), "large")
            await asyncio.sleep(0)
            await raw.frame(untagged(SEND, 9, 2, 0))
            seen = []
            while not seen or seen[-1][1] & 15 != TERMINATE:
                seen.append(await raw.next_ulpdu())
            assert seen[-1][18:20] == b"\x12\x01"
            assert all(ulpdu[1] & 15 == SEND for ulpdu in seen[:-1])
            await raw.end()
            await server.ended()
            assert server.completions == [("large", False)]

    asyncio.run(run())


async def ready(it: World, request: bytes = CLIENT_REQUEST) -> tuple[Raw, Recorder]:
    raw = await it.raw(request)
    await raw.message()
    server = it.servers[-1]
    await server.until(lambda me: len(me.messages) == 1)
    return raw, server


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mutated_streams_never_hurt_the_provider(data: st.DataObject) -> None:
    """Well-formed traffic with a few octets changed: the connection may end, the provider and its memory may not."""
    crc = data.draw(st.booleans())
    seed = data.draw(st.integers(0, 2**32))

    async def run() -> None:
        rng = random.Random(seed)
        it = World(SoftIwarpOptions(close_timeout=1))
        await it.listen()
        raw, server = await ready(it, CRC_REQUEST if crc else READER_REQUEST)
        assert server.endpoint is not None
        memory = bytearray(4096)
        handle, base = server.endpoint.register(memoryview(memory), remote_read=True, remote_write=True)
        sink = bytearray(300)
        server.endpoint.post_reads([RdmaRead(3, 4, memoryview(sink))], "read")
        ulpdus = [
            untagged(SEND, 0, 2, 0, rng.randbytes(100)),
            tagged(WRITE, handle, base, rng.randbytes(1000)),
            read_request(1, (5, 6), 2000, (handle, base)),
            tagged(READ_RESPONSE, 1, 0, rng.randbytes(300)),
            untagged(SEND, 0, 3, 0, rng.randbytes(50), last=False),
            untagged(SEND, 0, 3, 50, rng.randbytes(50)),
        ]
        stream = bytearray(b"".join(fpdu(ulpdu, raw.crc) for ulpdu in ulpdus))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(stream))
            if rng.random() < 0.8:
                stream[at] = rng.randrange(256)
            else:
                del stream[at : at + rng.randrange(1, 9)]
        await raw.send(bytes(stream))
        raw.socket.shutdown(1)
        await server.ended()
        raw.close()
        assert [token for token, _ in server.completions] == ["read"]
        await it.close()

    asyncio.run(run())


def test_memory_withdrawn_while_it_is_read_ends_with_an_invalid_stag() -> None:
    async def run() -> None:
        async with world() as it:
            raw, server = await ready(it, READER_REQUEST)
            assert server.endpoint is not None
            handle, base = server.endpoint.register(memoryview(bytearray(16 << 20)), remote_read=True)
            await raw.frame(read_request(1, (5, 0), 16 << 20, (handle, base)))
            await raw.exactly(1000)
            server.endpoint.invalidate(handle)
            with pytest.raises(KeyError):
                server.endpoint.invalidate(handle)
            loop = asyncio.get_running_loop()
            stream = b""
            while True:
                more = await asyncio.wait_for(loop.sock_recv(raw.socket, 1 << 20), 10)
                if not more:
                    break
                stream = (stream + more)[-100:]
            assert fpdu(untagged(TERMINATE, 2, 1, 0, b"\x01\x00\x00\x00"), False) == stream[-28:]
            raw.close()
            assert "withdrawn" in await server.ended()

    asyncio.run(run())


def test_memory_withdrawn_under_an_inbound_write_takes_no_more_of_it() -> None:
    async def run() -> None:
        async with world() as it:
            raw, server = await ready(it)
            assert server.endpoint is not None
            memory = bytearray(60000)
            handle, base = server.endpoint.register(memoryview(memory), remote_write=True)
            frame = fpdu(tagged(WRITE, handle, base, b"\xff" * 60000), False)
            await raw.send(frame[:30000])
            while not memory[20000]:  # noqa: ASYNC110  (placement has no event: RFC 5040 forbids peeking)
                await asyncio.sleep(0)
            server.endpoint.invalidate(handle)
            placed = memory.count(b"\xff")
            await raw.send(frame[30000:])
            assert (await raw.terminate())[:2] == b"\x11\x00"
            assert memory.count(b"\xff") == placed

    asyncio.run(run())
