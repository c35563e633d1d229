"""softiwarp on the wire: byte-exact frames, split and coalesced FPDUs, Markers, and FPDUs that keep to segments."""

import asyncio
import random
import socket
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcrdma.verbs.interface import RdmaRead, RdmaWrite, Send
from rpcrdma.verbs.softiwarp import SoftIwarpOptions
from rpcrdma.verbs.softiwarp.crc import crc32c

from .softiwarp_support import (
    CLIENT_REQUEST,
    READ_RESPONSE,
    SEND,
    SEND_INVALIDATE,
    WRITE,
    Raw,
    World,
    control,
    fpdu,
    read_request,
    tagged,
    untagged,
    world,
)

CRC_REQUEST = CLIENT_REQUEST[:16] + b"\x50" + CLIENT_REQUEST[17:]
MARKER_REQUEST = CLIENT_REQUEST[:16] + b"\x90" + CLIENT_REQUEST[17:]
MARKER_CRC_REQUEST = CLIENT_REQUEST[:16] + b"\xd0" + CLIENT_REQUEST[17:]


def test_crc32c_of_the_iscsi_example() -> None:
    assert struct.pack("<I", crc32c(bytes(32))) == bytes.fromhex("aa36918a")
    assert crc32c(b"") == 0


def test_crc32c_is_of_octets_that_lie_one_behind_the_other() -> None:
    octets = bytes(range(64))
    assert crc32c(memoryview(octets)[8:40]) == crc32c(octets[8:40])
    with pytest.raises(BufferError):  # those between them would be counted
        crc32c(memoryview(octets)[::2])


def test_mpa_reply_and_every_operation_are_byte_exact_with_crc() -> None:
    async def run() -> None:
        async with world() as it:
            it.initiator_depth = 16
            raw = await it.raw(CRC_REQUEST)
            assert raw.reply == bytes.fromhex("4d504120494420526570204672616d655002000b00000010") + b"welcome"
            server = it.servers[0]
            assert server.endpoint is not None
            # What arrives first, from the published vectors.
            await raw.send(
                bytes.fromhex(
                    "0017414300000000000000000000000100000000616263646566".replace("66", "") + "00000089f65870"
                )
            )
            await server.until(lambda me: me.messages == [b"abcde"])
            await raw.send(bytes.fromhex("000ec140000000010000000000000000ebd34c5f"))
            server.endpoint.post([], Send([b"ab", b"", memoryview(b"cde")]), "send")
            assert await raw.exactly(32) == bytes.fromhex(
                "0017414300000000000000000000000100000000616263646500000089f65870"
            )
            server.endpoint.post([RdmaWrite(0x123456, 0x7F0000001000, memoryview(b"12345678"))], None, "write")
            assert await raw.exactly(28) == bytes.fromhex("0016c1400012345600007f00000010003132333435363738796cd586")
            sink = bytearray(2)
            server.endpoint.post_reads([RdmaRead(0x123456, 0x7F0000001000, memoryview(sink))], "read")
            # The same as the published vector but for our sink STag and the size, so with a CRC of its own.
            assert await raw.next_ulpdu() == read_request(1, (1, 0), 2, (0x123456, 0x7F0000001000))
            await raw.frame(tagged(READ_RESPONSE, 1, 0, b"zz"))
            await server.until(lambda me: len(me.completions) == 3)
            assert server.completions == [("send", True), ("write", True), ("read", True)]
            assert sink == b"zz"
            raw.close()

    asyncio.run(run())


def test_the_support_code_frames_the_published_vectors() -> None:
    vectors = {
        "00124146001234560000000000000002000000004dddf40c": untagged(6, 0, 2, 0, stag=0x123456),
        "000ec140000000010000000000000000ebd34c5f": tagged(WRITE, 1, 0),
        "002e41410000000000000001000000010000000000dead010000000000000000000100000012345600007f0000001000cadf9fe0": (
            read_request(1, (0xDEAD01, 0), 65536, (0x123456, 0x7F0000001000))
        ),
        "0010c14200dead0100000000000000007a7a0000d2d7099f": tagged(READ_RESPONSE, 0xDEAD01, 0, b"zz"),
    }
    for wire, ulpdu in vectors.items():
        assert fpdu(ulpdu).hex() == wire


def test_send_with_invalidate_and_write_headers() -> None:
    async def run() -> None:
        async with world() as it:
            raw = await it.raw()
            await raw.message()
            server = it.servers[0]
            await server.until(lambda me: len(me.messages) == 1)
            assert server.endpoint is not None
            data = bytes(range(256)) * 5
            server.endpoint.post(
                [RdmaWrite(7, 1 << 63, memoryview(data)), RdmaWrite(8, 0, memoryview(b""))],
                Send([data[:100], data[100:400]], invalidate=0xFFFFFFFF),
                None,
            )
            assert await raw.next_ulpdu() == tagged(WRITE, 7, 1 << 63, data)
            assert await raw.next_ulpdu() == tagged(WRITE, 8, 0)
            assert await raw.next_ulpdu() == untagged(SEND_INVALIDATE, 0, 1, 0, data[:400], stag=0xFFFFFFFF)
            server.endpoint.post([], Send([]), None)
            assert await raw.next_ulpdu() == untagged(SEND, 0, 2, 0)
            raw.close()

    asyncio.run(run())


@pytest.mark.parametrize("request_frame", [CLIENT_REQUEST, CRC_REQUEST])
def test_fpdus_may_arrive_split_anywhere_and_joined(request_frame: bytes) -> None:
    async def run() -> None:
        rng = random.Random(11)
        async with world() as it:
            it.receives = 64
            raw = await it.raw(request_frame)
            server = it.servers[0]
            assert server.endpoint is not None
            memory = bytearray(20000)
            handle, base = server.endpoint.register(memoryview(memory), remote_write=True, remote_read=True)
            expected, written = [], bytes(rng.randbytes(20000))
            stream = b""
            for number in range(1, 60):
                text = rng.randbytes(rng.choice((0, 1, 2, 3, 4, 100, 1500, 9000)))
                at = 0
                while len(text) - at > 1400:
                    stream += fpdu(untagged(SEND, 0, number, at, text[at : at + 1400], last=False), raw.crc)
                    at += 1400
                stream += fpdu(untagged(SEND, 0, number, at, text[at:]), raw.crc)
                expected.append(text)
                place = rng.randrange(0, 15000)
                chunk = written[place : place + rng.randrange(0, 5000)]
                stream += fpdu(tagged(WRITE, handle, base + place, chunk), raw.crc)
            stream += fpdu(tagged(WRITE, handle, base, written), raw.crc)
            at = 0
            while at < len(stream):
                step = rng.choice((1, 2, 3, 5, 17, 19, 21, 100, 3000, 30000))
                await raw.send(stream[at : at + step])
                at += step
                if rng.random() < 0.7:
                    await asyncio.sleep(0)
            await raw.frame(untagged(SEND, 0, 60, 0, b"done"))
            await server.until(lambda me: me.messages[-1:] == [b"done"])
            assert server.messages[:-1] == expected
            assert memory == written
            raw.close()

    asyncio.run(run())


def test_one_wake_up_delivers_all_its_messages_as_one_batch() -> None:
    async def run() -> None:
        async with world() as it:
            raw = await it.raw()
            await raw.frame(*(untagged(SEND, 0, number, 0, b"x" * number) for number in range(1, 8)))
            server = it.servers[0]
            await server.until(lambda me: len(me.messages) == 7)
            assert server.batches == [7]
            raw.close()

    asyncio.run(run())


def test_replies_to_a_batch_leave_in_one_call() -> None:
    async def run() -> None:
        async with world(SoftIwarpOptions(send_buffer=1 << 20)) as it:
            raw = await it.raw()
            server = it.servers[0]
            endpoint = server.endpoint
            assert endpoint is not None
            page = memoryview(bytes(range(256)) * 16)
            server.on_received = lambda messages: [
                endpoint.post([RdmaWrite(1, 0, page)], Send([b"reply"]), number) for number in range(len(messages))
            ]
            await raw.frame(*(untagged(SEND, 0, number, 0) for number in range(1, 5)))
            await server.until(lambda me: len(me.completions) == 4)
            statistics = endpoint.statistics()
            assert statistics["sends_out"] == statistics["writes_out"] == 4
            assert statistics["send_calls"] == 1
            raw.close()

    asyncio.run(run())


def take_markers_out(stream: bytes) -> list[bytes]:
    """Split a marked stream into ULPDUs, checking every Marker's position and pointer (RFC 5044 section 4.3)."""
    ulpdus, at = [], 0

    def take(count: int, start: int | None) -> bytes:
        nonlocal at
        taken = b""
        while len(taken) < count:
            if at % 512 == 0:
                reserved, pointer = struct.unpack_from(">HH", stream, at)
                assert reserved == 0
                assert pointer == (0 if start is None else at - start)
                at += 4
                if start is None:
                    start = at
            step = min(count - len(taken), 512 - at % 512)
            taken += stream[at : at + step]
            at += step
            if start is None:
                start = at - step
        return taken

    while at < len(stream):
        begin = at
        start = at + 4 if at % 512 == 0 else at
        head = take(2, None if at % 512 == 0 else at)
        length = int.from_bytes(head, "big")
        ulpdu = take(length, start)
        assert not any(take(-(length + 2) % 4, start))
        if at % 512 == 0:
            # The Marker between pad and CRC is this FPDU's.
            assert struct.unpack_from(">HH", stream, at) == (0, at - start)
            at += 4
        digest = stream[at : at + 4]
        assert digest in (bytes(4), struct.pack("<I", crc32c(stream[begin:at])))
        at += 4
        ulpdus.append(ulpdu)
    return ulpdus


@pytest.mark.parametrize("request_frame", [MARKER_REQUEST, MARKER_CRC_REQUEST])
def test_markers_are_generated_when_the_request_demands_them(request_frame: bytes) -> None:
    async def run() -> None:
        rng = random.Random(3)
        async with world() as it:
            raw = await it.raw(request_frame)
            assert not raw.reply[16] & 0x80, "we never ask for Markers"
            await raw.message()
            server = it.servers[0]
            await server.until(lambda me: len(me.messages) == 1)
            assert server.endpoint is not None
            texts = [rng.randbytes(rng.choice((0, 1, 480, 484, 485, 488, 500, 508, 2000, 70000))) for _ in range(120)]
            for text in texts:
                server.endpoint.post([RdmaWrite(5, 9, memoryview(text))], Send([text[:5000]]), None)
            stream = b""
            total = sum(len(text) + len(text[:5000]) for text in texts)
            loop = asyncio.get_running_loop()
            while server.endpoint.statistics()["sends_out"] < len(texts) or len(stream) < total:
                stream += await asyncio.wait_for(loop.sock_recv(raw.socket, 1 << 20), 10)
            await server.until(lambda me: len(me.completions) == len(texts))
            while len(stream) < server.endpoint.statistics()["octets_out"]:
                stream += await asyncio.wait_for(loop.sock_recv(raw.socket, 1 << 20), 10)
            ulpdus = take_markers_out(stream)
            writes = b"".join(ulpdu[14:] for ulpdu in ulpdus if ulpdu[1] & 15 == WRITE)
            sends = b"".join(ulpdu[18:] for ulpdu in ulpdus if ulpdu[1] & 15 == SEND)
            assert writes == b"".join(texts)
            assert sends == b"".join(text[:5000] for text in texts)
            if request_frame == MARKER_CRC_REQUEST:
                assert stream[-4:] != bytes(4)
            raw.close()

    asyncio.run(run())


def boundaries(stream: bytes) -> list[int]:
    """Where the FPDUs of an unmarked stream end."""
    ends, at = [], 0
    while at < len(stream):
        length = int.from_bytes(stream[at : at + 2], "big")
        at += (length + 2 + 3 & ~3) + 4
        ends.append(at)
    return ends


def timestamps() -> int:
    """What TCP's timestamps take of each segment."""
    return 12 if Path("/proc/sys/net/ipv4/tcp_timestamps").read_text().strip() != "0" else 0


@pytest.mark.parametrize("mss", [536, 1000, 1448, 1460, 1447, 1449, 1450, 8948])
def test_no_fpdu_straddles_a_segment(mss: int) -> None:
    """Follow the socket's own counters: each sendmsg() call is a grid of segments of the size in use.

    So where no call was cut short there are exactly as many as the packing rule has runs: with fewer, one straddles.
    A full send buffer cuts calls short, when and where depends on the machine; then the rest of that run says nothing.
    """

    async def run() -> None:
        rng = random.Random(mss)
        async with world(SoftIwarpOptions(send_buffer=1 << 20)) as it:

            def clamp(sock: socket.socket) -> None:
                # The peer's MSS option bounds what the other side sends.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mss + timestamps())

            raw = await it.raw(options=clamp)
            await raw.message()
            server = it.servers[0]
            await server.until(lambda me: len(me.messages) == 1)
            endpoint = server.endpoint
            assert endpoint is not None
            used: set[int] = set()
            whole = several = 0
            for _ in range(1500):
                texts = [rng.randbytes(rng.choice((0, 20, 100, 128, 500, 1400, 4096, 10000))) for _ in range(3)]
                before = endpoint.statistics()
                for text in texts:
                    writes = [RdmaWrite(1, 2, memoryview(text))] if len(text) > 100 else []
                    endpoint.post(writes, Send([text[:1000]]), None)
                count = len(server.completions) + len(texts)
                await server.until(lambda me, count=count: len(me.completions) == count)
                after = endpoint.statistics()
                run_octets = after["octets_out"] - before["octets_out"]
                piece = await raw.exactly(run_octets)
                segment = segment_of(endpoint, raw)
                used.add(segment)
                ends = boundaries(piece)
                assert ends[-1] == run_octets
                assert after["largest_fpdu_out"] <= segment & ~3
                runs = count_runs(ends, segment)
                if after["send_calls_cut"] == before["send_calls_cut"]:
                    calls = after["send_calls"] - before["send_calls"]
                    assert calls >= runs, "an FPDU straddles a segment"
                    assert calls <= runs, "more calls than the packing rule needs"
                    whole += 1
                    several += runs > 1 or run_octets > segment
                if several == 100:
                    break
            assert several == 100, f"{whole} turns without a call cut short, {several} of them larger than a segment"
            assert used == {mss}
            raw.close()

    asyncio.run(run())


def segment_of(endpoint: object, raw: Raw) -> int:
    """The segment size the sending side uses towards ``raw``: what raw announced, less the timestamps."""
    return raw.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)


def count_runs(ends: list[int], segment: int) -> int:
    """How many calls it takes when one begins wherever an FPDU would straddle a segment of the running one."""
    runs, start, at = 1, 0, 0
    for end in ends:
        first, final = (at - start) // segment, (end - 1 - start) // segment
        if first != final:
            runs, start = runs + 1, at
            assert end - at <= segment, "an FPDU is larger than a segment"
        at = end
    return runs


@settings(max_examples=40, deadline=None)
@given(data=st.binary(min_size=1, max_size=400))
def test_any_octets_after_mpa_cost_that_connection_only(data: bytes) -> None:
    async def run() -> None:
        it = World(SoftIwarpOptions(close_timeout=1))
        await it.listen()
        raw = await it.raw()
        await raw.send(data)
        raw.socket.shutdown(socket.SHUT_WR)
        await it.servers[0].ended()
        raw.close()
        client, server = await it.pair()
        assert client.endpoint is not None
        client.endpoint.post([], Send([b"still here"]), None)
        await server.until(lambda me: me.messages == [b"still here"])
        await it.close()

    asyncio.run(run())


def test_control_octets_of_the_support_code() -> None:
    assert control(WRITE, last=False) == b"\x81\x40"
    assert control(SEND) == b"\x41\x43"
