"""Answers to RDMA Reads are received where they belong, however they are cut, and whatever comes in between."""

import asyncio
import random
import struct

import pytest

from rpcrdma.copying import copied
from rpcrdma.verbs.interface import Send
from tests.unit.softiwarp_support import (
    READ_RESPONSE,
    SEND,
    WRITE,
    Raw,
    fpdu,
    settle,
    tagged,
    untagged,
    world,
)

SIZES = (0, 1, 4096, 70_000, 300_001, 1 << 20)


class Source(Raw):
    """A peer whose memory is read, and that says how its answers are cut."""

    def answers(self, rng, requests, regular, chatty):
        """The FPDUs that answer Read Requests, with Sends in between: (FPDUs, what the Sends hold)."""
        frames, said = [], []
        for ulpdu in requests:
            sink, at, size, source, begin = struct.unpack(">IQIIQ", ulpdu[18:46])
            data = octets_of(source, begin, size)
            largest, done = rng.choice((1428, 8908, 32_748, 60_000, 64_752)), 0
            while done < size or not size:
                part = min(largest if regular else rng.randrange(1, 60_000), size - done)
                last = done + part == size
                frames.append(tagged(READ_RESPONSE, sink, at + done, data[done : done + part], last))
                done += part
                while rng.random() < chatty:
                    # A Write of no octets may go anywhere; a Send is one of the peer's calls.
                    if rng.random() < 0.3:
                        frames.append(tagged(WRITE, rng.getrandbits(32), 0))
                        continue
                    said.append(rng.randbytes(rng.choice((0, 1, 16, 150, 3000))))
                    frames.append(untagged(SEND, 0, self.send_msn, 0, said[-1]))
                    self.send_msn += 1
                if last:
                    break
        return frames, said


def octets_of(source, begin, size):
    """What the memory of a handle holds."""
    return random.Random(source).randbytes(begin + size)[begin:]


async def reading(it, raw, rng, count):
    """A server's endpoint that has posted so many Reads: (the server, the sinks, the Read Requests)."""
    await raw.message(b"first")
    server = it.servers[-1]
    await server.until(lambda me: len(me.messages) == 1)
    sinks = [(number + 1, rng.randrange(100), bytearray(rng.choice(SIZES))) for number in range(count)]
    for number in range(0, count, 2):
        server.endpoint.post_reads(
            [(handle, at, memoryview(sink)) for handle, at, sink in sinks[number : number + 2]], number
        )
    return server, sinks, [await raw.next_ulpdu() for _ in sinks]


async def connect(it):
    """The peer, its MPA Request answered."""
    raw = await it.raw()
    raw.__class__ = Source
    return raw


@pytest.mark.parametrize("seed", range(16))
def test_however_the_answers_are_cut(seed):
    rng = random.Random(seed)

    async def main():
        async with world() as it:
            it.receives, it.receive_size = 2000, 4096
            raw = await connect(it)
            server, sinks, requests = await reading(it, raw, rng, it.initiator_depth)
            frames, said = raw.answers(rng, requests, seed % 2, (0, 0, 0.1, 0.5)[seed % 4])
            stream = b"".join(fpdu(frame, False) for frame in frames)
            sizes = (1, 3, 17, 22, 500, 5000) if seed % 3 == 0 else (70_000, 200_000, 1 << 20)
            at = 0
            while at < len(stream):
                # Small pieces now and then: many of them would take long.
                size = rng.choice(sizes) if rng.random() < 0.5 else rng.choice((60_000, 250_000))
                await raw.send(stream[at : at + size])
                at += size
                await settle()
            await server.until(lambda me: len(me.completions) == 2 and len(me.messages) == 1 + len(said))
            assert server.completions == [(0, True), (2, True)]
            assert server.messages[1:] == said
            for handle, begin, sink in sinks:
                assert sink == octets_of(handle, begin, len(sink))
            raw.close()

    asyncio.run(main())


@pytest.mark.parametrize("at", [1, 5, 20, 1000, 64_756, 64_770, 64_772, 64_775, 64_788, 64_800, 300_000])
@pytest.mark.parametrize("goes_on", [False, True])
def test_an_answer_that_stops_anywhere(at, goes_on):
    """The stall is told apart from the end; and what comes later goes on where it stopped."""

    async def main():
        async with world() as it:
            raw = await connect(it)
            await raw.message(b"first")
            server = it.servers[-1]
            await server.until(lambda me: len(me.messages) == 1)
            sink = bytearray(400_000)
            server.endpoint.post_reads([(7, 0, memoryview(sink))], "read")
            data = octets_of(7, 0, len(sink))
            request = await raw.next_ulpdu()
            (stag,) = struct.unpack(">I", request[18:22])
            parts = range(0, len(data), 64_752)
            frames = [
                tagged(READ_RESPONSE, stag, done, data[done : done + 64_752], done == parts[-1]) for done in parts
            ]
            stream = b"".join(fpdu(frame, False) for frame in frames)
            await raw.send(stream[:at])
            await settle()
            assert server.completions == []
            if goes_on:
                await raw.send(stream[at:])
                await server.until(lambda me: me.completions == [("read", True)])
                assert sink == data
                raw.close()
            else:
                raw.close()
                reason = await server.ended()
                assert ("in the middle of an FPDU" in reason) == (at % 64_772 != 0)
                assert server.completions == [("read", False)]

    asyncio.run(main())


@pytest.mark.parametrize("wrong", ["offset", "stag", "too much", "last too soon", "control"])
def test_a_header_that_is_not_as_expected_is_checked_all_the_same(wrong):
    async def main():
        async with world() as it:
            raw = await connect(it)
            await raw.message(b"first")
            server = it.servers[-1]
            await server.until(lambda me: len(me.messages) == 1)
            sink = bytearray(300_000)
            server.endpoint.post_reads([(7, 0, memoryview(sink))], "read")
            (stag,) = struct.unpack(">I", (await raw.next_ulpdu())[18:22])
            good = [tagged(READ_RESPONSE, stag, done, bytes(60_000), False) for done in (0, 60_000)]
            bad = {
                "offset": tagged(READ_RESPONSE, stag, 120_004, bytes(60_000), False),
                "stag": tagged(READ_RESPONSE, stag + 1, 120_000, bytes(60_000), False),
                "too much": tagged(READ_RESPONSE, stag, 120_000, bytes(60_000), False),
                "last too soon": tagged(READ_RESPONSE, stag, 120_000, bytes(60_000), True),
                "control": b"\x82" + tagged(READ_RESPONSE, stag, 120_000, bytes(60_000), False)[1:],
            }[wrong]
            more = [tagged(READ_RESPONSE, stag, 180_000 + 60_000 * n, bytes(60_000), False) for n in range(3)]
            await raw.send(b"".join(fpdu(frame, False) for frame in [*good, bad, *more]))
            assert len(await raw.next_ulpdu()) >= 22  # a Terminate
            raw.close()
            await server.ended()
            assert server.completions == [("read", False)]

    asyncio.run(main())


def test_what_is_read_is_not_copied_again():
    async def main():
        async with world() as it:
            client, server = await it.pair()
            source = memoryview(bytearray(random.Random(1).randbytes(1 << 20)))
            handle, base = client.endpoint.register(source, remote_read=True)
            client.endpoint.post([], Send([b"hello"]), None)
            await server.until(lambda me: me.messages == [b"hello"])
            sink = bytearray(len(source))
            before = copied()
            for number in range(8):
                server.endpoint.post_reads([(handle, base, memoryview(sink))], number)
                await server.until(lambda me, number=number: len(me.completions) == number + 1)
            assert sink == source
            assert copied() - before < len(source)  # of eight times as much
            client.endpoint.close()
            await server.ended()

    asyncio.run(main())
