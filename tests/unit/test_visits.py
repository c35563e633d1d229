"""Datagrams in the names of many hosts keep no host from being served that has a connection, or that asks another
service."""

from __future__ import annotations

import asyncio
from typing import Any

from nfsd.config import Limits
from nfsd.listeners import Listeners
from rpcrdma.hosts import HostLimits, Hosts
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import Procedure, Program
from rpcrdma.server.visits import MOST, MOST_OF_HOST, Visits
from tests.unit.test_portmap import PORTMAP, message


def spoof(visits: Visits) -> list[str]:
    """Calls in the names of as many hosts as it takes to fill all the places."""
    return [visit for number in range(MOST) if (visit := visits.begin(f"192.0.2.{number}")) is not None]


def test_a_host_with_a_connection_may_call_whoever_else_is_said_to() -> None:
    hosts = Hosts(Pool(1 << 24), HostLimits())
    visits = Visits(hosts)
    seat = hosts.enter("198.51.100.1", 0.0)
    spoofed = spoof(visits)
    assert len(spoofed) == MOST
    assert visits.begin("198.51.100.2") is None, "nobody knows it"
    mine = visits.begin("198.51.100.1")
    assert mine is not None
    assert visits.begin("198.51.100.1") is None, "one, no more"
    visits.end(spoofed.pop())
    assert visits.begin("198.51.100.1") is None, "all the places are taken still"
    visits.end(spoofed.pop())
    assert visits.begin("198.51.100.1") is not None
    for visit in (*spoofed, mine, mine):
        visits.end(visit)
    assert [visits.begin("198.51.100.1") is not None for _ in range(MOST_OF_HOST + 1)] == [True] * MOST_OF_HOST + [
        False
    ]
    hosts.leave(seat)


def test_a_service_whose_calls_wait_keeps_nobody_from_another() -> None:
    begun: list[str] = []

    async def main() -> None:
        ended = asyncio.Event()

        async def slow(call: Any, arguments: None) -> None:
            begun.append("slow")
            await ended.wait()

        async def quick(call: Any, arguments: None) -> None:
            begun.append("quick")

        listeners = Listeners(Pool(1 << 24), Limits())
        for name, procedure in (("rquota", slow), ("rpcbind", quick)):
            program = Program(PORTMAP, name, {2: {0: Procedure("NULL", procedure)}})
            await listeners.start_service(name, name, ["127.0.0.1"], 0, Dispatcher([program]), udp=True)
        waiting, asked = (listeners.of(name)[1].udp for name in ("rquota", "rpcbind"))
        assert waiting is not None
        assert asked is not None
        for number in range(MOST + 1):
            waiting.datagram_received(message(2, 0, (None, None)), (f"192.0.2.{number}", 9))
        assert begun == ["slow"] * MOST
        asked.datagram_received(message(2, 0, (None, None)), ("198.51.100.1", 9))
        assert begun[MOST:] == ["quick"]
        ended.set()
        await listeners.close()

    asyncio.run(main())
