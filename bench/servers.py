"""Servers under test: started on a directory of their own, their CPU time read, stopped again.

Owns :class:`RdmaNfsd` and how to reach servers; imports :mod:`bench.copies`, :mod:`bench.fixtures` and
:mod:`bench.places`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from bench import copies
from bench.fixtures import fill
from bench.places import Place

TICK = os.sysconf("SC_CLK_TCK")
TREE = Path(__file__).resolve().parents[1]
"""The checkout that this is part of."""


def free_port() -> int:
    """A TCP port nobody uses at the moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def cpu_of(pid: int) -> tuple[float, float]:
    """Seconds of CPU of a process so far, all its threads: in user space, in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / TICK, int(fields[12]) / TICK


class NotStarted(SystemExit):
    """A server did not start; it says why."""


class Cpu(NamedTuple):
    """Seconds of CPU so far."""

    user: float
    system: float
    """Both in ticks."""
    seconds: float
    """Altogether, as exact as can be had."""


def connect_tcp(host: str, port: int, own: str = "") -> socket.socket:
    """A connection to an IPv4 address that sends at once, though the machine's TCP may pace (BBR does). ``own``: from
    this address."""
    sock = socket.socket()
    try:
        if own:
            sock.bind((own, 0))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.connect((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


def connect_iwarp(host: str, port: int) -> socket.socket:
    """A connection on which MPA is negotiated without CRC and Markers (RFC 5044, 6581, 8797)."""
    sock = connect_tcp(host, port)
    # IRD 32, ORD 0; then the private data of a peer like Linux: remote invalidation, 4096 octets both ways.
    body = struct.pack(">HH", 32, 0) + bytes.fromhex("f6ab0e1801010303")
    sock.sendall(b"MPA ID Req Frame" + bytes((0x10, 2)) + struct.pack(">H", len(body)) + body)
    head = sock.recv(20, socket.MSG_WAITALL)
    sock.recv(int.from_bytes(head[18:], "big"), socket.MSG_WAITALL)
    if head[:16] != b"MPA ID Rep Frame" or head[16] & 0x20:
        sock.close()
        raise ConnectionError("the server rejected the connection")
    return sock


class Server(ABC):
    """What exports a directory as ``/export`` to everybody, with MOUNT and NFS on TCP ports."""

    name: str
    transports: tuple[str, ...] = ("tcp",)
    host = "127.0.0.1"
    tcp: int
    mountd: int
    root4 = "/export"
    """The export's path for NFSv4."""
    export: Path
    """What it exports, of a server on this machine."""
    place: Place | None = None
    """Where that is, if there are several places."""
    only: ClassVar[frozenset[str]] = frozenset()
    """The scenarios that it is measured with; none: all of them."""
    lacks: ClassVar[frozenset[str]] = frozenset()
    """Those that it cannot be measured with."""

    @property
    def label(self) -> str:
        """Its name, and its place unless that is memory."""
        return self.name if self.place is None or not self.place.device else f"{self.name} on {self.place.name}"

    @classmethod
    def has(cls, scenario: str) -> bool:
        """Whether it is measured with the scenario of that name."""
        return scenario not in cls.lacks and (not cls.only or scenario in cls.only)

    def takes(self, transports: Sequence[str], over: str, *, disks: bool) -> bool:
        """Whether a scenario that goes over these transports, and is about ``disks`` only, is measured over one of
        them. On disks, TCP says it all."""
        on_disk = self.place is not None and bool(self.place.device)
        return over in transports and over in self.transports and (over == "tcp" if on_disk else not disks)

    def settle(self) -> None:
        """Leave nothing to be written back for the next one."""
        if self.place is not None and self.place.device:
            subprocess.run(["sync", "-f", str(self.place.path)], check=True)

    def network(self) -> AbstractContextManager[None]:
        """Where sockets that are to reach it must be made."""
        return nullcontext()

    @abstractmethod
    def lay_out(self, size: int) -> None:
        """Make the file ``data`` of so many octets, which everybody may write to, as to the directory it is in."""

    @abstractmethod
    def cpu(self) -> Cpu:
        """What it has used so far."""

    def events(self) -> dict[str, float]:
        """What else it counts, so far."""
        return {}

    def copies(self, work: Callable[[], float]) -> dict[str, float]:
        """What is copied for each of the calls that ``work()`` makes and counts, as far as that can be told."""
        return {}

    @abstractmethod
    def memory(self) -> int:
        """Octets of the most memory it has used; 0: nobody knows."""

    def connect(self, transport: str) -> socket.socket:
        """A connection over one of its transports."""
        assert transport == "tcp"
        return connect_tcp(self.host, self.tcp)

    @abstractmethod
    def stop(self) -> None:
        """End it."""


class LocalServer(Server):
    """A process here that exports the directory ``export``."""

    process: subprocess.Popen[str]

    def __init__(self, directory: Path) -> None:
        self.export = directory / "export"
        self.export.mkdir(parents=True)
        self.tcp, self.mountd = free_port(), free_port()

    def lay_out(self, size: int) -> None:
        fill(self.export / "data", size)
        self.export.chmod(0o777)

    def cpu(self) -> Cpu:
        kernel = 0.0 if self.place is None else self.place.kernel_seconds()
        user, system = cpu_of(self.process.pid)
        return Cpu(user, system + kernel, self.cpu_seconds() + kernel)

    def events(self) -> dict[str, float]:
        return {} if self.place is None or not self.place.device else {"flushes": self.place.flushes()}

    def cpu_seconds(self) -> float:
        """Seconds of CPU so far to the nanosecond: the process's own clock."""
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def copies(self, work: Callable[[], float]) -> dict[str, float]:
        return copies.by_system_calls(self.process.pid, work)

    def memory(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))

    def rest(self) -> None:
        """Be stopped while others have their turns. Threads that sleep wake now and then, and those of a dozen servers
        take caches and processors from whoever is measured: up to a third of its calls."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """No longer :meth:`rest`."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class RdmaNfsd(LocalServer):
    """rdma-nfsd with its defaults, over TCP and over the embedded provider."""

    name = "rdma-nfsd"
    transports: tuple[str, ...] = ("tcp", "rdma")
    export_options: Mapping[str, Any] = {}
    """Of each of its exports, beyond what it needs."""

    def __init__(
        self,
        directory: Path,
        options: Mapping[str, Any] | None = None,
        exports: Mapping[str, Path] | None = None,
        tree: Path = TREE,
    ) -> None:
        """``options``: of the section ``server``, beyond what it needs; ``exports``: others, by pseudo path; ``tree``:
        whose code it runs, a checkout with its extensions built."""
        super().__init__(directory)
        self.rdma, self.metrics = free_port(), free_port()
        places = {"/export": self.export, **(exports or {})}
        settings = {
            "server": {
                "listen": [f"rdma://127.0.0.1:{self.rdma}", f"tcp://127.0.0.1:{self.tcp}"],
                "mountd_port": self.mountd,
                "state_dir": str(directory / "state"),
                "rpcbind": False,
                "metrics": {"listen": f"127.0.0.1:{self.metrics}"},
                **(options or {}),
            },
            "exports": [
                {**self.store(path), "pseudo": name, "squash": "none", **self.export_options}
                for name, path in places.items()
            ],
        }
        config = directory / "config.yaml"
        config.write_text(json.dumps(settings, indent=1))  # which is YAML as well
        command = [sys.executable, "-c", "from nfsd.cli import main; raise SystemExit(main())", "serve", "--config"]
        self.process = subprocess.Popen(
            [*command, str(config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
        )
        assert self.process.stdout is not None
        if not self.process.stdout.readline().startswith("rdma-nfsd ready:"):
            raise NotStarted(f"the server of {tree} did not start")
        strangers = strange_code(Path(f"/proc/{self.process.pid}/maps").read_text(), tree)
        if strangers:
            self.stop()
            raise SystemExit(f"the server of {tree} runs other code: {strangers[0]} and {len(strangers) - 1} more")

    def events(self) -> dict[str, float]:
        return super().events() | events_of(self.counters())

    def store(self, path: Path) -> dict[str, Any]:
        """What its configuration says of what an export is."""
        return {"path": str(path)}

    def counters(self) -> dict[str, float]:
        """Its metrics, by name and labels as they stand in the text."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics") as reply:
            return counters_in(reply.read().decode())

    def connect(self, transport: str) -> socket.socket:
        return super().connect(transport) if transport == "tcp" else connect_iwarp(self.host, self.rdma)


class RdmaNfsdNames(RdmaNfsd):
    """The same with ``async: names``: names and data are as durable as Ganesha's."""

    name = "rdma-nfsd-names"
    transports = ("tcp",)
    export_options: Mapping[str, Any] = {"async": "names"}


OURS = (RdmaNfsd.name, RdmaNfsdNames.name)


def strange_code(maps: str, tree: Path) -> list[str]:
    """Extensions of rdma-nfsd's that a process has mapped (the text of its ``maps``) and that are not the tree's."""
    mapped = {fields[5] for fields in (line.split(None, 5) for line in maps.splitlines()) if len(fields) == 6}
    ours = (path for path in mapped if path.endswith(".so") and re.search(r"/(nfsd|rpcrdma)/", path))
    return sorted(path for path in ours if not Path(path).is_relative_to(tree))


def counters_in(text: str) -> dict[str, float]:
    """rdma-nfsd's metrics, by name and labels as they stand in the text."""
    lines = (line for line in text.splitlines() if line[:1] != "#")
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def events_of(counters: Mapping[str, float]) -> dict[str, float]:
    """Work requests: RPC-over-RDMA's Sends, Writes, Reads and Receives; the octets of its Writes and Reads; the octets
    that the server has copied by itself; and ``declined`` calls, by procedure and why native code did not answer."""
    found = {"work_requests": 0.0, "rdma_octets": 0.0, "copied": counters.get("rdma_nfsd_copied_bytes_total", 0.0)}
    for name, value in counters.items():
        event = name.partition('event="')[2].partition('"')[0]
        if name.startswith("rdma_nfsd_rdma_events_total") and event in ("replies", "writes", "reads", "receives"):
            found["work_requests"] += value
        elif name.startswith("rdma_nfsd_rdma_events_total") and event in ("read_bytes", "write_bytes"):
            found["rdma_octets"] += value
        elif name.startswith("rdma_nfsd_declined_total"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', name))
            found[f"declined {labels['procedure'] or 'unknown'}: {labels['reason']}"] = value
    return found


IN_GUEST = ("rdma-nfsd-verbs", "kernel")
"""Servers of :mod:`bench.guests`."""


def listens(port: int) -> bool:
    """Whether anybody accepts connections there."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def wait_until(port: int, seconds: float = 20.0) -> None:
    """Wait until somebody accepts connections there. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while not listens(port):
        if time.monotonic() > until:
            raise TimeoutError(f"nobody listens on port {port}")
        time.sleep(0.1)
