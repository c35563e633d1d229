"""Linux clients of gateways over CephFS: two guests, a cluster, and two servers, all on one network.

Each guest is a client of one gateway. A gateway's second host is another state directory, at the same address.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.ceph.elsewhere import RECORDS, Ceph, ceph
from tests.vm.guest import Guest
from tests.vm.mounts import load_siw, rdma_options
from tests.vm.network import Namespace
from tests.vm.server import RDMA_PORT, Server, ServerError, command, environment

ADDRESSES: Final = {"files1": "10.99.0.101", "files2": "10.99.0.102"}
TERM: Final = 20
"""Seconds of a lease, and of a grace period."""
_STARTING: Final = 240
"""Seconds for a start, which waits for the cluster and for the other server."""


class Gateway(Server):
    """One, on one of its hosts."""

    def __init__(self, directory: Path, network: Namespace, name: str, conf: Path) -> None:
        self.name = name
        server = {
            "name": name, "portmapper": True, "nlm_port": 32803, "nsm_port": 32765,
            "nfs4": {"lease_time": TERM, "grace_time": TERM},
            "stable_storage": {"rados": {"config": str(conf), "pool": RECORDS}},
        }  # fmt: skip
        export = {"backend": "cephfs", "options": {"config": str(conf), "gateway": name}}
        super().__init__(directory, network, server=server, export=export, address=ADDRESSES[name])

    def start(self, timeout: float = _STARTING) -> None:
        """Start, and wait for the ready line."""
        super().start(timeout)

    def take_over(self) -> None:
        """As the host that goes on in another one's place. Raises ServerError."""
        self._run("takeover", self.name, "--config", str(self.config), "--fence")
        self.start()

    def sha256(self, name: str) -> str:
        """The SHA-256 of a file of the export, as a client of the other gateway reads it."""
        (other,) = (address for gateway, address in ADDRESSES.items() if gateway != self.name)
        return hashlib.sha256(self._run("cat", f"tcp://{other}/export/{name}")).hexdigest()

    def _run(self, *words: str) -> bytes:
        whole = [*self.network.enter, *command(), *words]
        done = subprocess.run(whole, capture_output=True, env=environment(), timeout=300, check=False)
        if done.returncode:
            raise ServerError(f"{' '.join(words)}: {done.returncode}: {(done.stdout + done.stderr).decode()}")
        return done.stdout


@dataclass(frozen=True)
class Site:
    """All of it."""

    one: Guest
    two: Guest
    first: Gateway
    """Which serves the guest ``one``."""
    second: Gateway
    """Which serves the guest ``two``."""
    spare: Gateway
    """The first one's other host. It does not run."""
    shared: Path
    """A directory that the guest ``one`` has, too."""
    cluster: Ceph

    def mount(self, version: str) -> str:
        """Mount in both guests, unless it is already; the mount point."""
        point = f"/mnt/v{version}"
        for guest, gateway in ((self.one, self.first), (self.two, self.second)):
            if guest.run(f"mountpoint -q {point}", check=False).rc:
                # A lock manager is wanted here: NFSv3 finds it through port 111.
                options = f"rdma,port={RDMA_PORT},vers=3,noacl" if version == "3" else rdma_options(version)
                line = f"mount -t nfs -o {options},actimeo=1 {gateway.address}:/export {point}"
                guest.run(f"mkdir -p {point} && {line}", timeout=120, label=line)
        return point


@contextmanager
def site(directory: Path) -> Iterator[Site]:
    """Bring it up. Takes root."""
    with ExitStack() as stack:
        network = stack.enter_context(Namespace())
        for address in ADDRESSES.values():
            words = ["ip", "-n", network.name, "addr", "add", f"{address}/24", "dev", "br0"]
            subprocess.run(words, check=True, capture_output=True)
        cluster, shared = directory / "cluster", directory / "shared"
        shared.mkdir()
        store = stack.enter_context(ceph(network.enter, cluster, network.server_address))
        hosts = [("first", "files1"), ("second", "files2"), ("spare", "files1")]
        made = [Gateway(directory / host, network, name, cluster / "ceph.conf") for host, name in hosts]
        for gateway in made[:2]:
            stack.enter_context(gateway)
        stack.callback(made[2].kill)
        guests = [
            stack.enter_context(Guest(name, network, memory=1536, cpus=2, shares=[shared], time_limit=3600))
            for name in ("one", "two")
        ]
        for guest in guests:
            load_siw(guest)
            guest.run("rpcbind -w 2>/dev/null || rpcbind; rpc.statd --no-notify")
        yield Site(guests[0], guests[1], made[0], made[1], made[2], shared, store)


def why_not() -> str:
    """What is missing; empty: nothing."""
    return "" if not os.geteuid() else "a network for guests and the servers between them takes root"
