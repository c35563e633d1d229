"""The server under test inside a guest: ``rdma-nfsd serve`` on a kernel that has RDMA devices (rdma_rxe, siw).

The guest's root is the host's own file system, so the interpreter that runs the tests, its packages and this clone with
its extensions are simply there, as they are at that moment: nothing is copied or built. The verbs libraries and
``rdma``(8) lie in the lab's packages.

``GuestServer`` looks to a client like :class:`tests.vm.server.Server`; what the host's server answers from the host's
file system, it answers by a command in its guest.
"""

from __future__ import annotations

import base64
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.vm.build import REPO
from tests.vm.guest import Guest
from tests.vm.network import Network
from tests.vm.server import MOUNTD_PORT, RDMA_PORT, TCP_PORT, ServerError, command

SOFTIWARP_PORT = 20050
"""Where the embedded provider listens when the devices have port 20049."""


DEVICES = {"siw": "siw0", "rxe": "rxe0"}
"""The kinds of software RDMA device, and the names they get."""
MODULES = {"siw": "siw", "rxe": "rdma_rxe"}

PLACES = (("eth0", "10.99.0."), ("eth1", "10.98.0."))
"""The network interface and the subnet of a guest's first device, and of its second.

RDMA-CM takes a device by the interface that the route to the address leads over. With two devices on one interface it
would take the first and never the other.
"""


def address_over(guest: Guest, kind: str, kinds: Sequence[str] = tuple(DEVICES)) -> str:
    """The address of a guest's that is reached over a kind of device, when it has ``kinds``."""
    return PLACES[kinds.index(kind)][1] + guest.address.rpartition(".")[2]


def six(address: str) -> str:
    """The IPv6 address beside an IPv4 address of a guest with devices."""
    _, subnet, _, host = address.split(".")
    return f"fd00:{subnet}::{host}"


def load_devices(guest: Guest, kinds: Sequence[str] = tuple(DEVICES), *, added: bool = False) -> None:
    """Give the guest software RDMA devices, and the character devices that programs use.

    For two kinds it must have two interfaces. ``added``: it has the devices, and only their addresses may be lacking.
    """
    host = guest.address.rpartition(".")[2]
    commands = [f"modprobe -a {' '.join(MODULES[kind] for kind in kinds)} ib_uverbs rdma_ucm"]
    for kind, (netdev, subnet) in zip(kinds, PLACES, strict=False):
        if netdev != "eth0":
            # Both interfaces are on one bridge: each must answer for its own address only, or packets for one device
            # come in over the other's interface, where nobody wants them.
            commands.append("echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore")
            commands.append("echo 2 >/proc/sys/net/ipv4/conf/all/arp_announce")
            commands.append(f"ip addr replace {subnet}{host}/24 dev {netdev}")
            commands.append(f"ip link set {netdev} mtu $(cat /sys/class/net/eth0/mtu) up")
        commands.append(f"ip addr replace {six(subnet + host)}/64 dev {netdev} nodad")
        if not added:
            commands.append(f"rdma link add {DEVICES[kind]} type {kind} netdev {netdev}")
    guest.run(" && ".join([*commands, "rdma link show"]), timeout=60, label=f"rdma link add {' '.join(kinds)}")


def compile_here(*more: str) -> None:
    """Have the byte code of this clone in place, and of ``more`` directories of it: compiling it in an emulated guest
    takes longer than all the rest."""
    places = [REPO / place for place in ("nfsd", "rpcrdma", *more)]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *places], check=True)


@dataclass(frozen=True)
class Door:
    """A server by one of its addresses."""

    server: GuestServer
    address: str
    """In brackets if it is an IPv6 address."""

    def export_name(self, version: str) -> str:
        """The export's name for clients, the same for every NFS version."""
        return self.server.export_name(version)

    def sha256(self, name: str) -> str:
        """The SHA-256 of a file of the export, as the server's own file system has it."""
        return self.server.sha256(name)

    def assert_running(self) -> None:
        """Raises ServerError when the process has ended by itself."""
        self.server.assert_running()


class GuestServer:
    """A guest in which ``rdma-nfsd`` serves /export, a tmpfs; use as a context manager.

    ``kinds`` are the guest's RDMA devices. ``listen`` overrides the listeners, ``server`` adds to the ``server:``
    mapping. Lives in ``guest``, which may be used for more.
    """

    def __init__(
        self,
        network: Network,
        kinds: Sequence[str] = tuple(DEVICES),
        *,
        listen: Sequence[Any] | None = None,
        server: Mapping[str, Any] | None = None,
        name: str = "server",
        memory: int = 2048,
        export_size: str = "768m",
        time_limit: float = 3600,
        quiet: bool = False,
        shares: Sequence[Path] = (),
    ) -> None:
        compile_here()
        self.guest = Guest(
            name, network, memory=memory, time_limit=time_limit, quiet=quiet, shares=shares, interfaces=len(kinds)
        )
        self.kinds = tuple(kinds)
        self.address = self.guest.address
        self.ready_line = ""
        self._running = False
        try:
            self.guest.run(f"mkdir /export /srv/nfsd && mount -t tmpfs -o size={export_size} export /export")
            load_devices(self.guest, kinds)
        except BaseException:
            self.guest.close()
            raise
        self.configure(listen if listen is not None else self.default_listen(), server or {})

    def default_listen(self) -> list[Any]:
        """Devices on the usual port, the embedded provider beside them, and TCP."""
        return [
            {"url": f"rdma://*:{RDMA_PORT}", "provider": "verbs"},
            {"url": f"rdma://*:{SOFTIWARP_PORT}", "provider": "softiwarp"},
            f"tcp://*:{TCP_PORT}",
        ]

    def door(self, kind: str, family: int = 4) -> Door:
        """The server by the address that a client reaches over a kind of device."""
        address = address_over(self.guest, kind, self.kinds)
        return Door(self, address if family == 4 else f"[{six(address)}]")

    def netdev(self, kind: str) -> str:
        """The network interface under a kind of device, here and in a client with the same kinds."""
        return PLACES[self.kinds.index(kind)][0]

    def configure(self, listen: Sequence[Any], server: Mapping[str, Any]) -> None:
        """Write the configuration for the next start."""
        document = {
            "server": {
                "listen": list(listen),
                "mountd_port": MOUNTD_PORT,
                "state_dir": "/srv/nfsd/state",
                "rpcbind": False,
                **server,
            },
            "exports": [{"path": "/export", "pseudo": "/export", "access": "rw", "squash": "none", "clients": ["*"]}],
        }
        text = base64.b64encode(yaml.safe_dump(document).encode()).decode()
        self.guest.run(f"base64 -d <<<{text} >/srv/nfsd/exports.yaml", label="write exports.yaml")

    def start(self, timeout: float = 300, environment: Mapping[str, str] | None = None) -> None:
        """Start and wait for the ready line. Raises ServerError with the log when it does not come."""
        assert not self._running
        argv = shlex.join([*command(), "serve", "--config", "/srv/nfsd/exports.yaml"])
        extra = " ".join(f"{name}={shlex.quote(value)}" for name, value in (environment or {}).items())
        script = (
            "cd /srv/nfsd; rm -f ready\n"
            # byte code is kept (in the guest's own tmpfs): the next start takes a third of the time
            f"unset PYTHONDONTWRITEBYTECODE; export PYTHONPATH={shlex.quote(str(REPO))} PYTHONUNBUFFERED=1 {extra}\n"
            "ulimit -l unlimited\n"  # as the systemd unit does; siw heeds the limit even for root
            f"setsid {argv} >ready 2>>log </dev/null &\n"
            "echo $! >pid\n"
            f"for i in $(seq {int(timeout * 5)}); do\n"
            "  grep -m1 '^rdma-nfsd ready:' ready && exit 0\n"
            "  kill -0 $(cat pid) 2>/dev/null || break\n"
            "  sleep 0.2\n"
            "done\n"
            "cat ready; tail -n 60 log; exit 1"
        )
        done = self.guest.run(script, timeout + 30, check=False, label="rdma-nfsd serve")
        if done.rc:
            raise ServerError(f"no ready line:\n{done.output}")
        self._running = True
        self.ready_line = done.output.strip().splitlines()[-1]

    @property
    def pid(self) -> int:
        """The process id in the guest."""
        return int(self.guest.run("cat /srv/nfsd/pid", label="pid").output)

    def kill(self) -> None:
        """SIGKILL."""
        self._end("KILL", 10)

    def stop(self, timeout: float = 40) -> None:
        """SIGTERM. Raises ServerError when it does not end in time."""
        self._end("TERM", timeout)

    def _end(self, signal: str, timeout: float) -> None:
        if not self._running:
            return
        self._running = False
        done = self.guest.run(
            f"pid=$(cat /srv/nfsd/pid); kill -{signal} $pid; for i in $(seq {int(timeout * 10)}); do "
            "kill -0 $pid 2>/dev/null || exit 0; sleep 0.1; done; kill -KILL $pid; exit 1",
            timeout=timeout + 20,
            check=False,
            label=f"kill -{signal} rdma-nfsd",
        )
        if done.rc:
            raise ServerError(f"no end {timeout:.0f} s after SIG{signal}; log:\n{self.log_tail()}")

    def export_name(self, version: str) -> str:
        """The export's name for clients, the same for every NFS version."""
        return "/export"

    def sha256(self, name: str) -> str:
        """The SHA-256 of a file of the export, as the server's own file system has it."""
        return self.guest.run(f"sha256sum /export/{name}", timeout=120).output.split()[0]

    def read_text(self, name: str) -> str:
        """The content of a text file of the export, as the server's own file system has it."""
        return base64.b64decode(self.guest.run(f"base64 -w0 /export/{name}").output).decode()

    def assert_running(self) -> None:
        """Raises ServerError when the process has ended by itself."""
        if self.guest.run("kill -0 $(cat /srv/nfsd/pid)", check=False, label="is rdma-nfsd there?").rc:
            raise ServerError(f"the server ended by itself; log:\n{self.log_tail()}")

    def log_tail(self, lines: int = 60) -> str:
        """The end of the server's log."""
        return self.guest.run(f"tail -n {lines} /srv/nfsd/log", check=False, label="the server's log").output

    def __enter__(self) -> GuestServer:
        try:
            self.start()
        except BaseException:
            self.guest.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            if exc[0] is not None and self.guest.alive():
                print(f"--- server log\n{self.log_tail(80)}")
        finally:
            self.guest.close()
