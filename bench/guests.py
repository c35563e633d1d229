"""Servers in a Linux guest: the kernel's own, and rdma-nfsd over the same RDMA device (siw), in one boot.

The load comes from here, over the guest's network interface: plain TCP, or iWARP to its software RDMA device. CPU is
what the host spends on running the guest's processors, all of them, since the kernel's server and software RDMA work in
kernel threads and softirqs. An emulated processor's microseconds are nobody else's: such figures compare with each
other only.

Owns the guest while it is needed; imports the guest lab, :mod:`tests.vm`.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.calls import FILE_SIZE, Files
from bench.namespaces import Inside
from bench.nfs4 import Session
from bench.nfs4_client import Failed
from bench.scenarios import Scenario, local, prepare
from bench.servers import IN_GUEST, Cpu, Server, connect_iwarp, connect_tcp, counters_in, events_of
from bench.study import progress
from bench.turns import take_turns
from tests.vm.guest import PATIENCE, Guest, accelerator
from tests.vm.guest_server import GuestServer
from tests.vm.kernel_server import START
from tests.vm.network import Namespace
from tests.vm.packages import BuildError
from tests.vm.server import MOUNTD_PORT, RDMA_PORT, TCP_PORT
from tests.vm.two_servers import KNFSD_MOUNTD_PORT, KNFSD_RDMA_PORT

DEVICE = "siw"
OUR_TCP_PORT, METRICS_PORT = 2050, 9587


class InGuest(Server):
    """A server in the guest, by its ports."""

    transports = ("tcp", "rdma")
    rdma: int

    def __init__(self, guest: Guest, namespace: str) -> None:
        self.guest, self.host, self._namespace = guest, guest.address, namespace

    def network(self) -> AbstractContextManager[None]:
        return Inside(Path("/run/netns") / self._namespace)

    def lay_out(self, size: int) -> None:
        self.guest.run(
            "test -e /export/data || { head -c 1M /dev/urandom >/tmp/part; "
            f"for i in $(seq {size >> 20}); do cat /tmp/part; done >/export/data; }}; chmod 666 /export/data; "
            "chmod 777 /export",
            timeout=300,
            label="make the file of data",
        )

    def cpu(self) -> Cpu:
        return Cpu(0.0, 0.0, self.guest.processor_seconds())

    def memory(self) -> int:
        return 0

    def connect(self, transport: str) -> socket.socket:
        if transport == "tcp":
            return connect_tcp(self.host, self.tcp)
        sock = connect_iwarp(self.host, self.rdma)
        # siw's accepting side overlooks what comes before it has done with accepting, and wakes up with the next only.
        time.sleep(0.5)
        return sock

    def stop(self) -> None:
        """It ends with its guest."""


class Verbs(InGuest):
    """rdma-nfsd over the guest's device, and over TCP."""

    name = IN_GUEST[0]
    tcp, rdma, mountd = OUR_TCP_PORT, RDMA_PORT, MOUNTD_PORT

    def events(self) -> dict[str, float]:
        with self.network(), urllib.request.urlopen(f"http://{self.host}:{METRICS_PORT}/metrics") as reply:
            return events_of(counters_in(reply.read().decode()))


class Kernel(InGuest):
    """The kernel's server."""

    name = IN_GUEST[1]
    tcp, rdma, mountd = TCP_PORT, KNFSD_RDMA_PORT, KNFSD_MOUNTD_PORT
    root4 = "/"


GUESTS: dict[str, type[InGuest]] = dict(zip(IN_GUEST, (Verbs, Kernel), strict=True))


@contextmanager
def booted(names: Sequence[str], time_limit: float, shares: Sequence[Path] = ()) -> Iterator[list[InGuest]]:
    """The servers in a guest, which has these directories. Raises SystemExit, which says what is missing here."""
    missing = [program for program in ("qemu-system-x86_64", "ip") if shutil.which(program) is None]
    if missing:
        raise SystemExit(f"no {' and no '.join(missing)} here: tests/vm/host-packages.sh guest")
    with ExitStack() as ends:
        try:
            network = ends.enter_context(Namespace())
        except OSError as error:
            raise SystemExit(f"servers in a guest need a network namespace, which root can make: {error}") from None
        listen = [{"url": f"rdma://0.0.0.0:{RDMA_PORT}", "provider": "verbs"}, f"tcp://0.0.0.0:{OUR_TCP_PORT}"]
        metrics = {"metrics": {"listen": f"0.0.0.0:{METRICS_PORT}"}}
        progress("a guest boots")
        try:
            ours = ends.enter_context(
                GuestServer(
                    network, (DEVICE,), listen=listen, server=metrics, time_limit=time_limit, quiet=True, shares=shares
                )
            )
        except BuildError as error:
            raise SystemExit(f"no guest: {error}") from None
        if Kernel.name in names:
            script = START.format(options="sync", mountd=KNFSD_MOUNTD_PORT, rdma=KNFSD_RDMA_PORT)
            ours.guest.run(script, timeout=120, label="start knfsd")
        servers = [GUESTS[name](ours.guest, network.name) for name in names]
        for server in servers:
            _await_grace(server)
        yield servers


def _await_grace(server: InGuest) -> None:
    """Wait until the server lets a client open the file of data, which is laid out here."""
    server.lay_out(FILE_SIZE)
    until = time.monotonic() + 60 * PATIENCE
    while True:
        try:
            with server.network():
                Session(server, 1, 0)
            return
        except (Failed, OSError, EOFError):
            if time.monotonic() > until:
                raise
            time.sleep(1)


def measure(
    names: Sequence[str], chosen: Sequence[Scenario], transports: Sequence[str], rounds: int, seconds: float, uid: int
) -> dict[str, Any]:
    """The guest's part of what a run finds."""
    chosen = [scenario for scenario in chosen if not local(scenario)]
    turns = len(names) * len(chosen) * 2 * rounds
    with booted(names, 600 + turns * (seconds + 5)) as guests:
        servers: list[tuple[Server, Files]] = []
        for server in guests:
            with server.network():
                servers.append((server, asyncio.run(prepare(server, uid))))
        found = take_turns(servers, chosen, transports, rounds, seconds)
        guest = guests[0].guest
        kernel, processors = guest.run("uname -r; nproc", label="which kernel").output.split()
    return {
        "accelerator": accelerator().partition(",")[0],
        "kernel": kernel,
        "processors": int(processors),
        "servers": {name: one.result() for name, one in found.items()},
    }
