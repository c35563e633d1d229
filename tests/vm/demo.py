"""``make demo``: a Linux guest beside a running server mounts over RDMA and runs fio; what happened, as it happened.

Needs no root: qemu's user-mode network, and a server of the demo's own on the loopback interface, in a temporary
directory. ``--fio JOB`` runs a job file of the user's own instead. ``--beside kernel`` does so on the kernel's server,
too, as root: two guests need a network namespace.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.fio import FioError
from tests.vm import demo_fio
from tests.vm.guest import Guest, GuestError, accelerator
from tests.vm.mounts import VERSIONS, complaints, load_siw, rdma_options, rdma_transports
from tests.vm.network import Namespace, Slirp, namespace_or_slirp
from tests.vm.server import MOUNTD_PORT, RDMA_PORT, TCP_PORT, Server, ServerError

POINT = "/mnt"
JOBS = (
    # title, fio's rw, block size, file size, queue depth
    ("sequential write, 1 MiB", "write", "1m", "128m", 4),
    ("sequential read, 1 MiB", "read", "1m", "128m", 4),
    ("random write, 4 KiB", "randwrite", "4k", "128m", 16),
    ("random read, 4 KiB", "randread", "4k", "128m", 16),
)

_start = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - _start:4.0f}s] {text}", flush=True)


def shown(text: str) -> None:
    for line in text.strip().splitlines():
        print(f"        {line}".rstrip(), flush=True)


def table(rows: Sequence[tuple[str, ...]], indent: str = "        ") -> None:
    """Columns as wide as their widest cell; the first to the left, the rest to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print(indent + "  ".join(cells).rstrip(), flush=True)
        if number == 0:
            print(indent + "  ".join("-" * width for width in widths), flush=True)


def fio(guest: Guest, pattern: str, block: str, size: str, depth: int, seconds: int) -> dict[str, Any]:
    """Run one fio job on the mount, return its figures for the direction it went."""
    done = guest.run(
        f"cd {POINT} && fio --name=demo --filename=demo.dat --rw={pattern} --bs={block} --size={size} --direct=1 "
        f"--ioengine=libaio --iodepth={depth} --runtime={seconds} --time_based=1 --output-format=json",
        timeout=seconds + 120,
    )
    (job,) = json.loads(done.output[done.output.index("{") :])["jobs"]
    if job["error"]:
        raise GuestError(f"fio: error {job['error']}")
    figures: dict[str, Any] = job["write" if "write" in pattern else "read"]
    return figures


def measure(guest: Guest, server: Server, seconds: int) -> None:
    """The four jobs, a line each as they end."""
    rows = [("fio, direct I/O", "MB/s", "IOPS", "latency ms", "99th ms", "server CPU us/op")]
    for title, pattern, block, size, depth in JOBS:
        before = server.cpu_seconds()
        figures = fio(guest, pattern, block, size, depth, seconds)
        used = server.cpu_seconds() - before
        rows.append(
            (
                title,
                f"{figures['bw_bytes'] / 1e6:.1f}",
                f"{figures['iops']:.0f}",
                f"{figures['clat_ns']['mean'] / 1e6:.2f}",
                f"{figures['clat_ns']['percentile']['99.000000'] / 1e6:.2f}",
                f"{used * 1e6 / max(1, figures['total_ios']):.0f}",
            )
        )
        say(f"fio: {title}: {rows[-1][1]} MB/s, {rows[-1][2]} IOPS")
    print()
    table(rows)
    print()


def verify(guest: Guest) -> None:
    """A load whose every block is checked when it is read back."""
    guest.run(
        f"cd {POINT} && fio --name=verify --filename=verify.dat --rw=randrw --bs=4k --size=8m --direct=1 "
        "--ioengine=libaio --iodepth=8 --verify=crc32c --verify_fatal=1 --verify_state_save=0 >/tmp/fio.out 2>&1 || "
        "{ cat /tmp/fio.out; exit 1; }; rm verify.dat",
        timeout=120,
    )
    say("fio: verify=crc32c on a random mix of reads and writes: every block right")


def check_ports(network: Namespace | Slirp) -> None:
    """See that the demo's server can listen. Raises ServerError: with qemu's user-mode network the guest reaches the
    host's own loopback interface only, on which another server may have the ports."""
    if not isinstance(network, Slirp):
        return
    for port in (RDMA_PORT, TCP_PORT, MOUNTD_PORT):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((network.listen_address, port))
            except OSError as error:
                raise ServerError(
                    f"port {port} of {network.listen_address} is in use ({error.strerror}), and without a network "
                    "namespace (which takes root) the demo needs it: stop the server there (make run?), or run the "
                    "demo as root"
                ) from None


def demo(version: str, seconds: int, slirp: bool, job: str = "", patience: float = 0.0) -> None:
    """The demonstration, with a ``job`` of fio's or with its own, which take so many seconds each. Raises GuestError,
    ServerError or FioError where it fails."""
    directory = Path(tempfile.mkdtemp(prefix="rnfsd-demo-", dir="/var/tmp"))
    network = Slirp() if slirp else namespace_or_slirp()
    try:
        check_ports(network)
        server = Server(directory, network)
        (server.export / "hello.txt").write_text("This file lies on the server.\n")
        say("starting: rdma-nfsd serve --config exports.yaml")
        server.start()
        shown(server.ready_line)
        say(f"booting a Linux guest under qemu ({accelerator().split(',')[0]})")
        with Guest("demo", network, time_limit=600, quiet=True) as guest:
            release = guest.run("uname -r").output.strip()
            say(f"guest up after {guest.boot_seconds:.1f} s: Linux {release}; giving it a software iWARP device")
            load_siw(guest)
            shown(guest.run("rdma link show").output)
            options = rdma_options(version)
            line = f"mount -t nfs -o {options} {network.server_address}:/export {POINT}"
            say(f"guest# {line}")
            guest.run(line, timeout=90)
            shown(guest.run(f"grep ' {POINT} ' /proc/mounts; cat {POINT}/hello.txt").output)
            if job:
                shown("\n".join(["", *demo_fio.alone(guest, POINT, server.cpu_seconds, job, patience), ""]))
            else:
                verify(guest)
                measure(guest, server, seconds)
            say("guest# grep xprt /proc/self/mountstats")
            for transport in rdma_transports(guest, POINT):
                shown(transport.line)
                counters = [
                    ("calls", transport.sends),
                    ("Read chunks", transport.read_chunks),
                    ("Write chunks", transport.write_chunks),
                    ("Reply chunks", transport.reply_chunks),
                    ("local_inv_needed", transport.local_inv_needed),
                ]
                shown("that is: " + ", ".join(f"{number} {name}" for name, number in counters))
            guest.run(f"rm -f {POINT}/demo.dat; umount {POINT}")
            complained = complaints(guest)
            say("guest# dmesg: " + ("no complaint" if not complained else "\n".join(complained)))
        status = server.stop()
        say(f"server stopped on SIGTERM, exit status {status}")
    finally:
        network.close()
        shutil.rmtree(directory, ignore_errors=True)


def beside_kernel(version: str, rounds: int, job: str, patience: float) -> None:
    """The job on this server and on the kernel's. Raises GuestError, ServerError or FioError where it fails."""
    try:
        found = demo_fio.beside_kernel(job, version, rounds, patience, say)
    except OSError as error:
        raise ServerError(f"two guests need a network namespace, which takes root: {error}") from None
    print()
    shown("\n".join(demo_fio.told(found)))


def check_namespace() -> None:
    """See that two guests can be connected. Raises ServerError."""
    try:
        Namespace().close()
    except OSError as error:
        raise ServerError(f"two guests need a network namespace, which takes root: {error}") from None


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--vers", choices=VERSIONS, default="4.1", help="NFS version (4.1)")
    parser.add_argument("--seconds", type=int, default=8, help="time for each fio job (8)")
    parser.add_argument("--slirp", action="store_true", help="always use qemu's user-mode network")
    text = "only see whether there is anything in the way; make asks this before it builds the guest"
    parser.add_argument("--check", action="store_true", help=text)
    parser.add_argument(
        "--fio", type=Path, metavar="JOB", help="run this job file of fio's instead, and show its table"
    )
    parser.add_argument("--beside", choices=("kernel",), help="with --fio: on the kernel's server as well, in turns")
    parser.add_argument("--rounds", type=int, default=2, help="with --beside: turns that each server has (2)")
    text = "with --fio: seconds that a turn may take (600)"
    parser.add_argument("--patience", type=float, default=600.0, help=text)
    return parser


def main() -> int:
    """Entry point of ``python -m tests.vm.demo``."""
    parser = build_parser()
    options = parser.parse_args()
    if options.beside and not options.fio:
        parser.error("--beside takes a job: --fio JOB")
    try:
        job = demo_fio.job_of(options.fio) if options.fio else ""
        if options.check and options.beside:
            check_namespace()
        elif options.check:
            with Slirp() if options.slirp else namespace_or_slirp() as network:
                check_ports(network)
        elif options.beside:
            beside_kernel(options.vers, options.rounds, job, options.patience)
        else:
            demo(options.vers, options.seconds, options.slirp, job, options.patience)
    except (GuestError, ServerError, FioError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
