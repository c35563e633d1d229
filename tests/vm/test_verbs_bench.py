"""``python -m bench`` drives servers in a guest from outside: ours over its RDMA device and TCP, and the kernel's."""

from __future__ import annotations

import pytest

from bench import guests
from bench.scenarios import BY_NAME
from bench.servers import IN_GUEST

pytestmark = pytest.mark.timeout(900)

NAMES = ("getattr", "read-4k-32", "write-4k-32-v4.1")


def test_both_servers_answer_over_both_transports() -> None:
    found = guests.measure(IN_GUEST, [BY_NAME[name] for name in NAMES], ("tcp", "rdma"), 1, 0.3, 0)
    keys = {f"{name} {over}" for name in NAMES for over in ("tcp", "rdma")}
    assert found["servers"].keys() == set(IN_GUEST)
    for server in found["servers"].values():
        assert server["failures"] == {}
        assert server["scenarios"].keys() == keys
        for figures in server["scenarios"].values():
            assert figures["cpu_us"] > 0
            assert figures["calls_per_s"] > 0
    ours = found["servers"][IN_GUEST[0]]["scenarios"]
    # A Receive and a Send; an RDMA Write or Read besides. What a peer has not yet got is not yet counted.
    assert ours["getattr rdma"]["work_requests"] == pytest.approx(2, rel=0.2)
    assert ours["read-4k-32 rdma"]["work_requests"] == pytest.approx(3, rel=0.2)
    assert ours["write-4k-32-v4.1 rdma"]["work_requests"] == pytest.approx(3, rel=0.2)
    assert ours["getattr tcp"]["work_requests"] == 0
