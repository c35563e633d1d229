"""Servers under test: started on a directory of their own, their CPU time read, stopped again."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


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


class Server:
    """rdma-nfsd with its defaults, over TCP and over the embedded provider, exporting a directory to everybody."""

    name = "rdma-nfsd"

    def __init__(self, directory: Path) -> None:
        self.export = directory / "export"
        self.export.mkdir()
        self.tcp, self.rdma, self.mountd = free_port(), free_port(), free_port()
        config = directory / "config.yaml"
        config.write_text(
            f'server:\n  listen: ["rdma://127.0.0.1:{self.rdma}", "tcp://127.0.0.1:{self.tcp}"]\n'
            f"  mountd_port: {self.mountd}\n  state_dir: {directory}/state\n  rpcbind: false\n"
            f"exports:\n  - {{path: {self.export}, pseudo: /export, squash: none}}\n"
        )
        command = [sys.executable, "-c", "from nfsd.cli import main; raise SystemExit(main())", "serve", "--config"]
        self.process = subprocess.Popen(
            [*command, str(config)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        if not self.process.stdout.readline().startswith("rdma-nfsd ready:"):
            raise SystemExit("the server did not start")

    def cpu(self) -> tuple[float, float]:
        """Seconds of CPU so far."""
        return cpu_of(self.process.pid)

    def memory(self) -> int:
        """Octets of the most memory it has used."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))

    def connect(self, transport: str) -> socket.socket:
        """A connection; over RDMA, MPA is negotiated without CRC and Markers (RFC 5044, 6581, 8797)."""
        sock = socket.create_connection(("127.0.0.1", self.tcp if transport == "tcp" else self.rdma))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if transport == "tcp":
            return sock
        # IRD 32, ORD 0; then the private data of a peer like Linux: remote invalidation, 4096 octets both ways.
        body = struct.pack(">HH", 32, 0) + bytes.fromhex("f6ab0e1801010303")
        sock.sendall(b"MPA ID Req Frame" + bytes((0x10, 2)) + struct.pack(">H", len(body)) + body)
        head = sock.recv(20, socket.MSG_WAITALL)
        sock.recv(int.from_bytes(head[18:], "big"), socket.MSG_WAITALL)
        if head[:16] != b"MPA ID Rep Frame" or head[16] & 0x20:
            raise ConnectionError("the server rejected the connection")
        return sock

    def stop(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
