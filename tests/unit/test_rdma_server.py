"""The life of RDMA connections at the server: accept, failure, drain, end (RFC 8166 sections 4.5.3 to 4.5.5)."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from rpcrdma.engine.config import ResponderOptions
from rpcrdma.hosts import HostLimits
from rpcrdma.rpc.dispatch import NO_REPLY
from rpcrdma.server import rdma_connection
from rpcrdma.server.poisoned import MOST_ADDRESSES, MOST_POISONED, POISON_SECONDS, PoisonedCalls
from rpcrdma.server.rdma import RdmaServerOptions
from rpcrdma.verbs.loopback import LoopbackProvider
from rpcrdma.verbs.loopback.provider import LoopbackRequest
from rpcrdma.verbs.softiwarp.listener import HalfOpen
from rpcrdma.verbs.softiwarp.provider import SoftIwarp
from rpcrdma.wire import private_data
from tests.peer import (
    ERR_CHUNK,
    ERROR,
    MSG,
    NOMSG,
    NULL,
    Segment,
    accept_status,
    echo_arguments,
    echo_results,
    header,
    header_two,
    rpc_call,
    run,
)
from tests.rfc.plugin import covers
from tests.support.machine import needs_ipv6

XID = 77


def null(xid: int = XID) -> bytes:
    return header(xid) + rpc_call(xid, procedure=NULL)


def echo(xid: int = XID, **lists) -> bytes:
    return header(xid, **lists) + rpc_call(xid, echo_arguments([b"data"]).octets)


# Refused RDMA operations: section 4.5.3

BAD = Segment(0xBAD, 4, 0x1000)
BAD_CALLS = {
    "read": header(XID, reads=[(56, BAD)]) + rpc_call(XID, echo_arguments([b"data"]).without(0)),
    "long call": header(XID, procedure=NOMSG, reads=[(0, Segment(0xBAD, 60, 0))]),
    "write": echo(writes=[[BAD]]),
    "reply chunk": header(XID, reply=[Segment(0xBAD, 9000, 0)]) + rpc_call(XID, echo_arguments([], 5000).octets),
}


PROVIDERS = pytest.mark.parametrize("provider", [LoopbackProvider, SoftIwarp], ids=["loopback", "softiwarp"])


@covers("RFC 8166 4.5.3 refused-memory")
@PROVIDERS
@pytest.mark.parametrize("kind", BAD_CALLS)
def test_refused_memory_costs_the_connection_and_the_retransmission_gets_an_error(kind, provider):
    async def test(rig):
        peer = await rig.peer()
        peer.send(BAD_CALLS[kind])
        await peer.over()
        await rig.until(lambda: not rig.server.connections)
        peer = await rig.peer()
        reply = await peer.call(BAD_CALLS[kind])
        assert (reply.xid, reply.procedure, reply.error) == (XID, ERROR, ERR_CHUNK)
        # The XID's next use is another call.
        assert accept_status((await peer.call(null())).payload) == 0

    run(test, provider=provider)


@PROVIDERS
@pytest.mark.parametrize("wrong", ["out of bounds", "other access", "before the start"])
def test_every_kind_of_refusal(wrong, provider):
    async def test(rig, peer):
        memory = peer.readable(bytes(64)) if wrong == "other access" else peer.writable(64)
        segment = {
            "out of bounds": memory.segment(61, 4),
            "other access": memory.segment(),
            "before the start": Segment(memory.handle, 64, memory.base - 1),
        }[wrong]
        peer.send(echo(writes=[[segment]]))
        await peer.over()
        await rig.until(lambda: not rig.server.connections)
        assert set(rig.server.poisoned.of("127.0.0.1")) == {XID}

    run(test, provider=provider)


@PROVIDERS
def test_calls_lost_with_a_refused_one_are_executed_when_they_come_again(provider):
    """Only the refused call is at fault: what was flushed behind it, and other peers' XIDs, are not."""

    async def test(rig):
        peer = await rig.peer()
        target = peer.writable(4)
        peer.send(echo(1, writes=[[BAD]]))
        peer.send(echo(2, writes=[[target.segment()]]))
        await peer.over()
        await rig.until(lambda: not rig.server.connections)
        peer = await rig.peer()
        target = peer.writable(4)
        assert (await peer.call(echo(2, writes=[[target.segment()]]))).procedure == MSG
        assert (await peer.call(echo(1))).procedure == ERROR

    run(test, provider=provider)


def test_of_too_many_refused_calls_the_oldest_is_forgotten():
    poisoned = PoisonedCalls(lambda: 0.0)
    for xid in range(MOST_POISONED + 1):
        poisoned.add("192.0.2.1", xid)
    assert list(poisoned.of("192.0.2.1")) == list(range(1, MOST_POISONED + 1))
    for number in range(MOST_ADDRESSES):
        assert poisoned.of("192.0.2.1")
        poisoned.add(f"host {number}", 1)
    assert poisoned.of("192.0.2.1") is None


def test_a_connection_is_wary_of_what_was_before_it_only():
    """Another program of the peer's host, with a connection of its own, ends it with any XID it likes."""
    now = 0.0
    poisoned = PoisonedCalls(lambda: now)
    assert poisoned.of("192.0.2.1") is None
    poisoned.add("192.0.2.1", 1)
    first = poisoned.of("192.0.2.1")
    poisoned.add("192.0.2.1", 2)
    second = poisoned.of("192.0.2.1")
    assert (set(first), set(second)) == ({1}, {1, 2})
    assert bool(first)
    assert 2 not in first
    # The error was given, on whichever connection: the XID's next use is another call.
    second.discard(1)
    assert (bool(first), 1 in first, bool(second)) == (False, False, True)
    poisoned.add("192.0.2.1", 1)
    assert 1 not in first
    assert 1 not in second
    now = POISON_SECONDS + 1
    assert not second
    assert 2 not in second
    assert poisoned.of("192.0.2.1") is None


def test_an_ordinary_disconnection_in_the_middle_of_a_read_poisons_nothing():
    async def test(rig):
        arguments = echo_arguments([bytes(100)])
        peer = await rig.peer(responder_resources=1)
        source = peer.readable(bytes(100))
        reads = [(arguments.positions[0], part) for part in source.segments(*[10] * 10)]
        peer.send(header(XID, reads=reads), rpc_call(XID, arguments.without(0)))
        await rig.until(lambda: rig.server.counters.reads)
        peer.endpoint.close(abort=True)
        await rig.until(lambda: not rig.server.connections)
        peer = await rig.peer()
        source = peer.readable(bytes(100))
        reads = [(arguments.positions[0], source.segment())]
        reply = await peer.call(header(XID, reads=reads), rpc_call(XID, arguments.without(0)))
        assert reply.payload == echo_results(arguments, XID)

    run(test)


def test_poison_is_forgotten_after_a_while():
    async def test(rig):
        peer = await rig.peer()
        peer.send(BAD_CALLS["write"])
        await rig.until(lambda: not rig.server.connections)
        rig.now += 301
        peer = await rig.peer()
        assert (await peer.call(null())).procedure == MSG

    run(test)


def test_a_message_longer_than_the_peers_receive_is_never_sent_but_a_missing_receive_ends_only_that_connection():
    async def test(rig):
        other = await rig.peer()
        peer = await rig.peer()
        peer.reposts = False
        for xid in range(200):
            if peer.reason is None:
                peer.send(null(xid))
                await rig.settle()
        assert peer.reason == "no Receive is posted"
        assert accept_status((await other.call(null())).payload) == 0

    run(test)


# Disconnection with calls in flight


def test_operations_outlive_their_connection_and_their_replies_go_nowhere():
    async def test(rig, peer):
        rig.control.gate = asyncio.Event()
        data = peer.readable(bytes(50000))
        arguments = echo_arguments([bytes(50000)])
        reads = [(arguments.positions[0], data.segment())]
        peer.send(header(XID, reads=reads), rpc_call(XID, arguments.without(0)))
        await rig.until(lambda: rig.control.running)
        peer.endpoint.close(abort=True)
        await rig.until(lambda: not rig.server.connections)
        assert rig.pool.in_use >= 50000, "the operation still works with this memory"
        rig.control.gate.set()
        await rig.until(lambda: not rig.control.running)
        assert rig.pool.in_use == 0
        assert rig.server.counters.replies == 0

    run(test)


def test_calls_that_wait_for_memory_are_forgotten_with_their_connection():
    async def test(rig, peer):
        rig.control.gate = asyncio.Event()
        arguments = echo_arguments([bytes(1 << 20)])
        source = peer.readable(bytes(1 << 20))
        for xid in range(12):
            reads = [(arguments.positions[0], source.segment())]
            peer.send(header(xid, reads=reads), rpc_call(xid, arguments.without(0)))
        await rig.until(lambda: rig.control.running == 8)
        peer.endpoint.close(abort=True)
        await rig.until(lambda: not rig.server.connections)
        rig.control.gate.set()
        await rig.until(lambda: not rig.pool.in_use)
        assert rig.control.executed == 8

    run(test, options=RdmaServerOptions(ResponderOptions(remote_invalidation=False), 8 << 20))


def test_close_callbacks_run_once():
    async def test(rig, peer):
        await peer.call(null())
        (transport,) = rig.control.transports
        seen = []
        transport.on_close(lambda: seen.append(1))
        transport.on_close(lambda: 1 / 0)
        transport.on_close(lambda: seen.append(2))
        assert not transport.closed
        transport.close()
        assert await peer.over() == "closed by the peer"
        await rig.until(lambda: transport.closed)
        assert seen == [1, 2]
        transport.on_close(lambda: seen.append(3))
        assert seen == [1, 2, 3]
        with pytest.raises(ConnectionError):
            await transport.call_back(bytes(40))

    run(test)


# Replies that are none


@covers("RFC 8166 4.5.4 lost-reply")
def test_none_closes_the_connection():
    """Section 4.5.4: the peer must learn that there will be no reply."""

    async def test(rig, peer):
        rig.server.dispatcher = rig.connection._dispatcher = Mute(None)
        peer.send(null())
        assert await peer.over() == "closed by the peer"

    run(test)


class Mute:
    def __init__(self, reply) -> None:
        self._reply = reply

    def admits(self, transport):
        return True

    def dispatch(self, transport, data, chunks, holds, done, reply_room=0):
        for lease in holds:
            lease.release()
        if isinstance(self._reply, Exception):
            raise self._reply
        done(self._reply)


def test_no_reply_keeps_the_connection_and_its_receives():
    async def test(rig, peer):
        connection = rig.connection
        dispatcher, connection._dispatcher = connection._dispatcher, Mute(NO_REPLY)
        for xid in range(300):
            peer.send(null(xid))
            await rig.settle()
        connection._dispatcher = dispatcher
        assert (await peer.call(null())).credit == 8
        assert rig.server.counters.no_replies == 300

    run(test, credits=8)


@covers("RFC 8166 4.5.4 lost-reply")
def test_a_crash_of_ours_closes_the_connection_only():
    async def test(rig):
        other = await rig.peer()
        await rig.until(lambda: rig.server.connections)
        rig.connection._dispatcher = Mute(ZeroDivisionError("on purpose"))
        other.send(null())
        await other.over()
        peer = await rig.peer()
        assert (await peer.call(null())).procedure == MSG

    run(test)


# Accepting


def test_too_many_connections_are_rejected_with_our_private_data():
    async def test(rig):
        rig.control.gate = asyncio.Event()
        first = await rig.peer()
        await rig.peer()
        for peer in rig.peers:
            peer.send(echo())
        await rig.until(lambda: rig.control.running == 2)
        with pytest.raises(ConnectionRefusedError, match="f6ab0e18"):
            await rig.peer()
        assert rig.server.rejected == 1
        rig.control.gate.set()
        first.endpoint.close()
        await rig.until(lambda: len(rig.server.connections) == 1)
        await (await rig.peer()).call(null())

    run(test, hosts=HostLimits(host_connections=2))


@PROVIDERS
def test_peers_that_let_us_read_nothing_have_what_needs_no_read(provider):
    async def test(rig):
        peer = await rig.peer(responder_resources=0)
        arguments = echo_arguments([b"data"])
        source = peer.readable(b"data")
        for xid in (1, 3):
            assert (await peer.call(echo(xid))).payload == echo_results(arguments, xid)
            refused = header(xid + 1, reads=[(arguments.positions[0], source.segment())])
            reply = await peer.call(refused + rpc_call(xid + 1, arguments.without(0)))
            assert (reply.xid, reply.procedure, reply.error) == (xid + 1, ERROR, ERR_CHUNK)
        assert rig.server.counters.reads == 0

    run(test, provider=provider)


@covers("RFC 8797 4.1 either-clear")
@pytest.mark.parametrize("able", [True, False])
@pytest.mark.parametrize(("provider", "request_of"), [(LoopbackProvider, LoopbackRequest), (SoftIwarp, HalfOpen)])
def test_a_device_that_cannot_invalidate_says_so_and_does_not(provider, request_of, able, monkeypatch):
    monkeypatch.setattr(request_of, "can_invalidate", able)

    async def test(rig):
        peer = await rig.peer()
        assert private_data.find(peer.private_data).remote_invalidation is able
        target = peer.writable(4)
        for calls, version in enumerate((header, header_two), 1):
            if version is header_two:
                # It names its handle itself, and asks nobody.
                peer = await rig.peer()
                target = peer.writable(4)
                opening = header_two(XID, writes=[[target.segment()]], inv_handle=target.handle)
            else:
                opening = header(XID, writes=[[target.segment()]])
            peer.send(opening + rpc_call(XID, echo_arguments([b"data"]).octets))
            message = await peer.message()
            assert bytes(target.memory) == b"data"
            assert message.invalidated == (target.handle if able else None)
            assert rig.server.counters.invalidations == (calls if able else 0)

    run(test, provider=provider)


@covers("RFC 8166 9 netids")
@pytest.mark.parametrize(("host", "netid"), [("127.0.0.1", "rdma"), pytest.param("::1", "rdma6", marks=needs_ipv6)])
def test_netid_and_addresses_are_those_of_the_connection(host, netid):
    async def test(rig):
        rig.provider.client_address = type(rig.listener.address)(host, 1021)
        peer = await rig.peer()
        await peer.call(null())
        (transport,) = rig.control.transports
        assert (transport.netid, transport.peer_address, transport.peer_port) == (netid, host, 1021)
        assert transport.local_address == host
        assert transport.max_backchannel_size == 4096 - 28

    run(test, host=host)


# Ending


def test_draining_answers_what_was_taken_and_takes_no_more():
    async def test(rig, peer):
        rig.control.gate = asyncio.Event()
        peer.send(echo(1))
        await rig.until(lambda: rig.control.running)
        closing = asyncio.ensure_future(rig.server.close(drain=20))
        await rig.settle()
        peer.send(echo(2))
        await rig.settle()
        assert rig.control.executed == 1
        assert not closing.done()
        rig.control.gate.set()
        assert (await peer.reply()).xid == 1
        assert await peer.over() == "closed by the peer"
        await closing
        with pytest.raises(ConnectionRefusedError):
            await rig.peer()

    run(test)


def test_draining_ends_with_its_time():
    async def test(rig, peer):
        rig.control.gate = asyncio.Event()
        peer.send(echo(1))
        await rig.until(lambda: rig.control.running)
        await rig.server.close(drain=0.02)
        assert await peer.over() == "closed by the peer"
        assert peer.waiting == 0

    run(test)


def test_idle_connections_are_closed_and_busy_ones_kept():
    async def test(rig):
        idle, busy, working = await rig.peer(), await rig.peer(), await rig.peer()
        rig.control.gate = asyncio.Event()
        await idle.call(null())
        working.send(echo())
        await rig.until(lambda: rig.control.running)
        now = asyncio.get_running_loop().time()
        rig.server.check_times(now)
        await busy.call(null())
        rig.server.check_times(now + 300)
        rig.server.check_times(now + 370)
        assert await idle.over() == "closed by the peer"
        assert busy.reason is None
        assert working.reason is None
        rig.control.gate.set()
        await working.reply()

    run(test)


def test_a_retransmission_on_a_new_connection_is_executed():
    """The transport keeps nothing of a call beyond its connection; replay caches live above it."""

    async def test(rig):
        peer = await rig.peer()
        await peer.call(echo(5))
        peer.endpoint.close(abort=True)
        await peer.over()
        peer = await rig.peer()
        assert (await peer.call(echo(5))).payload == echo_results(echo_arguments([b"data"]), 5)
        assert rig.control.executed == 2

    run(test)


def test_counters_tell_what_happened():
    async def test(rig, peer):
        target = peer.writable(4)
        await peer.call(echo(writes=[[target.segment()]]))
        await peer.call(header(1, version=9), b"x" * 40)
        await peer.call(header(1, procedure=9), b"x" * 40)
        counters = dict(rig.server.counters.items())
        assert counters["receives"] == 3
        assert counters["calls"] == counters["replies"] == counters["invalidations"] == counters["writes"] == 1
        assert counters["write_bytes"] == 4
        assert counters["err_vers"] == counters["err_chunk"] == 1

    run(test)


def test_trace_points_say_why_a_call_was_refused(caplog):
    async def test(rig):
        with caplog.at_level("DEBUG", "rpcrdma.trace"):
            peer = await rig.peer()
            await peer.call(header(XID, reads=[(57, BAD)]), rpc_call(XID, procedure=NULL))
            await peer.call(BAD_CALLS["reply chunk"].replace(b"\0\0\x23\x28", b"\0\0\0\1"))
            target = peer.writable(4)
            await peer.call(echo(writes=[[target.segment()]]))
        # A connection made while tracing was off says nothing.
        peer = await rig.peer()
        await peer.call(header(1), b"x" * 40)
        points = [record.getMessage().partition(": ")[2].split(" ")[0] for record in caplog.records]
        assert points.count("svcrdma_decode_error") == 1
        assert points.count("svcrdma_small_chunk") == 1
        assert points.count("svcrdma_post_send") == 1
        assert "is not a multiple of four" in caplog.text
        assert "needs 5" in caplog.text

    run(test)


def test_every_turn_begins_a_call_however_slow_the_host_is(monkeypatch):
    now = itertools.count()
    monkeypatch.setattr(rdma_connection, "_clock", lambda: float(next(now)))

    async def test(rig, peer):
        for xid in range(20):
            assert (await peer.call(null(xid))).procedure == MSG

    run(test)
