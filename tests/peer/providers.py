"""Running a test module on every provider: import :func:`provider` into it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rpcrdma.verbs.loopback import LoopbackProvider
from rpcrdma.verbs.softiwarp.provider import SoftIwarp
from tests.peer.rig import Rig


@pytest.fixture(params=[LoopbackProvider, SoftIwarp], ids=["loopback", "softiwarp"], autouse=True)
def provider(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make this the provider of rigs that name none."""
    before, Rig.default_provider = Rig.default_provider, request.param
    yield
    Rig.default_provider = before
