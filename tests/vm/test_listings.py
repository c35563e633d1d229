"""A Linux client over proto=rdma lists a directory again and again: from the server's memory, and right each time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.vm.guest import Guest
from tests.vm.marks import ANY_V4
from tests.vm.mounts import complaints, load_siw, mount
from tests.vm.network import Network
from tests.vm.server import Server

METRICS_PORT = 9587
FILES, TIMES = 60, 6


@pytest.fixture(scope="module")
def server(network: Network, directory: Path) -> Iterator[Server]:
    settings = {"metrics": {"listen": f"{network.listen_address}:{METRICS_PORT}"}}
    with Server(directory / "server", network, server=settings) as server:
        yield server


@pytest.fixture(scope="module")
def guest(network: Network, server: Server) -> Iterator[Guest]:
    with Guest("one", network, memory=1024, cpus=1, time_limit=600) as made:
        load_siw(made)
        yield made


def recalled(server: Server) -> int:
    """Entries that the server has listed from memory."""
    url = f"http://{server.network.listen_address}:{METRICS_PORT}/metrics"
    asking = f"import urllib.request; print(urllib.request.urlopen('{url}', timeout=10).read().decode())"
    done = subprocess.run(
        [*server.network.enter, sys.executable, "-c", asking], capture_output=True, text=True, check=True
    )
    found = re.search(r"^rdma_nfsd_recalled_entries_total (\d+)", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return int(found[1])


def told(directory: Path) -> list[str]:
    """What the kernel tells of the files."""
    lines = []
    for entry in os.scandir(directory):
        status = entry.stat(follow_symlinks=False)
        lines.append(
            f"{entry.name} {status.st_size} {status.st_mode & 0o7777:o} {status.st_nlink} {status.st_ino} "
            f"{status.st_mtime_ns // 10**9}"
        )
    return sorted(lines)


def seen(guest: Guest, directory: str) -> list[list[str]]:
    """What the client finds, some times, each time without anything that it remembers."""
    listing = rf"find {directory} -mindepth 1 -maxdepth 1 -printf '%f %s %m %n %i %Ts\n'"
    again = f"for i in $(seq {TIMES}); do echo 3 >/proc/sys/vm/drop_caches; {listing}; echo; done"
    output = guest.run(f"({again}) 2>&1", timeout=240, label="list again and again").output
    return [sorted(listing.split("\n")) for listing in output.strip().split("\n\n")]


@pytest.mark.parametrize("version", ["3", *ANY_V4])
def test_whoever_changes_files_the_next_listing_shows_it(server: Server, guest: Guest, version: str) -> None:
    point, name = f"/mnt/v{version}", f"listed-{version}"
    mount(guest, server, version, point)
    here = server.export / name
    here.mkdir(mode=0o777)
    for number in range(FILES):
        (here / f"file-{number:02}").write_text("x" * number)
        (here / f"file-{number:02}").chmod(0o666)

    def appended(path: Path) -> None:
        with path.open("a") as file:
            file.write("more")

    changes: tuple[Callable[[], object], ...] = (
        lambda: None,
        lambda: appended(here / "file-07"),
        lambda: (here / "file-08").chmod(0o604),
        lambda: guest.run(f"echo and more >>{point}/{name}/file-09"),
        lambda: os.utime(here / "file-10", (1, 2)),
        lambda: os.replace(here / "file-11", here / "file-12"),
        lambda: guest.run(f"chmod 640 {point}/{name}/file-13; mv {point}/{name}/file-14 {point}/{name}/another"),
        lambda: os.link(here / "file-15", here / "a-second-name"),
        lambda: appended(here / "a-second-name"),
    )
    before = recalled(server)
    for change in changes:
        change()
        assert seen(guest, f"{point}/{name}") == [told(here)] * TIMES
    listed = recalled(server) - before
    print(f"NFSv{version}: {listed} of {len(changes) * TIMES * FILES} entries came from memory")
    assert listed > FILES


def test_the_kernel_never_complained(server: Server, guest: Guest) -> None:
    assert complaints(guest) == []
    server.assert_running()
