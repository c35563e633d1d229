"""Delegations over proto=rdma: a Linux client that has one opens and writes without asking, until another client or a
local process comes, and over a restart of the server."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.vm.build import chosen_kernel
from tests.vm.guest import Guest
from tests.vm.marks import V4
from tests.vm.mounts import complaints, load_siw, mount
from tests.vm.network import Namespace, Network
from tests.vm.server import Server

LEASE = 15
"""Seconds; a recall that the client does not answer would hold up the others this long."""
SOON = 10
"""Seconds: well below the lease, and enough for one DELAY of the Linux client's."""
METRICS_PORT = 9587


class Pair:
    """Two guests with one mount per version at /mnt/vVERSION, and their server."""

    def __init__(self, one: Guest, two: Guest, server: Server) -> None:
        self.one = one
        self.two = two
        self.server = server

    def mount(self, version: str) -> str:
        point = f"/mnt/v{version}"
        for guest in (self.one, self.two):
            if guest.run(f"mountpoint -q {point}", check=False).rc:
                mount(guest, self.server, version, point)
        return point


@pytest.fixture(scope="module")
def pair(network: Network, directory: Path) -> Iterator[Pair]:
    settings = {
        "nfs4": {"lease_time": LEASE, "grace_time": LEASE},
        "metrics": {"listen": f"{network.listen_address}:{METRICS_PORT}"},
    }
    with (
        Server(directory / "server", network, server=settings) as server,
        Guest("one", network, memory=1024, cpus=1, time_limit=900) as one,
        Guest("two", network, memory=1024, cpus=1, time_limit=900) as two,
    ):
        for guest in (one, two):
            load_siw(guest)
        yield Pair(one, two, server)


def events(server: Server, event: str) -> int:
    """How many delegations the server has given, recalled, …, since it was started."""
    asking = (
        "import urllib.request; print(urllib.request.urlopen"
        f"('http://{server.network.listen_address}:{METRICS_PORT}/metrics', timeout=10).read().decode())"
    )
    done = subprocess.run(
        [*server.network.enter, sys.executable, "-c", asking], capture_output=True, text=True, check=True
    )
    found = re.search(rf'delegation_events_total{{event="{event}"}} (\d+)', done.stdout)
    assert found, done.stdout
    return int(found[1])


def soon(condition: Callable[[], bool], what: str, seconds: float = SOON) -> None:
    """It becomes true, usually before a lease could have helped. A Linux client returns a delegation when its last
    writes are under way, not when they have been answered."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def operations(guest: Guest, point: str) -> dict[str, int]:
    """How often the client has sent each operation for a mount, as it counts itself (/proc/self/mountstats)."""
    stats = guest.run("cat /proc/self/mountstats", label="mountstats").output
    for device in re.split(r"^device ", stats, flags=re.MULTILINE):
        if f" mounted on {point} with fstype nfs" in device:
            return {name: int(count) for name, count in re.findall(r"^\s+([A-Z_0-9]+): (\d+) ", device, re.MULTILINE)}
    raise AssertionError(f"{point} is no NFS mount")


def opens_sent(guest: Guest, point: str, command: str) -> int:
    """OPENs that a command costs."""
    before = operations(guest, point)
    guest.run(command)
    after = operations(guest, point)
    return sum(after[name] - before[name] for name in ("OPEN", "OPEN_NOATTR"))


def reading(path: str, times: int = 1) -> str:
    return f"for i in $(seq {times}); do cat {path} >/dev/null || exit 1; done"


def can_be_called(pair: Pair, version: str) -> bool:
    """Whether the server can call clients of this version: in 4.0 it must be able to dial them."""
    return version != "4.0" or isinstance(pair.server.network, Namespace)


def delegate(pair: Pair, version: str, path: str, command: str) -> None:
    """Have the first client use a file until it is delegated: its opens cost nothing."""
    point = pair.mount(version)
    for _ in range(20):
        if opens_sent(pair.one, point, command) == 0:
            assert can_be_called(pair, version)
            return
        time.sleep(0.5)
    assert not can_be_called(pair, version), f"{path} is not delegated"


@pytest.mark.parametrize("version", V4)
def test_a_read_delegation_spares_the_opens_until_another_client_writes(pair: Pair, version: str) -> None:
    point, name = pair.mount(version), f"read-{version}"
    (pair.server.export / name).write_text("first\n")
    path = f"{point}/{name}"
    delegate(pair, version, path, reading(path, 3))
    if can_be_called(pair, version):
        assert opens_sent(pair.one, point, reading(path, 50)) == 0
        # Both may read under delegations of their own.
        assert pair.two.run(f"cat {path}").output == "first\n"
        assert opens_sent(pair.one, point, reading(path)) == 0
    returned = operations(pair.one, point)["DELEGRETURN"]
    started = time.monotonic()
    pair.two.run(f"echo second >{path}")
    assert time.monotonic() - started < LEASE
    assert pair.one.run(f"cat {path}").output == "second\n"
    assert operations(pair.one, point)["DELEGRETURN"] - returned == can_be_called(pair, version)


@pytest.mark.parametrize("version", V4)
def test_what_was_written_under_a_delegation_is_there_for_the_other_client(pair: Pair, version: str) -> None:
    point, name = pair.mount(version), f"write-{version}"
    path = f"{point}/{name}"
    delegate(pair, version, path, f"for i in 1 2 3; do echo line $i >>{path}; done")
    returned = operations(pair.one, point)["DELEGRETURN"]
    if can_be_called(pair, version):
        assert opens_sent(pair.one, point, f"for i in $(seq 20); do echo more $i >>{path}; done") == 0
    pair.one.run(f"echo last >>{path}")
    size = int(pair.one.run(f"stat -c %s {path}").output)
    started = time.monotonic()
    # The size is the first client's to know (CB_GETATTR); the data comes with the recall.
    assert int(pair.two.run(f"stat -c %s {path}").output) == size
    soon(lambda: pair.two.run(f"tail -n 1 {path}").output == "last\n", "the last line")
    assert time.monotonic() - started < LEASE
    assert pair.two.run(f"sha256sum <{path}").output == pair.one.run(f"sha256sum <{path}").output
    assert operations(pair.one, point)["DELEGRETURN"] - returned == can_be_called(pair, version)


@pytest.mark.parametrize("version", V4)
def test_local_processes_have_delegations_recalled(pair: Pair, version: str) -> None:
    point, name = pair.mount(version), f"local-{version}"
    local, path = pair.server.export / name, f"{point}/{name}"
    local.write_text("first\n")
    delegate(pair, version, path, reading(path, 3))
    local.write_text("written here\n")
    assert pair.one.run(f"cat {path}").output == "written here\n"
    # What the client has written and not sent yet is there when a local process opens the file.
    written = f"{path}-written"
    delegate(pair, version, written, f"for i in 1 2 3; do echo line $i >>{written}; done")
    pair.one.run(f"echo last >>{written}")
    soon(lambda: (pair.server.export / f"{name}-written").read_text().endswith("last\n"), "the last line")
    with (pair.server.export / f"{name}-written").open("a") as file:
        file.write("and this\n")
    assert pair.one.run(f"tail -n 1 {written}").output == "and this\n"


@pytest.mark.parametrize("version", V4)
def test_delegations_are_reclaimed_over_a_kill_of_the_server(pair: Pair, version: str) -> None:
    point, name = pair.mount(version), f"kept-{version}"
    path = f"{point}/{name}"
    (pair.server.export / name).write_text("first\n")
    delegate(pair, version, path, reading(path, 3))
    # A client reclaims the delegations of files it has open.
    holder = pair.one.start(f"exec 3<{path}; echo open; sleep 45; cat <&3", 120, "hold the file open")
    holder.wait_for("open\n")
    try:
        pair.server.kill()
        time.sleep(1)
        pair.server.start()
        pair.one.run(f"stat {point} >/dev/null; ls {point} >/dev/null", timeout=3 * LEASE)
        pair.two.run(f"ls {point} >/dev/null", timeout=3 * LEASE)
        if can_be_called(pair, version):
            # It learns of the restart when it renews its lease, unless something made it ask before.
            soon(lambda: events(pair.server, "reclaimed") == 1, "the reclaimed delegation", LEASE)
            assert events(pair.server, "granted") == 1, "given anew, not kept"
            soon(lambda: opens_sent(pair.one, point, reading(path, 20)) == 0, "opens in spite of the delegation")
        returned = operations(pair.one, point)["DELEGRETURN"]
        pair.two.run(f"echo second >{path}", timeout=4 * LEASE)
        assert pair.one.run(f"cat {path}").output == "second\n"
        assert operations(pair.one, point)["DELEGRETURN"] - returned == can_be_called(pair, version)
    finally:
        holder.wait()  # what it holds would be reclaimed in the next test, too


def test_the_kernels_never_complained(pair: Pair) -> None:
    for guest in (pair.one, pair.two):
        assert complaints(guest, allow="not responding|server .* OK") == []
    pair.server.assert_running()


@pytest.mark.newest
@pytest.mark.skipif(chosen_kernel() != "newest", reason="Linux asks for directories to be delegated from 6.19 on")
@pytest.mark.parametrize("who", ["another client", "a local process"])
def test_a_delegated_directory_shows_what_others_do(pair: Pair, who: str) -> None:
    """The client looks at it without asking, until somebody else changes it."""
    point, name = pair.mount("4.2"), who.replace(" ", "-")
    directory = pair.server.export / name
    directory.mkdir()
    (directory / "file").touch()
    directory.chmod(0o777)
    asked = events(pair.server, "granted_directories")
    listing = f"ls -l {point}/{name}"
    assert "file" in pair.one.run(f"{listing} >/dev/null && {listing}").output
    assert events(pair.server, "granted_directories") > asked
    recalled = events(pair.server, "recalled")
    if who == "another client":
        pair.two.run(f"touch {point}/{name}/new", timeout=60)
        assert "new" in pair.one.run(listing).output
    else:
        (directory / "new").touch()
        soon(lambda: "new" in pair.one.run(listing).output, "the client goes on showing what was there")
    assert events(pair.server, "recalled") > recalled


@pytest.mark.newest
@pytest.mark.skipif(chosen_kernel() == "6.1", reason="Linux asks for times to be delegated from 6.11 on")
def test_a_client_keeps_the_times_of_a_file_that_it_writes_to(pair: Pair) -> None:
    """It tells them where another client asks, and when the file is recalled (RFC 9754 section 5)."""
    point, name = pair.mount("4.2"), "times"
    path, local = f"{point}/{name}", pair.server.export / name
    pair.one.run(f"exec 5>>{path}; echo line >&5; sync {path}", label="a file written to")
    before, written = operations(pair.one, point)["SETATTR"], local.stat().st_mtime
    time.sleep(4)
    touched = int(pair.one.run(f"touch {path} && stat -c %Y {path}").output)
    assert operations(pair.one, point)["SETATTR"] == before
    assert local.stat().st_mtime == written
    recalled = events(pair.server, "recalled")
    # The clocks of guests and host may differ a little; a time in the future becomes now.
    assert abs(int(pair.two.run(f"stat -c %Y {path}").output) - touched) <= 1
    assert events(pair.server, "recalled") == recalled
    assert pair.two.run(f"cat {path}").output == "line\n"
    soon(lambda: abs(local.stat().st_mtime - touched) < 2, "the time that the client told when it returned the file")
