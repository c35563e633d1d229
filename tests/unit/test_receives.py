"""Receives grow with use and with what is asked for (RFC 8166 section 3.3), and idle connections hold little."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcrdma.engine.config import ResponderOptions
from rpcrdma.engine.credits import Credits
from rpcrdma.hosts import HostLimits
from rpcrdma.server.rdma import RdmaServerOptions
from rpcrdma.verbs.loopback import LoopbackProvider
from rpcrdma.verbs.softiwarp.provider import SoftIwarp
from tests.peer import NULL, Peer, Rig, accept_status, echo_arguments, header, rpc_call, run
from tests.unit.rpc_support import call
from tests.unit.tcp_support import Service

MIB = 1 << 20
OPTIONS = RdmaServerOptions(ResponderOptions(credits=128))
PROVIDERS = pytest.mark.parametrize("provider", [LoopbackProvider, SoftIwarp], ids=["loopback", "softiwarp"])


def null(xid: int, credit: int = 128) -> bytes:
    return header(xid, credit=credit) + rpc_call(xid, procedure=NULL)


async def from_address(rig: Rig, address: str) -> Peer:
    """A peer at this address (loopback only)."""
    rig.provider.client_address = type(rig.listener.address)(address, 1021)
    return await rig.peer()


@PROVIDERS
def test_credits_double_as_they_are_used_up_and_no_more_is_granted_than_is_posted(provider):
    async def test(rig, peer):
        grants = []
        for xid in range(300):
            grants.append((await peer.call(null(xid))).credit)
            assert grants[-1] <= rig.connection.responder.credits.posted
        assert [grants.index(credit) for credit in (16, 32, 64, 128)] == [0, 16, 48, 112]
        assert set(grants) == {16, 32, 64, 128}
        # And the whole of it may be used at once.
        for xid in range(1000, 1128):
            peer.send(null(xid))
        assert {(await peer.reply()).xid for _ in range(128)} == set(range(1000, 1128))

    run(test, provider=provider, options=OPTIONS)


def test_a_peer_that_asks_for_few_gets_no_more_than_it_asks_for():
    async def test(rig, peer):
        for xid in range(200):
            assert (await peer.call(null(xid, credit=24))).credit == (16 if xid < 16 else 24)
        assert rig.pool.in_use == 4096 * (24 + 4)

    run(test, options=OPTIONS)


async def grown(rig, peer):
    """All credits there are, and then a minute without a call."""
    for xid in range(200):
        last = (await peer.call(null(xid))).credit
    assert last == 128
    now = asyncio.get_running_loop().time()
    rig.server.check_times(now + 61)  # it was busy
    assert rig.connection.responder.credits.limit == 128
    rig.server.check_times(now + 122)


@PROVIDERS
def test_receives_shrink_when_they_are_not_used_any_more(provider):
    async def test(rig, peer):
        await grown(rig, peer)
        assert rig.pool.in_use >= 4096 * 132, "those posted are the peer's until it has heard"
        for xid in range(1000, 1200):
            assert (await peer.call(null(xid, credit=16))).credit == 16
        await rig.until(lambda: rig.connection.responder.credits.posted == 20 and rig.pool.in_use <= 4096 * 24)
        # And grow again.
        for xid in range(2000, 2200):
            last = (await peer.call(null(xid))).credit
        assert last == 128

    run(test, provider=provider, options=OPTIONS)


@PROVIDERS
def test_a_peer_that_has_not_heard_of_fewer_credits_may_use_those_it_had(provider):
    async def test(rig, peer):
        await grown(rig, peer)
        for number in range(4):
            for xid in range(128 if number == 0 else 16):
                peer.send(null(xid, credit=16))
            answers = [await peer.reply() for _ in range(128 if number == 0 else 16)]
            assert {answer.credit for answer in answers} == {16}
            assert peer.reason is None
        assert rig.connection.responder.credits.posted == 20

    run(test, provider=provider, options=OPTIONS)


def test_receives_do_not_grow_while_memory_is_short_and_do_afterwards():
    async def test(rig, peer):
        hog = rig.pool.account(256 * MIB)
        held = [hog.lease(4 * MIB) for _ in range(50)]
        for xid in range(100):
            assert (await peer.call(null(xid))).credit == 16
        for lease in held:
            lease.release()
        for xid in range(200):
            last = (await peer.call(null(xid))).credit
        assert last == 128

    run(test, options=OPTIONS)


def test_idle_connections_of_one_host_leave_memory_for_others():
    """A thousand of them took everything: 132 Receives each."""

    async def test(rig):
        for _ in range(1000):
            with contextlib.suppress(ConnectionRefusedError):
                await from_address(rig, "192.0.2.1")
        assert rig.hosts.connections == 256
        await rig.until(lambda: rig.pool.in_use <= 256 * 20 * 4096)
        honest = await from_address(rig, "192.0.2.2")
        arguments = echo_arguments([bytes(MIB)])
        source, target = honest.readable(bytes(MIB)), honest.writable(MIB)
        for xid in range(300):
            assert accept_status((await honest.call(null(xid))).payload) == 0
        reads = [(arguments.positions[0], source.segment())]
        message = header(1, reads=reads, writes=[[target.segment()]])
        reply = await honest.call(message, rpc_call(1, arguments.without(0)))
        assert (reply.error, reply.credit) == (0, 128)

    run(test, options=OPTIONS, pool_limit=64 * MIB, hosts=HostLimits(host_memory=32 * MIB))


def test_connections_that_made_calls_stay_while_silent_ones_come():
    async def test(rig):
        honest = await from_address(rig, "192.0.2.1")
        await honest.call(null(1))
        for number in range(60):
            with contextlib.suppress(ConnectionRefusedError):
                await from_address(rig, f"192.0.2.{1 + number % 3}")
        assert honest.reason is None
        assert (await honest.call(null(2))).credit == 16
        await rig.until(lambda: len(rig.server.connections) == rig.hosts.connections == 12)

    run(test, options=OPTIONS, hosts=HostLimits(connections=12, host_connections=5))


def test_calls_in_progress_of_a_host_are_bounded_over_all_its_connections():
    async def test(rig):
        rig.control.gate = asyncio.Event()
        peers = [await rig.peer() for _ in range(3)]
        for peer in peers:
            for xid in range(10):
                peer.send(header(xid) + rpc_call(xid, echo_arguments([b"data"]).octets))
        await rig.until(lambda: rig.control.running == 12)
        await rig.settle()
        assert rig.control.running == 12
        rig.control.gate.set()
        for peer in peers:
            assert {(await peer.reply()).xid for _ in range(10)} == set(range(10))
        assert rig.hosts.statistics()["calls"] == 0

    run(test, options=OPTIONS, hosts=HostLimits(host_calls=12))


def test_a_host_at_its_bound_of_calls_may_lose_a_connection_with_calls_held_back():
    async def test(rig):
        rig.control.gate = asyncio.Event()
        peers = [await rig.peer() for _ in range(3)]
        for peer in peers:
            for xid in range(10):
                peer.send(header(xid) + rpc_call(xid, echo_arguments([b"data"]).octets))
        await rig.until(lambda: rig.control.running == 12)
        peers[1].endpoint.close(abort=True)
        await rig.until(lambda: len(rig.server.connections) == 2)
        rig.control.gate.set()
        for peer in (peers[0], peers[2]):
            assert {(await peer.reply()).xid for _ in range(10)} == set(range(10))
        await rig.until(lambda: rig.hosts.statistics()["calls"] == 0)

    run(test, options=OPTIONS, hosts=HostLimits(host_calls=12))


def test_readers_that_take_nothing_lose_their_connections_when_memory_is_short():
    async def test(rig):
        loop = asyncio.get_running_loop()
        real, watched = loop.add_reader, set()
        loop.add_reader = lambda fd, *callback: (watched.add(fd), real(fd, *callback))
        slow = [await rig.peer() for _ in range(4)]
        loop.add_reader = real
        for fd in watched:
            with socket.socket(fileno=os.dup(fd)) as sock, contextlib.suppress(OSError):
                if sock.getpeername()[1] == rig.listener.address.port:
                    loop.remove_reader(fd)
        for peer in slow:
            target = peer.writable(MIB)
            for xid in range(16):
                peer.send(header(xid, writes=[[target.segment()]]) + bytes(call(3, MIB.to_bytes(4, "big"), xid=xid)))
        await rig.until(lambda: rig.hosts.statistics()["most_memory_of_a_host"] > 30 * MIB)
        now = loop.time()
        for later in range(18):
            rig.server.check_times(now + later)
        await rig.until(lambda: rig.hosts.events["closed_stuck"] and rig.pool.in_use < 16 * MIB)
        peer = await rig.peer()
        assert accept_status((await peer.call(null(1))).payload) == 0

    run(
        test,
        provider=SoftIwarp,
        options=OPTIONS,
        pool_limit=64 * MIB,
        hosts=HostLimits(host_memory=32 * MIB),
        programs=[Service().program()],
    )


@pytest.mark.parametrize(
    "addresses",
    [
        [f"2001:db8:0:{number:x}::1" for number in range(41)],
        [f"2001:db8:0:{number * 256:x}::1" for number in range(41)],
        [f"2001:db8:{number:x}::1" for number in range(41)],
        [f"10.{number}.0.1" for number in range(41)],
    ],
    ids=["/64s of a /56", "/56s of a /48", "/48s of a /32", "IPv4"],
)
def test_a_host_gets_in_although_as_many_others_make_calls_as_may_be_connected(addresses):
    """One connection each, by which calls are made: nobody has more than the newcomer would have."""

    async def test(rig):
        for address in addresses[:-1]:
            await (await from_address(rig, address)).call(null(1))
        honest = await from_address(rig, addresses[-1])
        for xid in range(20):
            assert accept_status((await honest.call(null(xid))).payload) == 0
        await rig.until(lambda: len(rig.server.connections) == rig.hosts.connections == 40)
        assert rig.hosts.events["evicted_room"] == 1

    run(test, options=OPTIONS, hosts=HostLimits(connections=40))


@PROVIDERS
def test_a_connection_that_fails_after_it_was_accepted_is_closed(provider):
    """It would be there for ever: without a seat nobody bounds it, and in no list nobody looks at it."""

    async def test(rig):
        native_calls, rig.dispatcher.native_calls = rig.dispatcher.native_calls, None  # not to be called
        with contextlib.suppress(OSError):  # closed before it knows that it is connected
            peer = await rig.peer()
            await rig.until(lambda: peer.reason is not None)
        assert (rig.hosts.connections, rig.server.accepted) == (0, 0)
        await rig.until(lambda: not rig.pool.in_use)
        rig.dispatcher.native_calls = native_calls
        assert accept_status((await (await rig.peer()).call(null(1))).payload) == 0

    run(test, provider=provider, options=OPTIONS)


@given(st.integers(1, 16), st.integers(17, 200), st.lists(st.integers(0, 3), max_size=300))
def test_a_peer_that_keeps_to_what_it_has_heard_always_finds_a_receive_when_the_ledger_shrinks(few, many, steps):
    ledger = Credits(many, 0, many, many)
    ledger.shrink(few)
    heard, unanswered, coming, going = many, 0, 0, []
    for step in steps:
        if step in (0, 1) and unanswered < heard:  # a call is sent
            unanswered, coming = unanswered + 1, coming + 1
        elif step == 2 and coming:  # and comes
            assert ledger.posted > 0
            ledger.posted, ledger.outstanding, coming = ledger.posted - 1, ledger.outstanding + 1, coming - 1
        elif step == 3 and ledger.outstanding and (grant := ledger.grant()):  # and is answered
            ledger.outstanding -= 1
            going.append(grant)
            ledger.posted += ledger.wanted()
        if step == 1 and going:  # and the answer is heard
            heard, unanswered = going.pop(0), unanswered - 1
        assert coming <= ledger.posted


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 300)), max_size=60), st.integers(1, 200))
def test_the_ledger_never_promises_more_than_is_posted(batches, most):
    ledger = Credits(min(16, most), 4, min(16, most) + 4, most)
    for number, asked in batches:
        if ledger.due():
            before = ledger.limit
            ledger.grow()
            assert before < ledger.limit <= min(2 * before, most, ledger.asked)
            ledger.posted += ledger.wanted()
        calls = min(number, ledger.limit)
        ledger.posted -= calls
        ledger.outstanding += calls
        ledger.taken += calls
        ledger.asked = asked
        ledger.posted += ledger.wanted()
        while ledger.outstanding:
            assert ledger.grant() <= ledger.posted - ledger.backward + ledger.outstanding - 1
            ledger.outstanding -= 1
    assert ledger.target == ledger.limit + 4
