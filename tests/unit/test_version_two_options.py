"""RDMA2_OPTIONAL (draft-cel-nfsv4-rpcrdma-version-two-02, "Optional Features", "Presence Of Payload")."""

from __future__ import annotations

import pytest

from rpcrdma.engine.extensions import MalformedOption
from tests.peer import BAD_XDR, CALL, ERROR, INVAL_OPTION, NULL, OPTIONAL, REPLY, header, option, rpc_call, run, words
from tests.peer.providers import provider  # noqa: F401 (runs each test on every provider)
from tests.rfc.plugin import covers
from tests.unit.version_two_support import XID, negotiated, null

TYPE = 0x77


class Extension:
    """Answers with what it was sent, or as told."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, bytes, bytes]] = []

    def __call__(self, received, payload) -> bytes | None:
        info = bytes(received.info)
        self.seen.append((received.xid, received.optdir, info, bytes(payload)))
        if info == b"malformed":
            raise MalformedOption("as told")
        return None if info == b"silence" else info[::-1]


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Transport-Errors inval-option")
@pytest.mark.parametrize("opttype", [0, 1, TYPE + 1, 0xFFFFFFFF])
@pytest.mark.parametrize("info", [b"", b"abc"])
@pytest.mark.parametrize("payload", [b"", rpc_call(XID, procedure=NULL)])
def test_unknown_types_get_inval_option_with_the_same_xid(opttype, info, payload):
    async def test(rig, peer):
        peer.send(option(XID, opttype, info) + payload)
        assert (await peer.message()).octets == words(XID, 2, 128, ERROR, INVAL_OPTION)
        assert rig.control.executed == 0
        assert rig.server.counters.err_inval_option == 1
        await negotiated(peer)

    run(test, extensions={TYPE: Extension()})


def test_the_server_has_no_extensions_of_its_own():
    async def test(rig, peer):
        for opttype in range(64):
            assert (await peer.call(option(XID, opttype))).error == INVAL_OPTION

    run(test)


@covers(
    "draft-cel-nfsv4-rpcrdma-version-two-02 Message-Direction optional",
    "draft-cel-nfsv4-rpcrdma-version-two-02 Presence-Of-Payload optional",
)
def test_an_extension_takes_type_info_and_payload_and_answers_as_a_responder():
    """ "Message Direction": without an RPC message, a Responder's direction is REPLY."""
    extension = Extension()

    async def test(rig, peer):
        peer.send(option(XID, TYPE, b"abcde") + b"part of a payload")
        message = await peer.message()
        assert message.octets == words(XID, 2, 128, OPTIONAL, REPLY, TYPE, 5) + b"edcba\0\0\0"
        assert extension.seen == [(XID, CALL, b"abcde", b"part of a payload")]
        # That was a response and no error: the version is settled.
        assert rig.connection.responder.versions.settled == 2
        assert rig.control.executed == 0

    run(test, extensions={TYPE: extension})


def test_an_extension_may_leave_a_message_unanswered():
    extension = Extension()

    async def test(rig, peer):
        for _ in range(300):
            peer.send(option(XID, TYPE, b"silence"))
            await rig.until(lambda: rig.server.counters.options == len(extension.seen) and extension.seen)
            extension.seen.clear()
            rig.server.counters.options = 0
        await negotiated(peer)
        assert peer.waiting == 0
        assert rig.connection.responder.idle

    run(test, extensions={TYPE: extension})


def test_replies_reach_the_extension_and_are_not_answered():
    extension = Extension()

    async def test(rig, peer):
        peer.send(option(5, TYPE, b"abc", direction=REPLY))
        peer.send(option(6, TYPE, b"malformed", direction=REPLY))
        await negotiated(peer)
        assert peer.waiting == 0
        assert [(xid, direction) for xid, direction, _, _ in extension.seen] == [(5, REPLY), (6, REPLY)]

    run(test, extensions={TYPE: extension})


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Message-Direction error")
def test_a_reply_of_unknown_type_is_discarded():
    """An error goes from Responder to Requester ("Message Direction"), and to a reply we would be the Requester. Its
    XID is of the other space: an error might end a call of the peer's that has nothing to do with it."""

    async def test(rig, peer):
        peer.send(option(5, TYPE, b"abc", direction=REPLY))
        await negotiated(peer)
        assert peer.waiting == 0
        assert rig.server.counters.options == 1

    run(test)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(option(XID, TYPE, b"malformed"), id="by the extension's word"),
        pytest.param(words(XID, 2, 32, OPTIONAL, CALL, TYPE, 1), id="rdma_optinfo missing"),
        pytest.param(words(XID, 2, 32, OPTIONAL, CALL, TYPE, 5, 0), id="rdma_optinfo cut off"),
        pytest.param(words(XID, 2, 32, OPTIONAL, CALL, TYPE, 0xFFFFFFFF) + bytes(100), id="longer than any message"),
        pytest.param(words(XID, 2, 32, OPTIONAL, 2, TYPE, 0), id="no direction"),
    ],
)
def test_malformed_options_get_bad_xdr(message):
    async def test(rig, peer):
        peer.send(message)
        assert (await peer.message()).octets == words(XID, 2, 128, ERROR, BAD_XDR)
        await peer.call(null())

    run(test, extensions={TYPE: Extension()})


def test_version_one_has_no_options():
    async def test(rig, peer):
        assert (await peer.call(header(XID, procedure=OPTIONAL), bytes(40))).version == 1
        assert rig.server.counters.err_chunk == 1

    run(test, extensions={TYPE: Extension()})
