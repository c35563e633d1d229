"""Server CPU per operation over the embedded provider: ``python -m bench.rdma_cost [--profile DIR]``.

Starts ``rdma-nfsd`` on loopback over a directory on tmpfs, connects as a version One requester, keeps a number of NFSv3
calls outstanding, and reads the server's own CPU time (utime + stime of its process) before and after. Wall time says
little on a busy machine; CPU per operation is the figure. The generator is plain Python and slower than the server,
which matters for that figure only in that fewer calls meet in one wake-up of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from bench.requester import Requester
from rpcrdma.memory import Pool
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp import SoftIwarp, SoftIwarpOptions
from tests.nfs3_client import Nfs3Client
from tests.peer.requester import Peer
from tests.peer.rig import LINUX

FILE_SIZE = 64 << 20
TICK = os.sysconf("SC_CLK_TCK")
RDMA_PORT, TCP_PORT, MOUNTD_PORT = 20149, 12049, 20148


class Server:
    """The server process and what it has used."""

    def __init__(self, directory: Path) -> None:
        self.export = directory / "export"
        self.export.mkdir()
        config = directory / "config.yaml"
        config.write_text(
            f'server:\n  listen: ["rdma://127.0.0.1:{RDMA_PORT}", "tcp://127.0.0.1:{TCP_PORT}"]\n'
            f"  mountd_port: {MOUNTD_PORT}\n  state_dir: {directory}/state\n"
            f"exports:\n  - {{path: {self.export}, pseudo: /export, squash: none}}\n"
        )
        command = [sys.executable, "-c", "from nfsd.cli import main; raise SystemExit(main())", "serve", "--config"]
        self.process = subprocess.Popen([*command, str(config)], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        if not self.process.stdout.readline().startswith("rdma-nfsd ready:"):
            raise SystemExit("the server did not start")

    def cpu(self) -> tuple[float, float]:
        """Seconds of CPU so far, all threads: in user space, in the kernel."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) / TICK, int(fields[12]) / TICK

    def stop(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)


async def measure(
    server: Server, operation: Callable[[int], Awaitable[None]], depth: int, seconds: float
) -> tuple[float, float, float]:
    """CPU microseconds per operation on the server, in user space and in the kernel, and operations per second."""
    end = time.monotonic() + seconds
    done = 0

    async def worker(number: int) -> None:
        nonlocal done
        while time.monotonic() < end:
            await operation(number)
            done += 1

    (user, system), started = server.cpu(), time.monotonic()
    await asyncio.gather(*(worker(number) for number in range(depth)))
    user_after, system_after = server.cpu()
    rate = done / (time.monotonic() - started)
    return (user_after - user) / done * 1e6, (system_after - system) / done * 1e6, rate


def record(server: Server, directory: str, name: str, seconds: float) -> subprocess.Popen[bytes]:
    """Start py-spy on the server; folded stacks go into ``directory``."""
    path = Path(directory) / (name.replace(",", "").replace(" ", "-") + ".txt")
    command = ["py-spy", "record", "--native", "-r", "300", "-d", str(max(1, int(seconds))), "-f", "raw", "-o"]
    return subprocess.Popen(
        [*command, str(path), "-p", str(server.process.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


async def run(server: Server, seconds: float, profile: str | None) -> None:
    """Measure everything, a line each."""
    (server.export / "data").write_bytes(random.randbytes(1 << 20) * (FILE_SIZE >> 20))
    async with await Nfs3Client.connect("127.0.0.1", MOUNTD_PORT) as mountd:
        root = await mountd.mount("/export")
    async with await Nfs3Client.connect("127.0.0.1", TCP_PORT) as nfs:
        handle = await nfs.lookup(root, b"data")
    pool = Pool(256 << 20)
    provider = SoftIwarp(pool, SoftIwarpOptions())
    peer = Peer(pool.account(128 << 20))
    await peer.connect(provider, ListenAddress("127.0.0.1", RDMA_PORT), LINUX, receives=96)
    requester = Requester(peer, handle)
    small = [bytearray(random.randbytes(4096)) for _ in range(32)]
    large = [bytearray(random.randbytes(1 << 20)) for _ in range(4)]

    def at(size: int) -> int:
        return random.randrange(FILE_SIZE // size) * size

    scenarios: list[tuple[str, int, Callable[[int], Awaitable[None]]]] = [
        ("GETATTR", 16, lambda n: requester.getattr()),
        ("READ 4 KiB", 1, lambda n: requester.read(small[n], at(4096))),
        ("READ 4 KiB", 32, lambda n: requester.read(small[n], at(4096))),
        ("WRITE 4 KiB", 32, lambda n: requester.write(small[n], at(4096))),
        ("READ 1 MiB", 4, lambda n: requester.read(large[n], at(1 << 20))),
        ("WRITE 1 MiB", 4, lambda n: requester.write(large[n], at(1 << 20))),
    ]
    print(f"{'over softiwarp':20} {'outstanding':>11} {'server CPU µs/op':>17} {'user':>7} {'kernel':>7} {'op/s':>9}")
    for name, depth, operation in scenarios:
        recorder = record(server, profile, f"{name} {depth}", seconds) if profile is not None else None
        user, system, rate = await measure(server, operation, depth, seconds)
        if recorder is not None:
            recorder.wait()
        print(f"{name:20} {depth:11} {user + system:17.1f} {user:7.1f} {system:7.1f} {rate:9.0f}", flush=True)
    requester.close()
    peer.endpoint.close()
    await provider.close()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Server CPU per NFSv3 operation over the embedded provider.")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each operation is measured (default 5)")
    parser.add_argument("--profile", metavar="DIR", help="also record the server with py-spy into this directory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="rdma-nfsd-bench-") as directory:
        server = Server(Path(directory))
        try:
            uvloop.run(run(server, options.seconds, options.profile))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
