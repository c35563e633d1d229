"""Callbacks to a Linux client: over its RDMA connection in 4.1 and 4.2, and over TCP to the client in 4.0."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.vm.guest import Guest
from tests.vm.mounts import complaints, load_siw, mount, umount
from tests.vm.network import Namespace
from tests.vm.server import Server
from tests.vm.test_long_copies import counters

POINT = "/mnt/nfs"


@pytest.fixture
def namespace() -> Namespace:
    """A network in which the server can reach the guest too."""
    return Namespace()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@pytest.mark.long
def test_callbacks_reach_the_client(namespace: Namespace, directory: Path) -> None:
    """A local writer makes the server recall what the client was given with its OPEN; the client returns it."""
    with (
        namespace,
        Server(directory / "server", namespace) as server,
        Guest("callbacks", namespace, time_limit=800) as guest,
    ):
        load_siw(guest)
        for version in ("4.0", "4.1", "4.2"):
            mount(guest, server, version)
            before = dict(answered(server))
            if version == "4.0":
                until(lambda: answered(server).get("CB_NULL ok", 0) > 0, "no probe of the callback path")
            guest.run(f"cd {POINT} && echo owner > own-{version} && cat own-{version}")  # an owner that is confirmed
            name = f"f-{version}"
            (server.export / name).write_text("content\n")
            guest.run(f"sh -c 'exec 3<{POINT}/{name}; exec sleep 600' >/dev/null 2>&1 & echo $! >/tmp/reader")
            guest.run("until test -e /proc/$(cat /tmp/reader)/fd/3; do sleep 0.1; done", timeout=60, label="opened")
            assert "content" in guest.run(f"cat {POINT}/{name}").output
            writer = threading.Thread(target=append, args=(server.export / name,))
            writer.start()
            writer.join(60)
            assert not writer.is_alive(), "the lease was not broken"
            wait_for_recalls(server, before.get("CB_RECALL ok", 0) + 1, version)
            assert "more" in guest.run(f"cat {POINT}/{name}").output
            assert not [key for key in answered(server) if not key.endswith(" ok")], "a callback failed"
            guest.run("kill $(cat /tmp/reader)")
            umount(guest)
        assert complaints(guest) == []


def wait_for_recalls(server: Server, count: int, version: str) -> None:
    """The DELEGRETURN that lets the writer go on may overtake the callback's reply, or the counting of it."""
    until(lambda: answered(server).get("CB_RECALL ok", 0) >= count, f"no recall answered over {version}")


def append(path: Path) -> None:
    """As a local program would; waits until the lease is broken."""
    opened = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(opened, b"more\n")
    os.close(opened)


def answered(server: Server) -> dict[str, int]:
    """Callbacks by operation and result; nothing before the first."""
    return counters(server, "callbacks")
