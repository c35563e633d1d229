"""Two hosts and their network: namespaces, keepalived in each of them, and in their stead what is not a namespace's: a
``systemctl`` that starts and ends one daemon for each name, and a ``mount`` that binds a directory.

Owns the namespaces and the processes. The clients' namespace has the bridge, to which the hosts' ``eth0`` lead.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

CLIENTS: Final = "192.0.2.100"
_SYSTEMCTL: Final = """#!/bin/sh
for unit; do :; done
name=${{unit#rdma-nfsd@}} name=${{name%.service}}
pid={run}/$name.pid
alive() {{ [ -e "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null; }}
case $1 in
start)
    alive && exit 0
    [ ! -e {run}/$name.log ] || mv {run}/$name.log {run}/$name.former.log
    rdma-nfsd serve --config {etc}/$name.yaml > {run}/$name.log 2>&1 9>&- &
    echo $! > "$pid" ;;
stop)
    alive && kill "$(cat "$pid")"
    while alive; do sleep 0.1; done ;;
is-active)
    if alive; then echo active; else echo failed; exit 3; fi ;;
esac
"""
_RDMA_NFSD: Final = """#!/bin/sh
cd {source}
if [ "$1" = takeover ]; then set -- "$@" --config {etc}/$2.yaml; fi
exec {python} -m nfsd.cli "$@"
"""
_MOUNT: Final = """#!/bin/sh
exec /bin/mount --bind {disk} "$1"
"""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Network:
    """The namespaces, until :meth:`close`."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self.clients = self._add("clients")
        for words in (
            ("link", "add", "br0", "type", "bridge"),
            ("addr", "add", f"{CLIENTS}/24", "dev", "br0"),
            ("link", "set", "br0", "up"),
        ):
            _ip("-n", self.clients, *words)

    def host(self, name: str, address: str) -> str:
        """One more, with an ``eth0``; its namespace."""
        made, port = self._add(name), f"to-{name}"
        _ip("-n", self.clients, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", made)
        _ip("-n", self.clients, "link", "set", port, "master", "br0", "up")
        _ip("-n", made, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", made, "link", "set", "eth0", "up")
        return made

    def cut(self, name: str) -> None:
        """Nothing goes to that host any more, or comes from it."""
        _ip("-n", self.clients, "link", "set", f"to-{name}", "down")

    def close(self) -> None:
        for name in self._names:
            _ip("netns", "del", name)

    def _add(self, name: str) -> str:
        made = f"rdma-nfsd-{os.getpid()}-{name}"
        _ip("netns", "add", made)
        self._names.append(made)
        _ip("-n", made, "link", "set", "lo", "up")
        return made


class Host:
    """One, and what runs there."""

    def __init__(self, network: Network, name: str, address: str, directory: Path, disk: Path | None) -> None:
        """``disk``: what ``mount`` mounts."""
        self.name, self._network = name, network
        self.namespace = network.host(name, address)
        self.directory = directory / name
        self.etc, self.run = self.directory / "etc", self.directory / "run"
        for made in (self.etc, self.run, self.directory / "bin", self.directory / "state"):
            made.mkdir(parents=True, exist_ok=True)
        values = {
            "etc": self.etc, "run": self.run, "disk": disk, "python": sys.executable,
            "source": Path(__file__).parents[2],
        }  # fmt: skip
        tools = {"systemctl": _SYSTEMCTL, "rdma-nfsd": _RDMA_NFSD} | ({"mount": _MOUNT} if disk else {})
        for tool, text in tools.items():
            self.write(f"bin/{tool}", text.format(**values))
        self._keepalived: subprocess.Popen[bytes] | None = None

    def write(self, name: str, text: str) -> Path:
        """A file of this host, which may be executed if it is a script."""
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o755 if text.startswith("#!") else 0o644)
        return path

    def start(self) -> None:
        """Start keepalived."""
        pids = [f"--{which}pid={self.run}/keepalived{which}.pid" for which in ("", "vrrp_")]
        command = ["ip", "netns", "exec", self.namespace, "keepalived", "--dont-fork", "--log-console", "--vrrp"]
        environment = {**os.environ, "PATH": f"{self.directory}/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        with open(self.run / "keepalived.log", "ab") as log:
            self._keepalived = subprocess.Popen(
                [*command, "-f", str(self.etc / "keepalived.conf"), *pids], stdout=log, stderr=log, env=environment
            )

    def kill_server(self, name: str) -> None:
        """SIGKILL."""
        os.kill(self._pid(name), signal.SIGKILL)

    def die(self) -> None:
        """As of a power cut: nothing is told to anybody."""
        self._network.cut(self.name)
        self.end()

    def end(self) -> None:
        """Kill whatever runs."""
        found = subprocess.run(["ip", "netns", "pids", self.namespace], check=True, capture_output=True, text=True)
        for pid in map(int, found.stdout.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._keepalived is not None:
            self._keepalived.wait()
            self._keepalived = None

    def serves(self, name: str) -> bool:
        """Whether its server of that name is ready for clients."""
        log = self.run / f"{name}.log"
        return self.runs(name) and log.exists() and "rdma-nfsd ready" in log.read_text()

    def runs(self, name: str) -> bool:
        """Whether there is such a process."""
        with contextlib.suppress(OSError, ValueError):
            return Path(f"/proc/{self._pid(name)}/exe").exists()
        return False

    def _pid(self, name: str) -> int:
        return int((self.run / f"{name}.pid").read_text())

    @property
    def said(self) -> str:
        """All logs."""
        return "\n".join(f"-- {self.name}: {path.name}\n{path.read_text()}" for path in self.run.glob("*.log"))


@contextlib.contextmanager
def two_hosts(
    directory: Path, files: Callable[[Host], Mapping[str, str]], disk: Path | None = None
) -> Iterator[tuple[Network, Host, Host]]:
    """The first one has all priorities for ``files1``. ``files``: what is in each host's files, by their names."""
    network = Network()
    hosts: list[Host] = []
    try:
        for name, address in (("one", "192.0.2.1"), ("two", "192.0.2.2")):
            hosts.append(Host(network, name, address, directory, disk))
            for path, text in files(hosts[-1]).items():
                hosts[-1].write(path, text)
        yield network, hosts[0], hosts[1]
    finally:
        for host in hosts:
            host.end()
        network.close()


def wait_for(what: Callable[[], bool], why: Callable[[], str], seconds: float = 90.0) -> None:
    """Until it is so."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, why()
        time.sleep(0.1)
