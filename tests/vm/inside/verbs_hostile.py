"""Run in a guest: hostile requesters over the guest's RDMA devices, beside an honest one:
``verbs_hostile.py ATTACK ADDRESS PORT``.

While the attack is in place an honest client, who has had a connection all the time, makes NULL calls, and new
connections are made for some more. Prints a line of JSON: how many connections the attack attempted, how long the
honest client's slowest call took (seconds), how many it made, and what failed for it.

idle      150 connections that do nothing
chunks    messages whose chunk lists are wrong in every way, each on a connection of its own
handles   WRITEs in Read chunks, and READs into Write chunks, of memory that is not there
credits   more calls at once than were granted, for which no Receives are posted
versions  versions and procedures that do not exist, replies to nothing
churn     connections made and dropped without a word
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

from rpcrdma.memory import Pool
from rpcrdma.peer.wire import DONE, ERROR, NOMSG, Segment, header, header_two, words
from rpcrdma.verbs.device import DeviceOptions, make_provider
from rpcrdma.verbs.device.provider import DeviceProvider
from rpcrdma.verbs.interface import Endpoint, ListenAddress, Received, Send
from rpcrdma.wire.private_data import PrivateData

PATIENCE = 20.0
"""Seconds for an answer, in an emulated guest."""
MIB = 1 << 20
PRIVATE_DATA = PrivateData(send_size=4096, receive_size=4096).encode()


def call(xid: int, procedure: int = 0, arguments: bytes = b"") -> bytes:
    """An NFSv3 call with an empty credential."""
    return struct.pack(">10I", xid, 0, 2, 100003, 3, procedure, 0, 0, 0, 0) + arguments


class Connection:
    """A connection, honest or not."""

    def __init__(self, provider: DeviceProvider, reposts: bool = True) -> None:
        self.provider, self.reposts = provider, reposts
        self.account = provider.pool.account(1 << 20)
        self.replies: asyncio.Queue[bytes] = asyncio.Queue()
        self.reason = ""
        self.endpoint: Endpoint

    async def open(self, address: ListenAddress) -> Connection:
        """Connect. Raises OSError."""
        receives = [self.account.lease(4096) for _ in range(4)]
        try:
            self.endpoint, _ = await self.provider.connect(address, self, PRIVATE_DATA, receives, initiator_depth=0)
        except BaseException:
            for lease in receives:
                lease.release()
            raise
        return self

    def received(self, messages: Sequence[Received]) -> None:
        """Take replies."""
        for lease, length, _ in messages:
            self.replies.put_nowait(bytes(lease.view[:length]))
            lease.release()
        if self.reposts and not self.reason:
            self.endpoint.post_receives([self.account.lease(4096) for _ in messages])

    def completed(self, token: object, ok: bool) -> None:
        """Nothing is done about that."""

    def disconnected(self, reason: str) -> None:
        """The end."""
        self.reason = str(reason) or "disconnected"
        self.replies.put_nowait(b"")

    def post(self, *parts: bytes) -> None:
        """Send a message; nothing when the connection is gone."""
        if not self.reason:
            self.endpoint.post((), Send((b"".join(parts),)), None)

    def close(self) -> None:
        """Drop it."""
        if not self.reason:
            self.endpoint.close(abort=True)

    async def null(self, xid: int) -> None:
        """A NULL call and its answer. Raises ConnectionError and TimeoutError."""
        self.post(header(xid, credit=4), call(xid))
        async with asyncio.timeout(PATIENCE):
            reply = await self.replies.get()
        if reply[:4] != xid.to_bytes(4, "big") or reply[28:52] != words(xid, 1, 0, 0, 0, 0):
            raise ConnectionError(self.reason or f"another answer: {reply.hex()}")


class Honest:
    """Who only wants its answers."""

    def __init__(self, provider: DeviceProvider, address: ListenAddress) -> None:
        self.provider, self.address = provider, address
        self.slowest, self.calls = 0.0, 0
        self.failures: list[str] = []

    async def live(self, enough: asyncio.Event) -> None:
        """Call until it is enough, and every tenth time by a new connection."""
        own = await Connection(self.provider).open(self.address)
        while not enough.is_set():
            self.calls += 1
            began = time.monotonic()
            try:
                await own.null(self.calls)
                if self.calls % 10 == 0:
                    async with asyncio.timeout(PATIENCE):
                        new = await Connection(self.provider).open(self.address)
                    await new.null(7)
                    new.close()
            except (OSError, TimeoutError) as error:
                self.failures.append(f"{type(error).__name__} {error}")
                own.close()
                own = await Connection(self.provider).open(self.address)
            self.slowest = max(self.slowest, time.monotonic() - began)
            await asyncio.sleep(0.02)
        own.close()


def bad_chunks() -> list[bytes]:
    """Messages."""
    huge = Segment(1, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFF0)
    tiny = [Segment(7, 1, number) for number in range(100)]
    return [
        header(1, reads=[(0, huge)] * 20, procedure=NOMSG),
        header(1, reads=[(number * 4, segment) for number, segment in enumerate(tiny)]) + call(1),
        header(1, reads=[(0xFFFFFFFC, huge)]) + call(1),
        header(1, writes=[[huge] * 50], reply=[huge] * 50) + call(1),
        header(1, writes=[[]] * 300) + call(1),
        words(1, 1, 32, 0, 0, 1, 10000) + bytes(2000),
        words(1, 1, 32, 0, 0, 1, 0xFFFFFFFF) + bytes(2000),
        words(1, 1, 32, 0) + words(1) * 900,
        words(1, 1, 32, 0, 0, 0, 1, 0xFFFFFFFF) + bytes(500),
        header(1, procedure=NOMSG),
        random.Random(1).randbytes(1000),
        b"\0",
    ]


def bad_handles() -> list[bytes]:
    """Messages that make the server reach for memory that is not there."""
    write = call(1, 7, words(4, 0) + bytes(8) + words(MIB, 0, MIB))
    read = call(1, 6, words(4, 0) + bytes(8) + words(MIB))
    return [
        header(1, reads=[(len(write), Segment(0xDEAD, MIB, 0))]) + write,
        header(1, reads=[(0, Segment(0xDEAD, MIB, 0))], procedure=NOMSG),
        header(1, writes=[[Segment(0xDEAD, MIB, 0)]]) + read,
        header(1, reply=[Segment(0xDEAD, MIB, 0)]) + call(1, 0),
    ]


def bad_versions() -> list[bytes]:
    """Messages of other versions, and that answer nothing."""
    reply = words(5, 1, 0, 0, 0, 0)
    return [
        *(header(1, version=version) + call(1) for version in (0, 3, 99, 0xFFFFFFFF)),
        header(1, procedure=DONE),
        header(1, procedure=0xFFFFFFFF) + call(1),
        words(1, 1, 32, ERROR, 2),
        header(5) + reply,
        header_two(5, direction=1) + reply,
        header_two(1, inv_handle=0xFFFFFFFF) + call(1),
    ]


class Attacks:
    """By name."""

    def __init__(self, provider: DeviceProvider, address: ListenAddress) -> None:
        self.provider, self.address = provider, address
        self.made = 0
        self.open: list[Connection] = []

    async def connect(self, reposts: bool = True) -> Connection | None:
        """One more connection, if there is one to be had."""
        self.made += 1
        try:
            async with asyncio.timeout(PATIENCE):
                self.open.append(await Connection(self.provider, reposts).open(self.address))
        except (OSError, TimeoutError):
            return None
        return self.open[-1]

    async def each(self, messages: list[bytes], rounds: int) -> None:
        """Every message on a connection of its own."""
        for message in messages * rounds:
            connection = await self.connect()
            if connection is not None:
                connection.post(message)
                await asyncio.sleep(0.01)
                connection.close()

    async def idle(self) -> None:
        """Connections."""
        for _ in range(150):
            await self.connect()

    async def chunks(self) -> None:
        """Of messages that are wrong."""
        await self.each(bad_chunks(), 2)

    async def handles(self) -> None:
        """Of memory that is not there."""
        await self.each(bad_handles(), 5)

    async def versions(self) -> None:
        """That nobody knows."""
        await self.each(bad_versions(), 2)

    async def credits(self) -> None:
        """More than were granted."""
        for _ in range(5):
            connection = await self.connect(reposts=False)
            if connection is not None:
                for xid in range(1, 300):
                    connection.post(header(xid, credit=(0, 1, 0xFFFFFFFF)[xid % 3]), call(xid))
                await asyncio.sleep(0.2)

    async def churn(self) -> None:
        """Connections that are over at once."""
        for _ in range(50):
            connection = await self.connect()
            if connection is not None:
                connection.close()


async def main(attack: str, host: str, port: str) -> None:
    """Attack, and say how the honest client fared."""
    address = ListenAddress(host, int(port))
    providers = [make_provider(Pool(64 << 20), DeviceOptions()) for _ in range(2)]
    honest, attacks = Honest(providers[0], address), Attacks(providers[1], address)
    enough = asyncio.Event()
    living = asyncio.create_task(honest.live(enough))
    run: Callable[[], Awaitable[None]] = getattr(attacks, attack)
    await run()
    await asyncio.sleep(1)  # with all of it in place
    enough.set()
    await living
    print(
        json.dumps(
            {"attempts": attacks.made, "slowest": honest.slowest, "calls": honest.calls, "failures": honest.failures}
        )
    )
    for connection in attacks.open:
        connection.close()
    for provider in providers:
        await provider.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
