"""Running a test module on every provider: import :func:`provider` into it.

Every provider there is here: on a host with RDMA devices, and told one's address, it is those instead.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rpcrdma.verbs.device import make_provider
from rpcrdma.verbs.loopback import LoopbackProvider
from rpcrdma.verbs.softiwarp.provider import SoftIwarp
from tests.peer.rig import DEVICE_ADDRESS, Rig

PROVIDERS = {"device": make_provider} if DEVICE_ADDRESS else {"loopback": LoopbackProvider, "softiwarp": SoftIwarp}


@pytest.fixture(params=PROVIDERS.values(), ids=PROVIDERS.keys(), autouse=True)
def provider(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make this the provider of rigs that name none."""
    before, Rig.default_provider = Rig.default_provider, request.param
    yield
    Rig.default_provider = before
