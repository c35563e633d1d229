"""This server and Linux's own in one guest, over the same RDMA device, and a guest that is the client of both.

Imports nothing that takes more than ``make setup``: ``make demo`` does this, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.vm.guest import Guest
from tests.vm.guest_server import Door, GuestServer, load_devices
from tests.vm.kernel_server import START
from tests.vm.mounts import rdma_options
from tests.vm.network import Namespace
from tests.vm.server import MOUNTD_PORT, RDMA_PORT

SERVERS = ("rdma-nfsd", "knfsd")
KNFSD_RDMA_PORT, KNFSD_MOUNTD_PORT = 20051, 20058
Pair = tuple[GuestServer, Guest]
"""A guest that serves, and one that is a client."""


def mount(client: Guest, door: Door, name: str, version: str, point: str) -> str:
    """Mount the export of one of the servers behind a door; the options it has."""
    if name == "rdma-nfsd":
        options, path = rdma_options(version), door.export_name(version)
    else:
        options = rdma_options(version, port=KNFSD_RDMA_PORT)
        options = options.replace(f"mountport={MOUNTD_PORT}", f"mountport={KNFSD_MOUNTD_PORT}")
        path = "/export" if version == "3" else "/"
    command = f"timeout -s KILL 30 mount -t nfs -o {options} {door.address}:{path} {point}"
    # once more for siw, whose accepting side can overlook a first message (tests.vm.mounts)
    client.run(f"mkdir -p {point}; {command} || {command} || {command}", timeout=180)
    return options


@contextmanager
def two_guests(network: Namespace, device: str, time_limit: float, quiet: bool = False) -> Iterator[Pair]:
    """Boot a guest in which both servers serve /export over a device, and a client with the same device."""
    listen = [{"url": f"rdma://0.0.0.0:{RDMA_PORT}", "provider": "verbs"}]
    with (
        GuestServer(network, (device,), listen=listen, time_limit=time_limit, quiet=quiet) as server,
        Guest("client", network, memory=1024, time_limit=time_limit, quiet=quiet) as client,
    ):
        load_devices(client, (device,))
        client.run("modprobe rpcrdma")
        script = START.format(options="sync", mountd=KNFSD_MOUNTD_PORT, rdma=KNFSD_RDMA_PORT)
        server.guest.run(script, timeout=120, label="start knfsd")
        yield server, client
