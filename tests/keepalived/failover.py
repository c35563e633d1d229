"""One failover under clients' I/O: what they saw of it, and whether anything was lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from tests.keepalived.hosts import Host, Network, wait_for
from tests.keepalived.keeper import VERSIONS

ADDRESS: Final = "192.0.2.11"
NAME: Final = "files1"
GRACE: Final = "  nfs4: {lease_time: 20, grace_time: 20}\n"
"""Lines of a server's configuration: so the tests need not wait as long as clients do."""
EVENTS: Final = {
    "server killed": lambda host: host.kill_server(NAME),
    "host lost": lambda host: host.die(),
}


def why_not() -> str:
    """Why this machine cannot have it; '' when it can."""
    if os.geteuid():
        return "network namespaces take root"
    return "" if shutil.which("keepalived") else "keepalived is not installed (tests/vm/host-packages.sh keepalived)"


def fail_over(network: Network, source: Host, target: Host, event: Callable[[Host], None]) -> dict[str, Any]:
    """``files1`` is served by one host, and goes to the other one. Returns what the keepers saw."""

    def said() -> str:
        return source.said + target.said

    wait_for(lambda: source.serves(NAME), said)
    assert not target.runs(NAME)
    command = ["ip", "netns", "exec", network.clients, sys.executable, "-m", "tests.keepalived.keeper", ADDRESS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keepers:
        try:
            assert keepers.stdin is not None
            assert keepers.stdout is not None
            assert keepers.stdout.readline() == "ready\n", said()
            _pause(3)
            event(source)
            wait_for(lambda: target.serves(NAME), said)
            _pause(5)
            seen, _ = keepers.communicate("", timeout=120)
        finally:
            keepers.kill()
    assert keepers.returncode == 0, said()
    return dict(json.loads(seen))


def check(seen: dict[str, Any]) -> None:
    """That nothing acknowledged was lost, and that every lock was kept and could be had afterwards."""
    assert set(seen) == set(VERSIONS)
    for version, one in seen.items():
        assert (one["lost"], one["stolen"], one["free"]) == ([], 0, True), (version, one)
        assert one["reclaims"] >= 1, (version, one)
        assert one["refused"] > 0, (version, one)


def row(kind: str, event: str, seen: dict[str, Any]) -> str:
    """Of the table: the seconds until I/O went on."""
    return " | ".join([f"| {kind}, {event}", *(f"{seen[version]['gap']:.1f}" for version in VERSIONS)]) + " |"


def _pause(seconds: float) -> None:
    """Have the clients work."""

    time.sleep(seconds)
