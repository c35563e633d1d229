"""The responder as a state machine: its outputs after each input, without a provider or a server."""

from __future__ import annotations

import pytest

from rpcrdma.engine.backward import BackwardCall
from rpcrdma.engine.config import ResponderOptions
from rpcrdma.engine.responder import Responder
from rpcrdma.memory import Pool
from rpcrdma.wire.private_data import Properties
from rpcrdma.xdr.payload import Payload
from tests.peer import ERROR, MSG, NULL, ReplyHeader, Segment, echo_arguments, header, rpc_call
from tests.rfc.plugin import covers

BLOCK = 4096


class Reply:
    def __init__(self, head: bytes = b"head", payloads=()) -> None:
        self.head = head
        self.payloads = list(payloads)
        self.released = 0

    def release(self) -> None:
        self.released += 1
        for _, payload in self.payloads:
            payload.release()


class Harness:
    def __init__(self, *, blocks: int, credits: int = 4, memory: int = 8 << 20, invalidate: bool = False) -> None:  # noqa: A002
        self.pool = Pool(64 << 20)
        self.receive_account = self.pool.account(blocks * BLOCK)
        self.account = self.pool.account(memory)
        self.posted = [self.receive_account.lease(BLOCK) for _ in range(credits)]
        self.wakes = 0
        self.responder = Responder(
            ResponderOptions(credits=credits, backward_credits=0),
            Properties(4096, 4096, invalidate),
            credits,
            self.receive_account,
            self.account,
            self._wake,
        )

    def _wake(self) -> None:
        self.wakes += 1

    def receive(self, *messages: bytes) -> None:
        batch = []
        for message in messages:
            lease = self.posted.pop(0)
            lease.view[: len(message)] = message
            batch.append((lease, len(message), None))
        self.responder.received(batch)
        self.take_receives()

    def take_receives(self) -> None:
        self.posted += self.responder.receives
        self.responder.receives.clear()

    def calls(self):
        taken, self.responder.calls = self.responder.calls, []
        return taken

    def sent(self):
        """The headers of what is to be sent; everything completes at once."""
        chains, self.responder.chains = self.responder.chains, []
        headers = [ReplyHeader.parse(b"".join(bytes(part) for part in send.segments)) for _, send, _ in chains]
        for _, _, token in chains:
            self.responder.completed(token, True)
        self.take_receives()
        return headers


def null(xid: int) -> bytes:
    return header(xid) + rpc_call(xid, procedure=NULL)


def finish(call) -> None:
    """What a dispatcher does with the holds when the call is over."""
    for lease in call.holds:
        lease.release()


@covers("RFC 8166 3.3.1 never-zero")
def test_a_reply_waits_while_no_receive_backs_even_one_credit():
    """Every call's operation keeps its receive buffer, and no other is to be had: section 3.3.1 forbids to grant zero,
    and forbids to grant what is not there."""
    harness = Harness(blocks=4)
    harness.receive(*[null(xid) for xid in range(4)])
    assert harness.posted == []
    calls = harness.calls()
    for call in calls[:3]:
        harness.responder.reply(call, Reply())
    assert [reply.credit for reply in harness.sent()] == [3, 2, 1]
    harness.responder.reply(calls[3], Reply())
    assert harness.sent() == []
    assert harness.responder.counters.starved_grants > 0
    # One buffer comes back: it is posted first, then the reply goes out.
    finish(calls[0])
    assert harness.wakes == 1
    assert len(harness.responder.receives) == 1
    assert [reply.credit for reply in harness.sent()] == [1]
    for call in calls[1:]:
        finish(call)
    harness.take_receives()
    assert len(harness.posted) == 4
    harness.receive(null(9))
    (call,) = harness.calls()
    finish(call)
    harness.responder.reply(call, Reply())
    assert [reply.credit for reply in harness.sent()] == [4]


@covers("RFC 8166 3.3.1 repost-first")
def test_receives_are_an_output_before_the_call_is_handed_up():
    harness = Harness(blocks=8)
    lease = harness.posted.pop()
    message = null(1)
    lease.view[: len(message)] = message
    harness.responder.received([(lease, len(message), None)])
    assert len(harness.responder.receives) == 1
    assert len(harness.responder.calls) == 1


@covers("RFC 8166 3.4.5.1 reads-first")
def test_reads_come_first_and_the_call_after_their_completion():
    harness = Harness(blocks=8)
    arguments = echo_arguments([b"x" * 100, b"y" * 60])
    reads = [
        (arguments.positions[0], Segment(1, 60, 1000)),
        (arguments.positions[0], Segment(2, 0, 0)),
        (arguments.positions[0], Segment(3, 40, 3000)),
        (arguments.positions[1], Segment(4, 60, 4000)),
    ]
    harness.receive(header(1, reads=reads) + rpc_call(1, arguments.without(0, 1)))
    ((work, token),) = harness.responder.reads
    harness.responder.reads.clear()
    assert [(read.handle, len(read.sink), read.offset) for read in work] == [
        (1, 60, 1000),
        (3, 40, 3000),
        (4, 60, 4000),
    ]
    assert harness.calls() == []
    for read in work:
        read.sink[:] = bytes([read.handle]) * len(read.sink)
    harness.responder.completed(token, True)
    (call,) = harness.calls()
    assert [(position, bytes(view)) for position, view in call.chunks] == [
        (arguments.positions[0], b"\1" * 60 + b"\3" * 40),
        (arguments.positions[1], b"\4" * 60),
    ]
    assert len(call.holds) == 2
    finish(call)
    assert harness.account.in_use == 0


def test_a_failed_read_means_the_end_and_leaks_nothing():
    harness = Harness(blocks=8)
    arguments = echo_arguments([b"x" * 100])
    reads = [(arguments.positions[0], Segment(0xAB, 100, 1000))]
    harness.receive(*[header(xid, reads=reads) + rpc_call(xid, arguments.without(0)) for xid in (1, 2)])
    (_, first), (_, second) = harness.responder.reads
    harness.responder.reads.clear()
    harness.responder.completed(first, False)
    harness.responder.completed(second, False)
    assert harness.responder.failure == "an RDMA Read failed"
    assert harness.responder.suspects.refused_call(None) == 1
    assert harness.responder.suspects.refused_call(0xAB) == 1
    assert harness.calls() == []
    assert harness.account.in_use == 0


@covers("RFC 8166 4.5.4 lost-reply")
def test_a_failed_send_means_the_end_and_releases_the_reply():
    harness = Harness(blocks=8)
    harness.receive(null(1))
    (call,) = harness.calls()
    finish(call)
    reply = Reply()
    harness.responder.reply(call, reply)
    ((_, _, token),) = harness.responder.chains
    assert reply.released == 0
    harness.responder.completed(token, False)
    assert reply.released == 1
    assert harness.responder.failure is not None
    assert harness.responder.suspects.refused_call(None) is None


@covers("RFC 8166 2.3.2 order")
def test_payloads_are_held_until_the_chain_has_completed():
    harness = Harness(blocks=8)
    harness.receive(header(1, writes=[[Segment(5, 600, 0)]]) + rpc_call(1, procedure=NULL))
    (call,) = harness.calls()
    finish(call)
    lease = harness.account.lease(600)
    lease.view[:600] = b"p" * 600
    harness.responder.reply(call, Reply(b"headtail", [(4, Payload(lease.view[:600], lease))]))
    ((writes, send, token),) = harness.responder.chains
    assert [(write.handle, write.offset, bytes(write.source)) for write in writes] == [(5, 0, b"p" * 600)]
    assert b"".join(send.segments).endswith(b"headtail")
    assert harness.account.in_use > 0
    harness.responder.completed(token, True)
    assert harness.account.in_use == 0


def test_closing_releases_everything_in_every_state():
    harness = Harness(blocks=8, memory=1 << 20)
    arguments = echo_arguments([bytes(1 << 19)])
    reads = [(arguments.positions[0], Segment(1, 1 << 19, 0))]
    harness.receive(null(1), null(2), header(3, reads=reads) + rpc_call(3, arguments.without(0)))
    executing, unseen = harness.responder.calls
    harness.responder.calls = [unseen]
    reply = Reply()
    harness.responder.reply(executing, reply)
    harness.responder.close()
    harness.responder.close()
    assert reply.released == 1
    assert harness.responder.idle is False
    finish(executing)
    for lease in harness.posted:
        lease.release()
    assert harness.pool.in_use == 0
    # What is still going on ends in nothing.
    late = Reply()
    harness.responder.reply(unseen, late)
    assert late.released == 1
    harness.responder.drop(unseen)
    with pytest.raises(ConnectionError):
        harness.responder.call_back(BackwardCall(1, bytes(40), lambda reply: None))
    assert harness.responder.chains == []


def test_reads_still_posted_when_it_closes_release_on_their_completion():
    harness = Harness(blocks=8)
    arguments = echo_arguments([bytes(100)])
    reads = [(arguments.positions[0], Segment(1, 100, 0))]
    harness.receive(header(3, reads=reads) + rpc_call(3, arguments.without(0)))
    ((_, token),) = harness.responder.reads
    harness.responder.reads.clear()
    harness.responder.close()
    assert harness.account.in_use > 0
    harness.responder.completed(token, True)
    assert harness.account.in_use == 0
    assert harness.responder.calls == []


def test_errors_count_as_answers():
    harness = Harness(blocks=8)
    harness.receive(header(1, procedure=9), header(2, version=7))
    replies = harness.sent()
    assert [(reply.xid, reply.procedure, reply.credit) for reply in replies] == [(1, ERROR, 4), (2, ERROR, 4)]
    assert harness.responder.idle


def test_a_message_is_answered_in_its_own_version():
    harness = Harness(blocks=8)
    harness.receive(null(1), header(2, version=2) + bytes(40), null(3))
    for call in harness.calls():
        finish(call)
        harness.responder.reply(call, Reply())
    versions = {reply.xid: (reply.version, reply.procedure) for reply in harness.sent()}
    assert versions == {1: (1, MSG), 2: (2, ERROR), 3: (1, MSG)}


def test_a_peer_that_takes_no_replies_gets_no_more_receives():
    """Sends that never complete are memory too. What such a peer may cause is bounded by its Receives."""
    harness = Harness(blocks=1000)
    received = 0
    while harness.posted:
        harness.receive(header(received, procedure=9))
        received += 1
    assert len(harness.responder.chains) <= 3 * 4
    assert received <= 3 * 4
    # When they complete after all, everything is as before.
    answered = 0
    while harness.responder.chains:
        answered += len(harness.sent())
    assert answered == received
    assert len(harness.posted) == 4
    assert harness.responder.idle
