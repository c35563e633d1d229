"""Two Linux clients of one server, each with one mount per version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.vm.guest import Guest
from tests.vm.kernel_server import KernelServer
from tests.vm.mounts import load_siw, mount
from tests.vm.network import Network
from tests.vm.server import Server

# Directory caching is the client's own business (close-to-open says nothing of names); one second keeps the test short.
CACHING = "actimeo=1"


class Pair:
    """Two guests, each with one mount per version at /mnt/vVERSION."""

    def __init__(self, one: Guest, two: Guest, server: Server | KernelServer) -> None:
        self.one = one
        self.two = two
        self.server = server

    def mount(self, version: str) -> str:
        """Mount in both, unless it is already; the mount point."""
        point = f"/mnt/v{version}"
        for guest in (self.one, self.two):
            if guest.run(f"mountpoint -q {point}", check=False).rc:
                mount(guest, self.server, version, point, extra=CACHING)
        return point


@contextmanager
def two_guests(network: Network, server: Server | KernelServer) -> Iterator[Pair]:
    """Two guests with siw loaded."""
    with (
        Guest("one", network, memory=1024, cpus=1, time_limit=600) as one,
        Guest("two", network, memory=1024, cpus=1, time_limit=600) as two,
    ):
        for guest in (one, two):
            load_siw(guest)
        yield Pair(one, two, server)


def eventually(guest: Guest, condition: str, seconds: int = 10) -> None:
    """A shell condition becomes true in the guest. Raises GuestError when it does not."""
    guest.run(
        f"for i in $(seq {seconds * 4}); do if {condition}; then exit 0; fi; sleep 0.25; done; exit 1",
        timeout=seconds + 60,
        label=condition,
    )
