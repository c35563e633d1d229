"""Credits, Receives and memory (RFC 8166 section 3.3, RFC 8167 section 4)."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcrdma.engine.config import ResponderOptions
from rpcrdma.engine.credits import Credits
from rpcrdma.memory import OutOfMemory
from rpcrdma.peer.wire import words
from rpcrdma.server.rdma import RdmaServerOptions
from rpcrdma.wire.private_data import PrivateData
from tests.peer import ERR_CHUNK, ERROR, MSG, NULL, accept_status, echo_arguments, echo_results, header, rpc_call, run
from tests.rfc.plugin import covers


def null(xid: int) -> bytes:
    return header(xid) + rpc_call(xid, procedure=NULL)


def echo(xid: int, data: bytes = b"data") -> bytes:
    return header(xid) + rpc_call(xid, echo_arguments([data]).octets)


@covers("RFC 8166 3.3.1 grant")
def test_every_reply_grants_the_configured_credits():
    async def test(rig, peer):
        for xid in range(1, 300):
            assert (await peer.call(null(xid))).credit == 7

    run(test, credits=7)


@covers("RFC 8166 3.3.1 requests-ignored", "RFC 8166 4.2.3 credits")
@pytest.mark.parametrize("asked", [0, 1, 7, 8, 0xFFFFFFFF])
def test_the_grant_does_not_depend_on_what_is_asked(asked):
    """A requester uses the lower of both values anyway (section 3.3.1); zero would be a deadlock."""

    async def test(rig, peer):
        assert (await peer.call(header(1, credit=asked), rpc_call(1, procedure=NULL))).credit == 7

    run(test, credits=7)


@covers("RFC 8166 3.3.1 grant")
@pytest.mark.parametrize("message", [words(1, 9, 1, 0, 0, 0, 0), words(1, 1, 1, 9, 0, 0, 0)])
def test_errors_grant_credits_too(message):
    async def test(rig, peer):
        reply = await peer.call(message)
        assert (reply.procedure, reply.credit) == (ERROR, 7)

    run(test, credits=7)


@covers("RFC 8166 3.3.1 repost-first")
def test_receives_are_posted_before_the_first_call():
    async def test(rig, peer):
        assert rig.connection._endpoint.posted_receives == 7 + 3

    run(test, credits=7, backward_credits=3)


def test_a_peer_that_keeps_to_its_credits_always_finds_a_receive():
    """Calls of all sorts, as many outstanding as were granted, finished in random order."""

    async def test(rig):
        chance = random.Random(7)
        peer = await rig.peer()
        rig.control.gate = asyncio.Event()
        limit, outstanding, sent, answered = 1, 0, 0, 0
        data = peer.readable(bytes(5000))
        while answered < 600:
            while outstanding < limit and sent < 600:
                sent += 1
                outstanding += 1
                arguments = echo_arguments([bytes(5000)])
                kind = chance.randrange(4)
                if kind == 0:
                    peer.send(echo(sent))
                elif kind == 1:
                    peer.send(words(sent, 1, 1, 9, 0, 0, 0))
                elif kind == 2:
                    reads = [(arguments.positions[0], data.segment())]
                    peer.send(header(sent, reads=reads), rpc_call(sent, arguments.without(0)))
                else:
                    peer.send(null(sent))
            if chance.random() < 0.1 or outstanding == limit:
                rig.control.gate.set()
                await asyncio.sleep(0)
                rig.control.gate.clear()
            await asyncio.sleep(0)
            while peer.waiting:
                reply = await peer.reply()
                outstanding -= 1
                answered += 1
                limit = reply.credit
                assert 1 <= limit <= 16
        rig.control.gate.set()

    run(test, credits=16, remote_invalidation=False)


def test_all_credits_may_be_in_flight_at_once_and_replies_come_in_any_order():
    async def test(rig, peer):
        rig.control.gate = asyncio.Event()
        await peer.call(null(1))
        for xid in range(100, 228):
            peer.send(echo(xid, b"%d" % xid))
        await rig.until(lambda: rig.control.running == 128)
        rig.control.gate.set()
        replies = [await peer.reply() for _ in range(128)]
        assert sorted(reply.xid for reply in replies) == list(range(100, 228))
        for reply in replies:
            assert reply.credit == 128
            assert reply.payload == echo_results(echo_arguments([b"%d" % reply.xid]), reply.xid)

    run(test)


@covers("RFC 8166 3.3.1 overrun")
def test_a_peer_that_overruns_its_credits_is_bounded():
    """Section 3.3.1 lets the connection break; memory and calls in flight must not grow with it."""

    async def test(rig, peer):
        rig.control.gate = asyncio.Event()
        for xid in range(1000):
            if peer.reason is None:
                peer.send(echo(xid))
                await rig.settle()
        assert peer.reason == "no Receive is posted"
        assert 16 <= rig.control.running <= 4 * 8
        assert rig.pool.in_use <= 60 * 4096

    run(test, credits=8)


def test_a_peer_that_takes_no_replies_is_bounded():
    async def test(rig, peer):
        peer.reposts = False
        for xid in range(1000):
            peer.send(words(xid, 1, 1, 9, 0, 0, 0))
        await peer.over()
        assert rig.pool.in_use == 0 or rig.pool.in_use <= 60 * 4096

    run(test, credits=8)


# Memory


def test_calls_wait_for_memory_and_are_all_answered():
    """Sixteen WRITEs of a megabyte on a share of eight: the second half is read when the first is done."""

    async def test(rig, peer):
        rig.control.gate = asyncio.Event()
        data = random.Random(1).randbytes(1 << 20)
        arguments = echo_arguments([data], dropped=[0])
        source = peer.readable(data)
        await peer.call(null(999))
        for xid in range(16):
            reads = [(arguments.positions[0], source.segment())]
            peer.send(header(xid, reads=reads), rpc_call(xid, arguments.without(0)))
        await rig.until(lambda: rig.control.running == 8)
        await rig.settle()
        assert rig.control.running == 8
        assert rig.server.counters.memory_waits > 0
        rig.control.gate.set()
        replies = [await peer.reply() for _ in range(16)]
        assert sorted(reply.xid for reply in replies) == list(range(16))
        assert all(reply.procedure == MSG for reply in replies)

    run(test, options=RdmaServerOptions(ResponderOptions(credits=16, remote_invalidation=False), 8 << 20))


def test_results_wait_for_memory():
    async def test(rig, peer):
        data = bytes(range(256)) * 4096
        arguments = echo_arguments([data])
        target = peer.writable(len(data))
        source = peer.readable(data)
        for xid in range(12):
            reads = [(arguments.positions[0], source.segment())]
            message = header(xid, reads=reads, writes=[[target.segment()]])
            peer.send(message, rpc_call(xid, arguments.without(0)))
        replies = [await peer.reply() for _ in range(12)]
        assert {reply.procedure for reply in replies} == {MSG}
        assert target.memory == data

    run(test, options=RdmaServerOptions(ResponderOptions(credits=16, remote_invalidation=False), 16 << 20))


def test_operations_give_up_on_memory_after_a_while():
    """Four calls that hold all memory and each want more can never go on: they fail, and the others live."""

    async def test(rig, peer):
        data = bytes(2 << 20)
        arguments = echo_arguments([data])
        source = peer.readable(data)
        for xid in range(4):
            reads = [(arguments.positions[0], source.segment())]
            peer.send(header(xid, reads=reads), rpc_call(xid, arguments.without(0)))
        replies = [await peer.reply() for _ in range(4)]
        assert {(reply.procedure, accept_status(reply.payload)) for reply in replies if reply.payload} == {(MSG, 5)}
        assert accept_status((await peer.call(null(9))).payload) == 0

    options = RdmaServerOptions(
        ResponderOptions(max_call_size=2 << 20, remote_invalidation=False), 8 << 20, lease_timeout=0.05
    )
    run(test, options=options)


def test_fewer_receives_mean_fewer_credits():
    """The pool has memory for 2048 Receives; what another user leaves decides what a connection gets."""

    async def test(rig):
        hog = rig.pool.account(8 << 20)
        leases = [hog.lease(4096) for _ in range(2048 - 20)]
        peer = await rig.peer()
        reply = await peer.call(null(1))
        assert 1 <= reply.credit <= 16
        second_credit = (await peer.call(null(2))).credit
        assert 1 <= second_credit <= 16
        for lease in leases:
            lease.release()
        assert (await peer.call(null(3))).credit == 16

    run(test, pool_limit=8 << 20)


def test_replies_go_out_while_no_memory_is_left_for_send_buffers():
    async def test(rig, peer):
        hog = rig.pool.account(256 << 20)
        leases = []
        with contextlib.suppress(OutOfMemory):
            while True:
                leases.append(hog.lease(1024))
        for xid in range(1, 200):
            assert (await peer.call(null(xid))).procedure == MSG
        for lease in leases:
            lease.release()

    run(test, pool_limit=8 << 20)


def test_a_connection_without_memory_for_receives_is_rejected():
    async def test(rig):
        hog = rig.pool.account(8 << 20)
        leases = [hog.lease(4 << 20), hog.lease(4 << 20)]
        with pytest.raises(ConnectionRefusedError):
            await rig.peer()
        assert rig.server.rejected == 1
        for lease in leases:
            lease.release()
        await (await rig.peer()).call(null(1))

    run(test, pool_limit=8 << 20)


@covers("RFC 8166 3.3.1 never-zero")
def test_the_last_receive_is_never_granted_away():
    """With one Receive posted and memory for no other, a reply waits until the next Receive is posted."""

    async def test(rig):
        hog = rig.pool.account(8 << 20)
        leases = [hog.lease(4096) for _ in range(2047)]
        peer = await rig.peer()
        rig.control.gate = asyncio.Event()
        peer.send(null(1))
        await rig.settle()
        # The call's own buffer became the next Receive.
        reply = await peer.reply()
        assert reply.credit == 1
        for xid in range(2, 50):
            assert (await peer.call(null(xid))).credit == 1
        for lease in leases:
            lease.release()

    run(test, pool_limit=8 << 20)


# The ledger alone


@covers("RFC 8166 3.3.1 grant")
@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(0, 2),
    st.lists(st.sampled_from(["call", "answer", "post", "sent", "back", "backreply"]), max_size=200),
)
def test_no_sequence_of_events_breaks_the_promise(limit, backward_limit, events):
    """A requester that sends whenever its credits allow, a responder short of everything: there is a Receive for each
    message. ``posted`` below zero would be a broken connection."""
    ledger = Credits(limit, backward_limit, limit + backward_limit)
    promised, unanswered = 1, 0
    for event in events:
        if event == "call" and unanswered < promised:
            unanswered += 1
            ledger.posted -= 1
            ledger.outstanding += 1
        elif event == "answer" and ledger.outstanding:
            grant = ledger.grant()
            if grant:
                ledger.outstanding -= 1
                ledger.unsent += 1
                unanswered -= 1
                promised = grant
        elif event == "post" and ledger.wanted() > 0:
            ledger.posted += 1
        elif event == "sent" and ledger.unsent:
            ledger.unsent -= 1
        elif event == "back" and ledger.backward < backward_limit and ledger.can_call_back():
            ledger.backward += 1
        elif event == "backreply" and ledger.backward:
            ledger.backward -= 1
            ledger.posted -= 1
        assert ledger.posted >= 0
        assert ledger.posted >= promised - unanswered + ledger.backward
        assert 1 <= promised <= limit
        assert ledger.posted <= ledger.target
    # With time, everything that is short comes back, and so does the whole grant.
    ledger.unsent = 0
    while ledger.wanted() > 0:
        ledger.posted += 1
    while ledger.outstanding:
        assert ledger.grant() >= 1
        ledger.outstanding -= 1
        while ledger.wanted() > 0:
            ledger.posted += 1
    assert ledger.posted == ledger.target


# RFC 8797 on a connection


@covers("RFC 8797 4.2 sizes", "RFC 8166 3.3.2 send-size")
@pytest.mark.parametrize(
    ("own", "peer_sizes", "threshold"),
    [
        ((4096, 4096), (4096, 4096), 4096),
        ((4096, 4096), (4096, 1024), 1024),
        ((2048, 8192), (4096, 65536), 2048),
        ((65536, 1024), (1024, 16384), 16384),
        ((262144, 262144), (262144, 262144), 262144),
    ],
)
def test_thresholds_of_both_peers_bound_what_is_sent(own, peer_sizes, threshold):
    async def test(rig):
        send, receive = peer_sizes
        peer = await rig.peer(PrivateData(True, send, receive).encode(), receive_size=receive)
        assert peer.private_data == PrivateData(True, *own).encode()
        room = threshold - 28 - len(echo_results(echo_arguments([]), 1))
        arguments = echo_arguments([], filler=room)
        peer.send(header(1), rpc_call(1, arguments.octets))
        assert len((await peer.message()).octets) == threshold
        peer.send(header(2), rpc_call(2, echo_arguments([], filler=room + 1).octets))
        assert (await peer.reply()).error == ERR_CHUNK

    send, receive = own
    run(test, send_size=send, receive_size=receive)


@covers("RFC 8166 3.3.2 receive-size", "RFC 8797 4.2 sizes")
def test_calls_up_to_our_receive_size_are_taken():
    async def test(rig):
        peer = await rig.peer(PrivateData(True, 262144, 4096).encode())
        arguments = echo_arguments([bytes(60000)], dropped=[0])
        message = header(1) + rpc_call(1, arguments.octets)
        reply = await peer.call(message + bytes(65536 - len(message)))
        assert accept_status(reply.payload) in (0, 4)
        peer.send(bytes(65537))
        assert "longer" in await peer.over()

    run(test, receive_size=65536)


@covers("RFC 8166 3.3.3 start", "RFC 8797 5.1 absent")
@pytest.mark.parametrize(
    "private_data", [b"", b"\0" * 56, b"something else entirely", b"\xf6\xab\x0e\x18\x02\x01\x03\x03"]
)
def test_peers_without_private_data_get_1024_octets_and_no_invalidation(private_data):
    async def test(rig):
        peer = await rig.peer(private_data, receive_size=1024)
        assert peer.private_data == PrivateData(True, 4096, 4096).encode()
        target = peer.writable(64)
        peer.send(header(1, writes=[[target.segment()]]), rpc_call(1, echo_arguments([b"x" * 64]).octets))
        message = await peer.message()
        assert message.invalidated is None
        arguments = echo_arguments([], filler=1024 - 28 - len(echo_results(echo_arguments([]), 2)))
        peer.send(header(2), rpc_call(2, arguments.octets))
        assert len((await peer.message()).octets) == 1024
        peer.send(header(3), rpc_call(3, echo_arguments([], filler=arguments.filler + 1).octets))
        assert (await peer.reply()).error == ERR_CHUNK

    run(test)


@covers("RFC 8797 5.2 any-offset")
def test_private_data_behind_another_layers_header():
    async def test(rig):
        peer = await rig.peer(b"\x80\x20\x00\x10MPAv2 or so" + PrivateData(True, 4096, 4096).encode() + bytes(40))
        target = peer.writable(64)
        peer.send(header(1, writes=[[target.segment()]]), rpc_call(1, echo_arguments([b"x" * 64]).octets))
        assert (await peer.message()).invalidated == target.handle

    run(test)


@covers("RFC 8797 5.1 per-connection")
def test_a_reconnection_may_bring_other_properties():
    async def test(rig):
        for receive in (4096, 1024, 2048):
            peer = await rig.peer(PrivateData(receive != 1024, 4096, receive).encode())
            assert rig.connection.responder.versions.properties.send_threshold == receive
            assert rig.connection.responder.versions.properties.remote_invalidation == (receive != 1024)
            peer.endpoint.close(abort=True)
            await rig.until(lambda: not rig.server.connections)

    run(test)


@pytest.mark.parametrize(
    "bad",
    [
        {"credits": 0},
        {"backward_credits": -1},
        {"send_size": 1000},
        {"receive_size": 524288},
        {"receive_size": 4097},
        {"max_call_size": (4 << 20) + 1},
        {"max_segments": 16},
    ],
)
def test_options_that_cannot_work_are_refused(bad):
    with pytest.raises(ValueError, match=r"must|least|multiple|demands"):
        ResponderOptions(**bad)


def test_nothing_is_left_of_operations_that_gave_up_on_memory():
    """However long memory is short: what they waited with would pile up."""

    async def test(rig, peer):
        await peer.call(null(1))
        hog = rig.pool.account(256 << 20)
        leases = []
        with contextlib.suppress(OutOfMemory):
            while True:
                leases.append(hog.lease(1 << 20))
        (connection,) = rig.server.connections
        outcomes = await asyncio.gather(*(connection.lease(1 << 20) for _ in range(50)), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {OutOfMemory}
        assert rig.pool.waiting == 0
        for lease in leases:
            lease.release()
        (await connection.lease(1 << 20)).release()

    run(test, options=RdmaServerOptions(ResponderOptions(remote_invalidation=False), 8 << 20, lease_timeout=0.05))
