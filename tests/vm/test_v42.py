"""NFSv4.2 with a Linux client: holes, space, copies, clones and extended attributes go to the server. One boot."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.build import REPO
from tests.vm.guest import Guest
from tests.vm.mounts import complaints, load_siw, mount
from tests.vm.network import Network
from tests.vm.server import Server

POINT = "/mnt/nfs"
INSIDE = REPO / "tests" / "vm" / "inside" / "sparse_and_copies.py"
OPERATIONS = (
    "SEEK", "ALLOCATE", "DEALLOCATE", "COPY", "CLONE", "GETXATTR", "SETXATTR", "LISTXATTRS", "REMOVEXATTR",
)  # fmt: skip


@pytest.fixture(scope="module")
def sharing_server(network: Network, directory: Path) -> Iterator[Server]:
    """A server whose export is a file system that can share blocks."""
    image, export = directory / "image", directory / "server" / "export"
    export.mkdir(parents=True)
    subprocess.run(["truncate", "-s", "512M", str(image)], check=True)
    subprocess.run(["mkfs.xfs", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(export)], check=True)
    try:
        with Server(directory / "server", network) as server:
            yield server
    finally:
        subprocess.run(["umount", "-l", str(export)], check=True)


def counts(guest: Guest) -> dict[str, tuple[int, int]]:
    """How often the client sent each operation, and how often it failed (the last number of its line)."""
    stats = guest.run("cat /proc/self/mountstats", label="mountstats").output
    found = re.findall(r"^\s+([A-Z_]+): ([\d ]+)$", stats.partition(f"mounted on {POINT} ")[2], re.MULTILINE)
    return {name: (int(numbers.split()[0]), int(numbers.split()[-1])) for name, numbers in found}


def test_programs_find_holes_space_copies_clones_and_attributes(
    network: Network, sharing_server: Server, directory: Path
) -> None:
    with Guest("client-v42", network, shares=[directory / "server"], time_limit=600) as guest:
        load_siw(guest)
        mount(guest, sharing_server, "4.2")
        guest.run(f"mkdir {POINT}/work && python3 {INSIDE} {POINT}/work", timeout=300)
        sent = counts(guest)
        for name in OPERATIONS:
            assert sent[name][0] > 0, f"the client did not use {name}"
        # Others fail as they should: what is not there, lists for which a program's first buffer is too small.
        for name in ("ALLOCATE", "DEALLOCATE", "COPY", "CLONE", "REMOVEXATTR"):
            assert sent[name][1] == 0, f"{name} failed {sent[name][1]} times"
        assert not complaints(guest)
    sharing_server.assert_running()
