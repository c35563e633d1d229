"""Connections to a listener of the embedded provider have its DSCP."""

from __future__ import annotations

import asyncio
import socket

import pytest

from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp import SoftIwarpOptions, listener
from tests.support.machine import needs_ipv6

from .softiwarp_support import world

MARKED = 104


@pytest.mark.parametrize(
    ("host", "reached_by", "level", "option"),
    [
        ("127.0.0.1", "127.0.0.1", socket.IPPROTO_IP, socket.IP_TOS),
        pytest.param("::", "127.0.0.1", socket.IPPROTO_IP, socket.IP_TOS, marks=needs_ipv6),
        pytest.param("::", "::1", socket.IPPROTO_IPV6, socket.IPV6_TCLASS, marks=needs_ipv6),
    ],
)
def test_connections_have_the_listeners_type_of_service(
    monkeypatch: pytest.MonkeyPatch, host: str, reached_by: str, level: int, option: int
) -> None:
    async def run() -> None:
        seen: asyncio.Queue[int] = asyncio.Queue()

        def configure(sock: socket.socket, options: SoftIwarpOptions) -> None:
            seen.put_nowait(sock.getsockopt(level, option))

        monkeypatch.setattr(listener, "configure", configure)
        async with world() as it:
            for wanted in (MARKED, 0):
                made = await it.provider.listen(ListenAddress(host, 0, wanted), lambda _: None)
                assert made.address.type_of_service == wanted
                _, writer = await asyncio.open_connection(reached_by, made.address.port)
                assert await asyncio.wait_for(seen.get(), 10) == wanted
                writer.close()
                made.close()

    asyncio.run(run())
