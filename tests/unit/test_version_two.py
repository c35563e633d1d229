"""Version Two as draft-cel-nfsv4-rpcrdma-version-two-02 has it, seen by a peer that builds every octet itself.

The draft's sections have no numbers in its source; tests cite their titles. What version Two does not change is tested
with version One (RFC 8166), and in test_version_two_layouts.py for both.
"""

from __future__ import annotations

import asyncio

import pytest

from rpcrdma.wire.private_data import PrivateData
from tests.peer import (
    BAD_XDR,
    CANT_REPLY,
    ERR_VERS,
    ERROR,
    FILL,
    INVAL_PROC,
    LINUX,
    MSG,
    NOMSG,
    NULL,
    REPLY,
    accept_status,
    echo_arguments,
    echo_results,
    header,
    header_two,
    rpc_call,
    run,
    words,
)
from tests.peer.providers import provider  # noqa: F401 (runs each test on every provider)
from tests.rfc.plugin import covers
from tests.unit.version_two_support import XID, call, negotiated, null

SMALL = PrivateData(remote_invalidation=True, send_size=1024, receive_size=1024).encode()


# "Protocol Version Negotiation"


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Negotiation supported")
def test_the_first_reply_is_in_version_two_and_has_the_same_xid():
    """ "Responder Does Support RPC-over-RDMA Version Two"."""

    async def test(rig, peer):
        peer.send(null())
        message = await peer.message()
        assert message.octets[:16] == words(XID, 2, 128, MSG)
        assert accept_status(message.header.payload) == 0
        assert rig.connection.responder.versions.settled == 2
        assert rig.server.counters.version_two == 1

    run(test)


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Negotiation first-message")
def test_the_first_message_may_fill_1024_octets():
    async def test(rig):
        peer = await rig.peer(b"")
        target = peer.writable(1000)
        arguments = echo_arguments([bytes(1024 - 60 - 40 - 16)])
        message = call(arguments, writes=[[target.segment()]])
        assert len(message) == 1024
        assert (await peer.call(message)).payload == echo_results(arguments, XID, [0])

    run(test)


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Negotiation first-message")
@pytest.mark.parametrize("private_data", [b"", SMALL, LINUX])
def test_the_first_reply_has_no_more_than_1024_octets_whatever_private_data_says(private_data):
    """The responder's first answer comes before the threshold has changed."""

    async def test(rig):
        peer = await rig.peer(private_data)
        fits = echo_arguments([bytes(1024 - 36 - 24 - 16)])
        source = peer.readable(rpc_call(XID, fits.octets))
        peer.send(header_two(XID, procedure=NOMSG, reads=[(0, source.segment())]))
        assert len((await peer.message()).octets) == 1024
        peer = await rig.peer(private_data)
        too_much = echo_arguments([bytes(1024 - 36 - 24 - 16 + 4)])
        source = peer.readable(rpc_call(XID, too_much.octets))
        reply = await peer.call(header_two(XID, procedure=NOMSG, reads=[(0, source.segment())]))
        assert (reply.error, reply.shortage) == (CANT_REPLY, (1, 0, 1024 - 36 + 4))
        # An error settles nothing: it may be this one, or something else, that is heard in version One next.
        assert (await peer.call(header(2) + rpc_call(2, procedure=NULL))).version == 1

    run(test)


@covers(
    "draft-cel-nfsv4-rpcrdma-version-two-02 Default-Values receive-4096",
    "draft-cel-nfsv4-rpcrdma-version-two-02 Default-Values send-4096",
    "draft-cel-nfsv4-rpcrdma-version-two-02 Negotiation threshold-change",
)
@pytest.mark.parametrize("private_data", [b"", SMALL, LINUX])
def test_afterwards_4096_octets_go_in_both_directions(private_data):
    """ "Default Values", and "Responder Does Support...": neither private data nor our own setting takes from it, and
    the change does not cost the connection."""

    async def test(rig):
        peer = await negotiated(await rig.peer(private_data))
        arguments = echo_arguments([bytes(4096 - 36 - 40 - 16)])
        largest = call(arguments)
        assert len(largest) == 4096
        reply = await peer.call(largest)
        assert reply.payload == echo_results(arguments, XID)
        filler = 4096 - 36 - 24 - 20
        peer.send(call(echo_arguments([b"abcd"], filler)))
        assert len((await peer.message()).octets) == 4096
        reply = await peer.call(call(echo_arguments([b"abcd"], filler + 4)))
        assert (reply.error, reply.shortage) == (CANT_REPLY, (1, 0, 4064))
        assert peer.reason is None

    run(test, send_size=1024, receive_size=1024)


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Default-Values receive-4096")
def test_private_data_may_announce_more_than_4096():
    """ "Default Values": a mechanism for discovering a larger threshold may be used."""

    async def test(rig):
        peer = await negotiated(await rig.peer(PrivateData(True, 8192, 8192).encode(), receive_size=8192))
        arguments = echo_arguments([bytes(8192 - 36 - 40 - 16)])
        assert (await peer.call(call(arguments))).payload == echo_results(arguments, XID)

    run(test, send_size=8192, receive_size=8192)


def test_private_data_says_what_version_one_was_told():
    """Receives of 4096 octets are for version Two; who speaks version One is told the configured size."""

    async def test(rig, peer):
        assert PrivateData(True, 1024, 1024).encode() in peer.private_data

    run(test, send_size=1024, receive_size=1024)


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Negotiation unsupported")
def test_switched_off_it_is_an_unknown_version():
    """ "Responder Does Not Support RPC-over-RDMA Version Two": ERR_VERS with the range, and the requester goes on in
    version One on this very connection."""

    async def test(rig, peer):
        reply = await peer.call(null())
        assert (reply.xid, reply.version, reply.procedure) == (XID, 2, ERROR)
        assert (reply.error, reply.versions) == (ERR_VERS, (1, 1))
        assert rig.control.executed == 0
        reply = await peer.call(header(XID) + rpc_call(XID, procedure=NULL))
        assert (reply.xid, reply.version, accept_status(reply.payload)) == (XID, 1, 0)

    run(test, version_two=False)


@covers(
    "draft-cel-nfsv4-rpcrdma-version-two-02 Negotiation settled",
    "draft-cel-nfsv4-rpcrdma-version-two-02 Negotiation version-of-the-call",
)
def test_a_version_one_requester_gets_version_one_to_the_end():
    """ "Requester Does Not Support RPC-over-RDMA Version Two". Who then says version Two is refused, and told what the
    server supports (RFC 8166 section 4.5.1)."""

    async def test(rig, peer):
        for xid in (1, 2, 3):
            assert (await peer.call(header(xid) + rpc_call(xid, procedure=NULL))).version == 1
        reply = await peer.call(null(4))
        assert (reply.xid, reply.version, reply.error, reply.versions) == (4, 2, ERR_VERS, (1, 2))
        assert (await peer.call(header(5) + rpc_call(5, procedure=NULL))).version == 1
        assert rig.control.executed == 4
        assert (rig.server.counters.version_one, rig.server.counters.version_two) == (1, 0)

    run(test)


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Negotiation settled")
def test_a_connection_keeps_version_two():
    async def test(rig, peer):
        await negotiated(peer)
        reply = await peer.call(header(4) + rpc_call(4, procedure=NULL))
        assert (reply.xid, reply.version, reply.error, reply.versions) == (4, 1, ERR_VERS, (1, 2))
        assert (await peer.call(null(5))).version == 2
        assert rig.control.executed == 2

    run(test)


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Negotiation version-of-the-call")
def test_until_a_reply_each_call_is_answered_in_its_own_version():
    async def test(rig, peer):
        rig.control.gate = asyncio.Event()
        arguments = echo_arguments([b"x"])
        peer.send(call(arguments, 1))
        peer.send(header(2) + rpc_call(2, arguments.octets))
        await rig.until(lambda: rig.control.running == 2)
        rig.control.gate.set()
        assert {(reply.xid, reply.version) for reply in [await peer.reply(), await peer.reply()]} == {(1, 2), (2, 1)}

    run(test)


def test_errors_do_not_settle_the_version():
    """Only a non-error response completes the negotiation."""

    async def test(rig, peer):
        assert (await peer.call(header_two(1, procedure=9) + bytes(40))).error == INVAL_PROC
        assert rig.connection.responder.versions.settled is None
        assert (await peer.call(header(2) + rpc_call(2, procedure=NULL))).version == 1

    run(test)


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Transport-Errors vers")
@pytest.mark.parametrize("version", [0, 3, 4, 0xFFFFFFFF])
def test_other_versions_get_the_range_of_both(version):
    """ "Transport Errors", RDMA2_ERR_VERS: as in version One."""

    async def test(rig, peer):
        reply = await peer.call(words(XID, version, 32, MSG) + bytes(60))
        assert (reply.xid, reply.version, reply.procedure) == (XID, version, ERROR)
        assert (reply.error, reply.versions) == (ERR_VERS, (1, 2))

    run(test)


# "RPC-Over-RDMA Version Two XDR"


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 XDR header")
def test_every_word_of_a_reply_without_chunks():
    async def test(rig, peer):
        peer.send(null())
        message = await peer.message()
        assert message.octets == words(XID, 2, 128, MSG, REPLY, 0, 0, 0, 0) + words(XID, REPLY, 0, 0, 0, 0)

    run(test)


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 XDR header")
def test_every_word_of_a_reply_with_chunks():
    async def test(rig, peer):
        arguments = echo_arguments([b"abcde"])
        target, spare, area = peer.writable(8), peer.writable(4), peer.writable(100)
        reads = peer.readable(b"abcde")
        peer.send(
            header_two(
                XID,
                inv_handle=target.handle,
                reads=[(arguments.positions[0], reads.segment())],
                writes=[[target.segment()], [spare.segment()]],
                reply=[area.segment()],
            ),
            rpc_call(XID, arguments.without(0)),
        )
        message = await peer.message()

        def segment(memory, length: int) -> bytes:
            return words(memory.handle, length) + memory.base.to_bytes(8, "big")

        assert message.octets == (
            words(XID, 2, 128, MSG, REPLY, target.handle, 0)
            + words(1, 1)
            + segment(target, 5)
            + words(1, 1)
            + segment(spare, 0)
            + words(0, 1, 1)
            + segment(area, 0)
            + echo_results(arguments, XID, [0])
        )
        assert target.memory == b"abcde" + bytes([FILL]) * 3

    run(test)


@covers(
    "draft-cel-nfsv4-rpcrdma-version-two-02 Transport-Errors inval-proc",
    "draft-cel-nfsv4-rpcrdma-version-two-02 Transport-Errors fields",
)
@pytest.mark.parametrize("procedure", [2, 3, 6, 7, 8, 13, 0xFFFFFFFF])
def test_unknown_procedures_get_inval_proc(procedure):
    """ "Transport Errors", RDMA2_ERR_INVAL_PROC. Two and three belong to version One alone."""

    async def test(rig, peer):
        await negotiated(peer)
        peer.send(header_two(XID, procedure=procedure) + rpc_call(XID, procedure=NULL))
        message = await peer.message()
        assert message.octets == words(XID, 2, 128, ERROR, INVAL_PROC)
        assert message.invalidated is None
        assert rig.control.executed == 1
        assert rig.server.counters.err_inval_proc == 1
        await peer.call(null())

    run(test)


# "Presence Of Payload"


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Presence-Of-Payload msg")
@pytest.mark.parametrize("payload", [b"", bytes(4), words(XID), words(XID, 0)[:7]])
def test_a_message_without_its_payload_cannot_be_parsed(payload):
    async def test(rig, peer):
        peer.send(header_two(XID) + payload)
        assert (await peer.message()).octets == words(XID, 2, 128, ERROR, BAD_XDR)
        assert rig.control.executed == 0

    run(test)


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Presence-Of-Payload error")
def test_nothing_follows_an_error():
    async def test(rig, peer):
        peer.send(header_two(XID, direction=7) + rpc_call(XID, procedure=NULL))
        assert len((await peer.message()).octets) == 20

    run(test)


def test_what_follows_the_header_of_a_long_call_is_ignored():
    """The draft neither allows nor forbids it."""

    async def test(rig, peer):
        source = peer.readable(rpc_call(XID, procedure=NULL))
        reply = await peer.call(header_two(XID, procedure=NOMSG, reads=[(0, source.segment())]), b"some octets more")
        assert accept_status(reply.payload) == 0

    run(test)


def test_short_messages_are_discarded():
    """RFC 8166 section 4.5, which the draft does not change."""

    async def test(rig, peer):
        for length in range(28):
            peer.send(header_two(XID)[:length])
        await negotiated(peer)
        assert peer.waiting == 0
        assert rig.server.counters.discards == 28

    run(test)


# "Message Direction"


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Message-Direction msg")
@pytest.mark.parametrize("procedure", [MSG, NOMSG])
def test_a_call_in_a_header_of_direction_reply_is_no_call(procedure):
    """The direction must be the RPC message's. A wrong reply is discarded (RFC 8166 section 4.5)."""

    async def test(rig, peer):
        await negotiated(peer)
        source = peer.readable(rpc_call(XID, procedure=NULL))
        reads = [(0, source.segment())] if procedure == NOMSG else []
        body = rpc_call(XID, procedure=NULL) if procedure == MSG else b""
        peer.send(header_two(XID, procedure=procedure, direction=REPLY, reads=reads), body)
        await peer.call(null(3))
        assert peer.waiting == 0
        assert rig.control.executed == 2
        assert rig.server.counters.discards == 1

    run(test)


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Message-Direction msg")
@pytest.mark.parametrize("procedure", [MSG, NOMSG])
def test_a_reply_in_a_header_of_direction_call_is_refused(procedure):
    async def test(rig, peer):
        text = words(XID, REPLY, 0, 0, 0, 0) + bytes(16)
        source = peer.readable(text)
        reads = [(0, source.segment())] if procedure == NOMSG else []
        reply = await peer.call(header_two(XID, procedure=procedure, reads=reads), text if procedure == MSG else b"")
        assert (reply.procedure, reply.error) == (ERROR, BAD_XDR)
        assert rig.control.executed == 0

    run(test)


@pytest.mark.parametrize("direction", [2, 0xFFFFFFFF])
def test_there_are_two_directions(direction):
    async def test(rig, peer):
        reply = await peer.call(null(direction=direction))
        assert (reply.procedure, reply.error) == (ERROR, BAD_XDR)

    run(test)


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Message-Direction credits")
def test_credits_are_granted_in_replies_and_errors():
    """ "Message Direction": the value is the one for the direction, here a grant, whatever was asked for."""

    async def test(rig, peer):
        for asked in (0, 1, 1000):
            assert (await peer.call(null(credit=asked))).credit == 128
            assert (await peer.call(header_two(3, procedure=9, credit=asked), bytes(8))).credit == 128

    run(test)


# The other version Two


@pytest.mark.parametrize(
    ("procedure", "body"),
    [
        pytest.param(6, words(0), id="RDMA2_CONNPROP_MIDDLE"),
        pytest.param(7, words(2, 1, 4, 4096, 2, 4, 4096), id="RDMA2_CONNPROP_FINAL"),
        pytest.param(8, words(0, 1, 0, 1, 40, 0, 0, 0, 0, 0, 0), id="RDMA2_CALL_EXTERNAL"),
        pytest.param(9, words(40) + rpc_call(XID, procedure=NULL), id="RDMA2_CALL_MIDDLE"),
        pytest.param(10, words(0, 0, 0, 0) + rpc_call(XID, procedure=NULL), id="RDMA2_CALL_INLINE"),
    ],
)
def test_the_later_format_of_the_same_version_number_is_refused_at_once(procedure, body):
    """draft-ietf-nfsv4-rpcrdma-version-two-07 section 8.4: what such a client may send first gets an answer that means
    "invalid header type" there too; nothing is executed, and the client may go on in version One."""

    async def test(rig, peer):
        message = words(XID, 2, 32, procedure) + body
        reply = await peer.call(message + bytes(max(0, 28 - len(message))))
        assert (reply.xid, reply.procedure, reply.error) == (XID, ERROR, INVAL_PROC)
        assert rig.control.executed == 0
        assert (await peer.call(header(1) + rpc_call(1, procedure=NULL))).version == 1

    run(test)


def test_grants_of_the_later_format_are_ignored():
    """RDMA2_GRANT there has RDMA2_OPTIONAL's number, and no more than the four fixed words."""

    async def test(rig, peer):
        peer.send(words(0, 2, 32, 5))
        await negotiated(peer)
        assert peer.waiting == 0

    run(test)
