"""Clients of our own server with the echo program, on every provider."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rpcrdma.client import ChunkChoice, ClientOptions, Connection, Reply, connect
from rpcrdma.client.rdma import RdmaCarrier
from rpcrdma.engine.requester import Requester
from rpcrdma.rpc.program import Program
from rpcrdma.xdr import Encoder
from rpcrdma.xdr.payload import Payload
from tests.peer.echo import ECHO, PROGRAM, VERSION
from tests.peer.responder import Server
from tests.peer.rig import LINUX, Rig


def arguments(*items: bytes | bytearray, filler: int = 0, dropped: Sequence[int] = ()) -> Encoder:
    """Of ECHO."""
    encoder = Encoder()
    encoder.uint32(filler)
    encoder.uint32(len(items))
    for index, item in enumerate(items):
        encoder.boolean(index not in dropped)
        encoder.bulk(Payload(memoryview(item)))
    return encoder


def results(reply: Reply, filler: int = 0) -> list[bytes | None]:
    """The items that ECHO returned."""
    decoder = reply.decoder()
    assert decoder.opaque(filler) == b"f" * filler
    items = [bytes(decoder.bulk(4 << 20)) if decoder.boolean() else None for _ in range(decoder.uint32())]
    decoder.finish(strict=True)
    return items


def pattern(length: int, seed: int = 1) -> bytes:
    """Octets that do not repeat within a page."""
    return bytes((index * 7 + (index >> 8) * 3 + seed) & 0xFF for index in range(length))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (anything in the process may change it)
            await asyncio.sleep(0)


class Client:
    """A connection to the rig's server."""

    def __init__(self, rig: Rig, connection: Connection) -> None:
        self.rig = rig
        self.connection = connection

    async def echo(
        self,
        *items: bytes | bytearray,
        filler: int = 0,
        dropped: Sequence[int] = (),
        into: Sequence[memoryview] | None = None,
        procedure: int = ECHO,
        reply_max: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
        **choice: Any,
    ) -> list[bytes | None]:
        kept = [item for index, item in enumerate(items) if index not in dropped]
        memory = [memoryview(bytearray(len(item))) for item in kept] if into is None else into
        reply = await self.call(
            arguments(*items, filler=filler, dropped=dropped),
            procedure,
            into=memory,
            reply_max=64 + filler + 8 * len(items) if reply_max is None else reply_max,
            timeout=timeout,
            chunks=ChunkChoice(**choice),
        )
        self.last = reply
        return results(reply, filler)

    async def call(self, encoder: Encoder | bytes = b"", procedure: int = ECHO, **options: Any) -> Reply:
        return await self.connection.call(PROGRAM, VERSION, procedure, encoder, **options)

    @property
    def carrier(self) -> RdmaCarrier:
        return carrier_of(self.connection)

    @property
    def requester(self) -> Requester:
        return self.carrier.requester

    @property
    def exposed(self) -> int:
        """Registrations that calls have now."""
        return self.requester._registrations.in_use


def run(
    test: Callable[[Client], Awaitable[None]],
    *,
    version: Any = None,
    callbacks: Sequence[Program] = (),
    server: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Run ``test`` with a connected client, and take everything down; all memory must be back then."""

    async def main() -> None:
        async with Rig(**(server or {})) as rig:
            address = rig.listener.address
            async with connect(
                address.host,
                address.port,
                provider=rig.provider,
                version=version,
                callbacks=callbacks,
                options=ClientOptions(**options),
            ) as connection:
                await test(Client(rig, connection))

    asyncio.run(main())


def run_alone(
    test: Callable[[Server, Connection], Awaitable[None]],
    *,
    version: Any = None,
    private_data: bytes = LINUX,
    callbacks: Sequence[Program] = (),
    **options: Any,
) -> None:
    """Run ``test`` with a client of a server that answers what the test says."""

    async def main() -> None:
        async with Server(private_data=private_data) as server:
            address = server.listener.address
            async with connect(
                address.host,
                address.port,
                provider=server.provider,
                version=version,
                callbacks=callbacks,
                options=ClientOptions(**{"first_delay": 0.01, "longest_delay": 0.02} | options),
            ) as connection:
                await test(server, connection)

    asyncio.run(main())


def start(connection: Connection, **options: Any) -> asyncio.Task[Reply]:
    """Make a call whose arguments are of no interest."""
    options = {"into": [memoryview(bytearray(8192))], "reply_max": 200} | options
    return asyncio.ensure_future(connection.call(PROGRAM, VERSION, ECHO, options.pop("arguments", b""), **options))


def carrier_of(connection: Connection) -> RdmaCarrier:
    """The RDMA connection there is now."""
    carrier = connection.carrier
    assert isinstance(carrier, RdmaCarrier)
    return carrier
