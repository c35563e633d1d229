"""Copies that take long, with a Linux client: the server makes them by itself and tells the end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.build import REPO
from tests.vm.guest import Guest, Job
from tests.vm.mounts import complaints, load_siw, mount
from tests.vm.network import Network
from tests.vm.server import Server

POINT = "/mnt/nfs"
INSIDE = REPO / "tests" / "vm" / "inside" / "long_copies.py"
SIZE = 64 * (1 << 20) + 12345
"""Of the file the programs copy five times."""
HUGE = 16 << 30
"""Of a file whose copy is never finished."""


def counters(server: Server, name: str) -> dict[str, int]:
    """What the server has counted, from its log after SIGUSR1."""
    before = server.log.stat().st_size
    os.kill(server.pid, signal.SIGUSR1)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = re.search(rf" {name}: (.*)", server.log.read_text()[before:])
        if found:
            return {word: int(count) for word, count in re.findall(r"([\w ]+?) (\d+)(?:, |$)", found[1])}
        time.sleep(0.1)
    raise AssertionError(f"the log says nothing of {name}")


def begin_copy(guest: Guest, server: Server, source: str, target: str, size: int) -> Job:
    """Start a copy in the guest, and return when the server has made the beginning of it."""
    copying = guest.start(
        f"echo $$ > /tmp/copier; exec python3 {INSIDE} copy {POINT}/{source} {POINT}/{target} {size}", 300, "copy"
    )
    made = server.export / target
    deadline = time.monotonic() + 120
    while not made.exists() or made.stat().st_size < 128 << 20:
        assert time.monotonic() < deadline, "the copy does not begin"
        time.sleep(0.01)
    return copying


def client_operations(guest: Guest) -> dict[str, tuple[int, int, int]]:
    """Calls, octets sent and octets received by operation, as the client counts them."""
    stats = guest.run("cat /proc/self/mountstats", label="mountstats").output
    found = re.findall(r"^\s+([A-Z_]+): ([\d ]+)$", stats.partition(f"mounted on {POINT} ")[2], re.MULTILINE)
    numbers = {name: [int(number) for number in line.split()] for name, line in found}
    return {name: (row[0], row[3], row[4]) for name, row in numbers.items()}


@pytest.fixture(scope="module")
def short_lease_server(network: Network, directory: Path) -> Iterator[Server]:
    nfs4 = {"lease_time": 10, "grace_time": 10}
    with Server(directory / "server", network, server={"nfs4": nfs4}) as made:
        yield made


@pytest.mark.long
def test_long_copies_are_made_by_the_server_and_end_when_they_are_given_up(
    network: Network, short_lease_server: Server, directory: Path
) -> None:
    server = short_lease_server
    with Guest("client-copies", network, shares=[directory / "server"], time_limit=600) as guest:
        load_siw(guest)
        mount(guest, server, "4.2")
        guest.run(f"mkdir {POINT}/work && python3 {INSIDE} {POINT}/work", timeout=400)
        with (server.export / "huge").open("wb") as file:
            file.truncate(HUGE)
        copying = begin_copy(guest, server, "huge", "given-up", HUGE)
        guest.run("kill -KILL $(cat /tmp/copier)")
        assert copying.wait(check=False).rc == 128 + signal.SIGKILL
        deadline = time.monotonic() + 20
        while counters(server, "copies").get("cancelled") != 1:
            assert time.monotonic() < deadline, "the copy that was given up goes on"
        sent = client_operations(guest)
        assert sent["COPY"][0] == 6
        assert sent["OFFLOAD_CANCEL"][0] == 1
        assert sent["WRITE"][1] < 1.2 * SIZE, "what was copied did not go over the network"
        seen = counters(server, "copies")
        assert (seen["started"], seen["completed"], seen["acknowledged"]) == (6, 5, 5)
        assert counters(server, "callbacks")["CB_OFFLOAD ok"] == 5
        given_up = server.export / "given-up"
        size = given_up.stat().st_size
        assert size < HUGE
        assert not complaints(guest)
        assert given_up.stat().st_size == size
        for number in range(4):
            assert server.sha256(f"work/target {number}") == server.sha256("work/source")
    server.assert_running()


@pytest.mark.long
def test_a_copy_is_begun_again_when_the_server_has_been_killed(
    network: Network, short_lease_server: Server, directory: Path
) -> None:
    server, size = short_lease_server, 3 << 30
    source, target = server.export / "source", server.export / "target"
    with source.open("wb") as file:
        for offset in range(0, size, 64 << 20):
            file.seek(offset)
            file.write(os.urandom(1 << 20))
        file.truncate(size)
    with Guest("client-restart", network, shares=[directory / "server"], time_limit=600) as guest:
        load_siw(guest)
        mount(guest, server, "4.2")
        copying = begin_copy(guest, server, "source", "target", size)
        server.kill()
        assert target.stat().st_size < size, "the copy was over already: make it longer"
        time.sleep(1)
        server.start()
        copying.wait()
        subprocess.run(["cmp", str(source), str(target)], check=True)
        assert counters(server, "copies")["completed"] > 0
        assert complaints(guest, allow="not responding|server .* OK") == []
    server.assert_running()
