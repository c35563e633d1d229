"""Connection requests of devices, answered when their peers may be gone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

listener = pytest.importorskip("rpcrdma.verbs.device.listener", reason="built without the provider over RDMA devices")


class Identifier:
    """What there is of a connection that nobody has answered."""

    peer = "192.0.2.1", 4791
    local = "192.0.2.2", 20049

    def __init__(self):
        self.done = []
        self.owner = None

    def reject(self, private_data):
        self.done.append(("reject", private_data))

    def destroy(self):
        self.done.append(("destroy", b""))


def asked(loop):
    """A request that has just come, and its identifier."""
    identifier = Identifier()
    provider = SimpleNamespace(requests=set(), loop=loop, options=SimpleNamespace(accept_timeout=60))
    event = SimpleNamespace(private_data=b"theirs", responder_resources=1, initiator_depth=1, identifier=identifier)
    return listener.DeviceRequest(provider, event, 0), identifier, provider


def test_a_request_is_refused_once_and_one_whose_peer_has_gone_is_not_refused():
    async def test():
        request, identifier, provider = asked(asyncio.get_running_loop())
        request.reject(b"ours")
        assert identifier.done == [("reject", b"ours"), ("destroy", b"")]
        assert provider.requests == set()
        request.reject(b"again")
        request.drop()
        assert len(identifier.done) == 2

        request, identifier, provider = asked(asyncio.get_running_loop())
        request.cm_event("CONNECT_ERROR", 0, None)
        request.reject(b"ours")
        assert identifier.done == [("destroy", b"")], "nothing happens when the peer is gone"
        with pytest.raises(OSError, match="gone"):
            request.accept(None, b"", [], initiator_depth=1)

    asyncio.run(test())
