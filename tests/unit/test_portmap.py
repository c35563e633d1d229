"""rpcbind's answers from the server itself: what it serves, over TCP and in datagrams, and nothing else."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import pytest

from nfsd.v4.callback_messages import CallbackError, accepted
from rpcrdma.client.messages import AUTH_NONE, encode_call
from rpcrdma.client.whole import WholeClient
from rpcrdma.hosts import HostLimits, Hosts
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.portmap import (
    mapping,
    port_of_universal_address,
    portmap_program,
    rpcb_entry,
    rpcb_entry_list,
    rpcb_stat_byvers,
    rpcbs_addrlist,
    universal,
)
from rpcrdma.rpc.program import Procedure, Program
from rpcrdma.rpc.rpcbind import Service, rpcb, services
from rpcrdma.server.tcp import TcpListener
from rpcrdma.server.udp import UdpListener
from rpcrdma.server.visits import MOST, MOST_OF_HOST, Visits
from rpcrdma.xdr import Encoder, chain, opaque, uint32
from tests.support.machine import needs_ipv6

SERVED = [
    *services(100003, (3, 4), "rdma", "10.0.0.1", 20049),
    *services(100003, (3, 4), "tcp", "10.0.0.1", 2049),
    *services(100005, (3,), "tcp", "::", 20048),
    *services(100024, (1,), "udp", "0.0.0.0", 4096 + 5),
]
PORTMAP = 100000
_xids = itertools.count(1)


def message(version: int, procedure: int, arguments: Any, program: int = PORTMAP) -> bytes:
    body = Encoder()
    body.encode(*arguments)
    return bytes(encode_call(next(_xids), program, version, procedure, AUTH_NONE, body).head)


class Rig:
    """A portmapper, asked over TCP."""

    def __init__(self, served: list[Service] = SERVED) -> None:
        self.dispatcher = Dispatcher([portmap_program(lambda: served)])
        self.pool = Pool(1 << 24)
        self.tcp = TcpListener(self.dispatcher, self.pool, asyncio.get_running_loop())
        self.tcp.listen("127.0.0.1", 0)
        self.udp = UdpListener(self.dispatcher, Visits(self.tcp.hosts))

    async def ask(self, version: int, procedure: int, arguments: Any, results: Any) -> Any:
        client = await WholeClient.connect("127.0.0.1", self.tcp.address[1], seconds=5, pool=self.pool)
        try:
            return accepted(await client.call(message(version, procedure, arguments))).decode(results)
        finally:
            client.close()

    async def port(self, *what: int) -> int:
        return int(await self.ask(2, 3, (mapping, mapping(*what, 0)), uint32))

    async def address(self, version: int, program: int, netid: bytes, *, of: int = 4, procedure: int = 3) -> bytes:
        found = await self.ask(of, procedure, (rpcb, rpcb(program, version, netid, b"", b"")), universal)
        assert isinstance(found, bytes)
        return found

    async def datagram(self, octets: bytes, host: str = "127.0.0.1") -> bytes:
        """What comes back first: the answer to this, if there is one, or that to the NULL behind it."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect((host, self.udp.address[1]))
            sock.send(octets)
            sock.send(message(2, 0, (None, None)))  # NULL: always answered
            return await asyncio.wait_for(loop.sock_recv(sock, 65536), 10)


def run(test: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        rig = Rig()
        async with asyncio.timeout(30):
            await test(rig)
        rig.tcp.close()
        rig.udp.close()

    asyncio.run(main())


def test_version_two_tells_ports() -> None:
    async def test(rig: Rig) -> None:
        assert await rig.port(100003, 3, 6) == 2049
        assert await rig.port(100005, 3, 6) == 20048
        assert await rig.port(100005, 1, 6) == 20048, "where another version says which there are"
        assert await rig.port(100024, 1, 17) == 4101
        assert await rig.port(100024, 1, 6) == 0
        assert await rig.port(100099, 1, 6) == 0
        assert await rig.port(100003, 3, 99) == 0
        listed = await rig.ask(2, 4, (None, None), Annotated[list[mapping], chain(100)])
        assert mapping(100003, 4, 6, 2049) in listed
        assert mapping(100024, 1, 17, 4101) in listed
        assert len(listed) == 4, "it has no words for RDMA and IPv6"

    run(test)


@pytest.mark.parametrize("version", [3, 4])
def test_versions_three_and_four_tell_addresses(version: int) -> None:
    async def test(rig: Rig) -> None:
        assert await rig.address(3, 100003, b"rdma", of=version) == b"10.0.0.1.78.81"
        assert await rig.address(3, 100003, b"tcp", of=version) == b"10.0.0.1.8.1"
        assert await rig.address(3, 100005, b"tcp", of=version) == b"127.0.0.1.78.80", "the one that was asked"
        assert await rig.address(3, 100005, b"tcp6", of=version) == b"::.78.80", "asked over IPv4"
        assert await rig.address(9, 100003, b"tcp", of=version) == b"10.0.0.1.8.1"
        assert await rig.address(3, 100003, b"", of=version) == b"10.0.0.1.8.1", "over what it is asked"
        assert await rig.address(3, 100003, b"\xff", of=version) == b""
        listed = await rig.ask(version, 4, (None, None), Annotated[list[rpcb], chain(100)])
        assert {(one.r_prog, one.r_vers, one.r_netid) for one in listed} == {
            (service.program, service.version, service.netid.encode()) for service in SERVED
        }
        if version == 4:
            assert await rig.address(9, 100003, b"tcp", procedure=9) == b""
            assert await rig.address(4, 100003, b"tcp", procedure=9) == b"10.0.0.1.8.1"
            ways = await rig.ask(4, 11, (rpcb, rpcb(100003, 4, b"", b"", b"")), rpcb_entry_list)
            assert ways == [
                rpcb_entry(b"10.0.0.1.78.81", b"rdma", 3, b"inet", b"rdma"),
                rpcb_entry(b"10.0.0.1.8.1", b"tcp", 3, b"inet", b"tcp"),
            ]
            ways = await rig.ask(4, 11, (rpcb, rpcb(100005, 3, b"", b"", b"")), rpcb_entry_list)
            assert ways == [
                rpcb_entry(b"::.78.80", b"tcp6", 3, b"inet6", b"tcp"),
                rpcb_entry(b"127.0.0.1.78.80", b"tcp", 3, b"inet", b"tcp"),
            ]
            assert await rig.ask(4, 11, (rpcb, rpcb(100099, 1, b"", b"", b"")), rpcb_entry_list) == []

    run(test)


def test_nothing_can_be_registered() -> None:
    async def test(rig: Rig) -> None:
        for version, procedure in ((2, 1), (2, 2), (2, 5), (4, 1), (4, 2), (4, 5)):
            with pytest.raises(CallbackError, match="PROC_UNAVAIL"):
                await rig.ask(version, procedure, (mapping, mapping(100003, 3, 6, 1)), uint32)
        with pytest.raises(CallbackError, match="PROG_MISMATCH"):
            await rig.ask(5, 0, (None, None), None)

    run(test)


def test_statistics_tell_what_was_asked() -> None:
    async def test(rig: Rig) -> None:
        for _ in range(3):
            await rig.port(100003, 3, 6)
        await rig.port(100099, 1, 17)
        await rig.ask(2, 0, (None, None), None)
        with pytest.raises(CallbackError, match="PROC_UNAVAIL"):
            await rig.ask(2, 1, (mapping, mapping(100003, 3, 6, 1)), uint32)
        await rig.address(3, 100003, b"rdma", of=3)
        await rig.address(4, 100003, b"tcp", procedure=9)
        await rig.address(9, 100003, b"tcp", procedure=9)
        two, three, four = await rig.ask(4, 12, (None, None), rpcb_stat_byvers)
        assert two.info == [1, 1, 0, 4, *[0] * 9]
        assert two.addrinfo == [rpcbs_addrlist(100003, 3, 3, 0, b"tcp"), rpcbs_addrlist(100099, 1, 0, 1, b"udp")]
        assert three.info == [0, 0, 0, 1, *[0] * 9]
        assert four.info == [*[0] * 9, 2, 0, 0, 1], "GETSTAT itself included"
        assert four.addrinfo == [rpcbs_addrlist(100003, 4, 1, 0, b"tcp"), rpcbs_addrlist(100003, 9, 0, 1, b"tcp")]
        assert [(each.setinfo, each.unsetinfo, each.rmtinfo) for each in (two, three, four)] == [(0, 0, [])] * 3
        for version in (2, 3):
            with pytest.raises(CallbackError, match="PROC_UNAVAIL"):
                await rig.ask(version, 12, (None, None), rpcb_stat_byvers)
        await rig.udp.listen("127.0.0.1", 0)
        call = message(4, 12, (None, None))
        reply = await rig.datagram(call)
        assert reply[20:] == struct.pack(">I", 3), "PROC_UNAVAIL: a list, as above"
        assert len(reply) < len(call)

    run(test)


def test_statistics_of_whatever_callers_ask_for_are_bounded() -> None:
    async def test(rig: Rig) -> None:
        await rig.udp.listen("127.0.0.1", 0)
        for program in range(200_000, 200_300):
            rig.udp.datagram_received(message(4, 3, (rpcb, rpcb(program, 1, b"x" * 1000, b"", b""))), ("127.0.0.1", 9))
            rig.udp.datagram_received(message(4, 3, (rpcb, rpcb(program, 1, b"tcp", b"", b""))), ("127.0.0.1", 9))
            await asyncio.sleep(0)
        assert await rig.address(4, 100003, b"tcp") == b"10.0.0.1.8.1"
        _, _, four = await rig.ask(4, 12, (None, None), rpcb_stat_byvers)
        assert four.info[3] == 601
        assert len(four.addrinfo) == 64
        assert rpcbs_addrlist(100003, 4, 1, 0, b"tcp") in four.addrinfo, "what is served comes first"

    run(test)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "0.0.0.0", *(pytest.param(host, marks=needs_ipv6) for host in ("::1", "::"))]
)
def test_datagrams_are_answered_unless_the_answer_is_a_list(host: str) -> None:
    async def test(rig: Rig) -> None:
        await rig.udp.listen(host, 0)
        to = "::1" if ":" in host else "127.0.0.1"
        reply = await rig.datagram(message(2, 3, (mapping, mapping(100003, 3, 6, 0))), to)
        assert accepted(reply).decode(uint32) == 2049
        reply = await rig.datagram(message(4, 3, (rpcb, rpcb(100024, 1, b"", b"", b""))), to)
        found = accepted(reply).decode(Annotated[bytes, opaque(100)])
        assert found == (b"127.0.0.1.16.5" if to == "127.0.0.1" else b"")
        lists = [message(version, 4, (None, None)) for version in (2, 3, 4)]
        for call in [*lists, message(4, 11, (rpcb, rpcb(100003, 4, b"", b"", b"")))]:
            # No amplifier: what comes back at once, wherever the call claims to come from, is shorter than the call.
            reply = await rig.datagram(call, to)
            assert reply[20:] == struct.pack(">I", 3), "PROC_UNAVAIL (RFC 5531 section 9)"
            assert len(reply) < len(call)
        for octets in (b"", b"\0" * 3, b"\xff" * 60, bytes(5000), message(2, 0, (None, None))[:30]):
            await rig.datagram(octets, to)  # whatever it is: the next one is answered

    run(test)


def test_calls_that_wait_are_bounded() -> None:
    """Of one host, so that others are served, and in all."""

    async def main() -> None:
        waiting = 0
        ended = asyncio.Event()

        async def slow(call: Any, arguments: None) -> None:
            nonlocal waiting
            waiting += 1
            await ended.wait()

        hosts = Hosts(Pool(1 << 24), HostLimits(host_calls=4))
        slow_program = Program(PORTMAP, "slow", {2: {0: Procedure("SLOW", slow)}})
        listener = UdpListener(Dispatcher([slow_program]), Visits(hosts))
        await listener.listen("127.0.0.1", 0)
        busy = hosts.enter("127.0.0.99", 0.0)  # this one calls over TCP as well
        assert busy.begin_call()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect(("127.0.0.1", listener.address[1]))
            loop = asyncio.get_running_loop()
            for _ in range(150):
                listener.datagram_received(message(2, 0, (None, None)), sock.getsockname())
            assert waiting == MOST_OF_HOST
            for _ in range(150):
                listener.datagram_received(message(2, 0, (None, None)), ("127.0.0.99", 9))
            assert waiting == MOST_OF_HOST + 3, "its call over TCP is the fourth"
            # Who can put its address into a datagram does not keep it from calling.
            for _ in range(3):
                assert busy.begin_call()
            assert not busy.begin_call()
            for number in range(2, 99):
                listener.datagram_received(message(2, 0, (None, None)), (f"127.0.0.{number}", 9))
            assert waiting == MOST
            assert hosts.events["dropped_datagrams"] == 150 - 8 + 150 - 3 + 97 - (MOST - 11)
            ended.set()
            for _ in range(MOST_OF_HOST):
                await asyncio.wait_for(loop.sock_recv(sock, 100), 10)
        assert (hosts.calls, busy.host.calls) == (4, 4)
        assert not listener._visits._of
        listener.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("address", "port"),
    [(b"1.2.3.4.8.1", 2049), (b"::1.255.255", 65535), (b"1.2", 258), (b"", 0), (b"8", 0), (b"1.2.3.4.300.1", 0),
     (b"a.b", 0), (b"1.-1", 0), (b"1.0001", 0)],
)  # fmt: skip
def test_ports_of_universal_addresses(address: bytes, port: int) -> None:
    assert port_of_universal_address(address) == port


def test_a_host_is_forgotten_although_a_datagram_came_in_its_name() -> None:
    hosts = Hosts(Pool(1 << 24), HostLimits())
    visits = Visits(hosts)
    seat = hosts.enter("192.0.2.1", 0.0)
    visit = visits.begin("192.0.2.1")
    assert visit is not None
    hosts.leave(seat)
    visits.end(visit)
    assert len(hosts) == 0
