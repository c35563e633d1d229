"""rdma_inv_handle (draft-cel-nfsv4-rpcrdma-version-two-02, "Remote Invalidation")."""

from __future__ import annotations

import pytest

from rpcrdma.wire.private_data import PrivateData
from tests.peer import (
    CANT_REPLY,
    LINUX,
    echo_arguments,
    header_two,
    rpc_call,
    run,
)
from tests.peer.providers import provider  # noqa: F401 (runs each test on every provider)
from tests.rfc.plugin import covers
from tests.unit.version_two_support import XID, call, negotiated

SMALL = PrivateData(remote_invalidation=True, send_size=1024, receive_size=1024).encode()


async def exchange(peer, arguments, target, inv_handle, **more):
    peer.send(call(arguments, inv_handle=inv_handle, writes=[[target.segment()]], **more))
    return await peer.message()


@covers(
    "draft-cel-nfsv4-rpcrdma-version-two-02 Remote-Invalidation echo",
    "draft-cel-nfsv4-rpcrdma-version-two-02 Remote-Invalidation named",
)
@pytest.mark.parametrize("private_data", [LINUX, SMALL, b""])
def test_the_named_handle_is_invalidated_and_comes_back_in_the_reply(private_data):
    """Private data's word on this is about version One: here each call speaks for itself."""

    async def test(rig):
        peer = await negotiated(await rig.peer(private_data))
        target = peer.writable(16)
        message = await exchange(peer, echo_arguments([b"abc"]), target, target.handle)
        assert message.invalidated == target.handle
        assert message.header.inv_handle == target.handle
        with pytest.raises(KeyError):
            peer.endpoint.invalidate(target.handle)

    run(test)


@covers("draft-cel-nfsv4-rpcrdma-version-two-02 Remote-Invalidation zero")
def test_zero_means_that_nothing_is_invalidated():
    """Version One's rule would choose the Write chunk here."""

    async def test(rig, peer):
        await negotiated(peer)
        target = peer.writable(16)
        message = await exchange(peer, echo_arguments([b"abc"]), target, 0)
        assert message.invalidated is None
        assert message.header.inv_handle == 0
        peer.endpoint.invalidate(target.handle)

    run(test)


@covers(
    "draft-cel-nfsv4-rpcrdma-version-two-02 Remote-Invalidation named",
    "draft-cel-nfsv4-rpcrdma-version-two-02 Remote-Invalidation no-other",
)
@pytest.mark.parametrize("which", range(5))
def test_exactly_the_named_one_of_many_is_invalidated(which):
    async def test(rig, peer):
        await negotiated(peer)
        arguments = echo_arguments([b"abcd", b"efgh"])
        first, second = peer.readable(b"abcd"), peer.readable(b"efgh")
        target, other, area = peer.writable(4), peer.writable(4), peer.writable(400)
        memory = [first, second, target, other, area]
        peer.send(
            header_two(
                XID,
                inv_handle=memory[which].handle,
                reads=[(arguments.positions[0], first.segment()), (arguments.positions[1], second.segment())],
                writes=[[target.segment()], [other.segment()]],
                reply=[area.segment()],
            ),
            rpc_call(XID, arguments.without(0, 1)),
        )
        message = await peer.message()
        assert message.invalidated == message.header.inv_handle == memory[which].handle
        for index, region in enumerate(memory):
            if index != which:
                peer.endpoint.invalidate(region.handle)

    run(test)


@covers(
    "draft-cel-nfsv4-rpcrdma-version-two-02 Remote-Invalidation echo",
    "draft-cel-nfsv4-rpcrdma-version-two-02 Remote-Invalidation no-other",
)
def test_a_handle_that_the_call_does_not_offer_is_echoed_and_left_alone():
    """The requester must not name it, and the responder should invalidate what it names; but this is the memory of
    another of its calls, or of none, which would break the connection."""

    async def test(rig, peer):
        await negotiated(peer)
        target, other = peer.writable(16), peer.writable(16)
        for named in (other.handle, 0xDEAD):
            message = await exchange(peer, echo_arguments([b"abc"]), target, named)
            assert message.invalidated is None
            assert message.header.inv_handle == named
        peer.endpoint.invalidate(other.handle)

    run(test)


def test_a_device_that_cannot_invalidate_does_not():
    """ "Remote Invalidation": it needs MEM_MGT_EXTENSIONS on both sides; the reply echoes the handle nonetheless."""

    async def test(rig, peer):
        await negotiated(peer)
        target = peer.writable(16)
        message = await exchange(peer, echo_arguments([b"abc"]), target, target.handle)
        assert (message.invalidated, message.header.inv_handle) == (None, target.handle)

    run(test, remote_invalidation=False)


def test_errors_invalidate_nothing():
    async def test(rig, peer):
        await negotiated(peer)
        target = peer.writable(2)
        message = await exchange(peer, echo_arguments([b"abc"]), target, target.handle)
        assert message.header.error == CANT_REPLY
        assert message.invalidated is None
        peer.endpoint.invalidate(target.handle)

    run(test)
