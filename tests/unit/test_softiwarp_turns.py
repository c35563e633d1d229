"""How much of what has arrived is handed over at once: no more than lately took a turn's time."""

import asyncio
import time
from collections.abc import Sequence

from rpcrdma.verbs.interface import Received, Send

from .softiwarp_support import Recorder, World, world

BURST = 20


def dawdle(messages: Sequence[Received]) -> None:
    """Take longer than a turn."""
    until = time.perf_counter() + 0.0005
    while time.perf_counter() < until:
        pass


async def slow_pair(it: World) -> tuple[Recorder, Recorder]:
    """A connection whose server has shown that it is slow."""
    it.receives = 64
    client, server = await it.pair()
    server.on_received = dawdle
    for number in range(8):
        assert client.endpoint is not None
        client.endpoint.post((), Send((b"warm up",)), None)
        await server.until(lambda me, wanted=number + 1: len(me.messages) == wanted)
    server.messages.clear()
    server.batches.clear()
    for number in range(BURST):
        client.endpoint.post((), Send((b"%d" % number,)), None)
    return client, server


def test_a_slow_owner_gets_messages_one_by_one_and_in_order() -> None:
    async def main() -> None:
        async with world() as it:
            _, server = await slow_pair(it)
            turns = 0

            def count() -> None:
                nonlocal turns
                turns += 1
                if len(server.messages) < BURST:
                    asyncio.get_running_loop().call_soon(count)

            count()
            await server.until(lambda me: len(me.messages) == BURST)
            assert server.messages == [b"%d" % number for number in range(BURST)]
            assert server.batches == [1] * BURST
            assert turns >= BURST, "others had their turns in between"

    asyncio.run(main())


def test_what_waits_for_its_turn_is_handed_over_before_the_end() -> None:
    async def main() -> None:
        async with world() as it:
            client, server = await slow_pair(it)
            assert client.endpoint is not None
            client.endpoint.close()
            assert await server.ended() == "the peer closed the connection"
            assert server.messages == [b"%d" % number for number in range(BURST)]

    asyncio.run(main())


def test_what_waits_for_its_turn_is_dropped_when_the_owner_closes() -> None:
    """As is what arrives afterwards: an owner that has closed hears of nothing but the end."""

    async def main() -> None:
        async with world() as it:
            _, server = await slow_pair(it)

            def close(messages: Sequence[Received]) -> None:
                assert server.endpoint is not None
                server.endpoint.close()

            server.on_received = close
            assert await server.ended() == "closed by this side"
            assert server.messages == [b"0"]

    asyncio.run(main())
