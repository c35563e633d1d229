"""Hostile requesters on an RDMA device (rdma_rxe), beside an honest one: tests/hostile for devices.

Both sides are in one guest; the requesters are tests/vm/inside/verbs_hostile.py. The criteria are those of
docs/hostile.md, as far as a guest can tell: every call of the honest client is answered with the attack in place, the
log and the server's memory stay bounded, no traceback, the server goes on.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator

import pytest

from tests.vm.build import HERE, REPO
from tests.vm.guest_server import GuestServer
from tests.vm.mounts import complaints
from tests.vm.network import Namespace
from tests.vm.server import RDMA_PORT

pytestmark = pytest.mark.timeout(900)

ATTACKS = ("idle", "chunks", "handles", "versions", "credits", "churn")
MOST_LINES = 200
OVERHEAD = 160 << 10
"""Kilobytes beyond the bound on buffers, 128 MiB here."""


@pytest.fixture(scope="module")
def server() -> Iterator[GuestServer]:
    limits = {"limits": {"memory": "128MiB"}}
    listen = [{"url": f"rdma://*:{RDMA_PORT}", "provider": "verbs"}]
    with Namespace() as network, GuestServer(network, ("rxe",), listen=listen, server=limits) as server:
        yield server
        server.assert_running()
        server.stop()
        assert complaints(server.guest) == []


def used(server: GuestServer) -> tuple[int, int, str]:
    """Kilobytes resident, lines of the log, and the log."""
    text = server.guest.run(
        "grep VmRSS /proc/$(cat /srv/nfsd/pid)/status; cat /srv/nfsd/log", label="what it uses"
    ).output
    resident = re.search(r"VmRSS:\s*(\d+)", text)
    assert resident is not None
    return int(resident[1]), text.count("\n"), text


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_honest_requester_is_answered_meanwhile(server: GuestServer, attack: str) -> None:
    before, lines, _ = used(server)
    words = [sys.executable, f"{HERE}/inside/verbs_hostile.py", attack, server.address, str(RDMA_PORT)]
    done = server.guest.run(f"PYTHONPATH={shlex.quote(str(REPO))} {shlex.join(words)}", timeout=300, label=attack)
    told = json.loads(done.output.strip().splitlines()[-1])
    assert told["failures"] == []
    assert told["calls"] > 5
    after, more, log = used(server)
    assert after < before + (128 << 10) + OVERHEAD
    assert more - lines <= MOST_LINES
    assert "Traceback" not in log
    server.assert_running()
