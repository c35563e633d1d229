"""Every legal way to convey a call and its reply, by the client library against our own server (RFC 8166 section 3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rpcrdma.engine.exchange import Exchange
from rpcrdma.wire.header import RDMA_MSG, RDMA_NOMSG
from tests.peer.providers import provider  # noqa: F401 (runs each test on every provider)
from tests.unit.client_support import Client, pattern, run

BOTH = pytest.mark.parametrize("version", [1, 2])

CALLS = ["auto", "inline", "read", "long", "read+long"]
REPLIES = ["auto", "inline", "write", "reply", "write+reply"]


class Watch:
    """What a client's requester sends."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[int, int, int, int]] = []
        """Procedure, and numbers of Read segments, Write chunks and segments of the Reply chunk."""
        original = Exchange.expose

        def expose(exchange: Exchange, *others: Any) -> None:
            original(exchange, *others)
            reply = len(exchange.reply or ())
            self.sent.append((exchange.plan.procedure, len(exchange.reads), len(exchange.writes), reply))

        monkeypatch.setattr(Exchange, "expose", expose)


@BOTH
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("reply", REPLIES)
def test_every_way_there_with_every_way_back(
    call: str, reply: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: Client) -> None:
        data = [pattern(501), pattern(300, 5)]
        await client.echo()  # settles the version
        watch = Watch(client, monkeypatch)
        assert await client.echo(*data, call=call, reply=reply) == data
        ((procedure, reads, writes, reply_segments),) = watch.sent
        assert procedure == (RDMA_NOMSG if "long" in call else RDMA_MSG)
        assert reads == (2 if "read" in call else 0) + (1 if "long" in call else 0)
        assert writes == (2 if "write" in reply else 0)
        assert reply_segments == (1 if "reply" in reply else 0)
        assert client.last.placed == ([501, 300] if writes else [0, 0])
        assert client.exposed == 0

    run(test, version=version)


@BOTH
@pytest.mark.parametrize("segments", [2, 7, 16])
@pytest.mark.parametrize("padding", [False, True])
def test_chunks_of_many_segments_with_and_without_padding(version: int, segments: int, padding: bool) -> None:
    async def test(client: Client) -> None:
        await client.echo()
        for size in (1, 2, 3, 5, 4098, 70_003):
            data = pattern(size)
            for call, reply in (("read", "write"), ("long", "reply"), ("read+long", "write+reply")):
                assert await client.echo(data, call=call, reply=reply, segments=segments, padding=padding) == [data]
        assert client.exposed == 0

    run(test, version=version)


def test_what_is_chosen_by_itself_is_what_linux_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: Client) -> None:
        await client.echo()
        watch = Watch(client, monkeypatch)
        cases: list[tuple[dict[str, Any], tuple[int, int, int, int]]] = [
            ({"size": 1000}, (RDMA_MSG, 0, 0, 0)),
            ({"size": 5000}, (RDMA_MSG, 1, 1, 0)),
            ({"size": 5000, "dropped": [0]}, (RDMA_MSG, 1, 0, 0)),
            ({"size": 1000, "filler": 5000}, (RDMA_MSG, 0, 0, 1)),  # never Write list and Reply chunk
            ({"size": 5000, "filler": 5000}, (RDMA_MSG, 1, 0, 1)),
        ]
        for case, chosen in cases:
            size = case.pop("size")
            await client.echo(pattern(size), **case)
            assert watch.sent.pop() == chosen, case
        # Arguments without any DDP-eligible item that are too large: RDMA_NOMSG with a Position Zero Read chunk.
        many = [pattern(100, seed) for seed in range(60)]
        assert await client.echo(*many, call="long", reply="reply") == many
        assert watch.sent.pop() == (RDMA_NOMSG, 1, 0, 1)

    run(test, version=1)


def test_what_does_not_fit_as_it_is_wanted_is_refused_and_nothing_is_sent() -> None:
    async def test(client: Client) -> None:
        await client.echo()
        before = client.requester.counters.sends
        with pytest.raises(ValueError, match="threshold"):
            await client.echo(pattern(5000), call="inline")
        with pytest.raises(ValueError, match="threshold"):
            await client.echo(pattern(50_000), call="read", segments=200)
        with pytest.raises(ValueError, match="Reply chunk"):
            await client.echo(b"", reply="reply", reply_max=5 << 20)
        assert client.requester.counters.sends == before
        assert await client.echo(b"fine") == [b"fine"]

    run(test)


@BOTH
def test_results_shorter_than_their_place_and_items_that_do_not_come(version: int) -> None:
    async def test(client: Client) -> None:
        await client.echo()
        for reply in ("write", "reply", "write+reply", "inline"):
            memory = bytearray(b"." * 300)
            got = await client.echo(b"short", b"gone", dropped=[1], into=[memoryview(memory)], reply=reply)
            assert got == [b"short", None]
            assert memory == b"short" + b"." * 295
            assert client.last.placed == [5 if "write" in reply else 0]

    run(test, version=version)


def test_a_chunk_for_an_empty_item_comes_back_empty() -> None:
    async def test(client: Client) -> None:
        into = [memoryview(bytearray(8)), memoryview(bytearray(8))]
        assert await client.echo(b"", b"x", into=into, reply="write") == [b"", b"x"]
        assert client.last.placed == [0, 1]

    run(test, version=1)


def test_memory_may_be_kept_registered() -> None:
    async def test(client: Client) -> None:
        registrations = client.requester._registrations
        await client.echo()
        data, memory = bytearray(pattern(50_000)), bytearray(50_000)
        for seed in range(5):
            data[:] = pattern(50_000, seed)
            assert await client.echo(data, into=[memoryview(memory)]) == [data]
        assert (registrations.made, registrations.found) == (2, 8)
        assert registrations.kept_octets == 100_000
        assert client.requester.counters.invalidated == 0
        # What does not fit any more pushes out what was there longest.
        await client.echo(bytearray(150_000), into=[memoryview(bytearray(150_000))])
        assert registrations.kept_octets <= 200_000
        assert client.exposed == 0

    run(test, keep_registered=200_000)


def test_two_calls_at_a_time_with_the_same_memory() -> None:
    async def test(client: Client) -> None:
        await client.echo()
        data = bytearray(pattern(9000))
        answers = await asyncio.gather(*[client.echo(data) for _ in range(6)])
        assert answers == [[bytes(data)]] * 6
        assert client.exposed == 0

    run(test, keep_registered=100_000)
