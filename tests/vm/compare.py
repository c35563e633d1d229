"""``python -m tests.vm.compare``: this server and Linux's own, over the same RDMA device of the same guest.

Two guests, one of which serves: in it rdma-nfsd and knfsd serve the same tmpfs over the same device (rdma_rxe or siw),
each on a port of its own, and get the load in turns, so that whatever else the machine does meets both. The client's
guest runs fio's four base jobs. Reported are throughput, latency, and the CPU time of the server's whole guest per
operation: software RDMA works in softirqs and kernel threads, so a process's own time would say little.

Writes JSON, after every sample, and with ``--document`` the table into docs/performance.md between its markers. A
run that is interrupted, or in which one device fails, leaves what it has measured; ``--from`` makes the table of such
files.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import charts
from bench.document import CHARTS
from bench.fio import busy_seconds as busy
from tests.vm.build import REPO
from tests.vm.guest import Guest, GuestError, accelerator
from tests.vm.guest_server import DEVICES, GuestServer
from tests.vm.network import Namespace
from tests.vm.server import ServerError
from tests.vm.two_servers import SERVERS, mount, two_guests

JOBS = (
    # name, fio's rw, block size, queue depth
    ("4k random read", "randread", "4k", 16),
    ("4k random write", "randwrite", "4k", 16),
    ("1M read", "read", "1m", 4),
    ("1M write", "write", "1m", 4),
)
DOCUMENT = REPO / "docs/performance.md"
BEGIN, END = "<!-- begin compare -->", "<!-- end compare -->"
POINT = "/mnt/compare"


@dataclass(frozen=True)
class Sample:
    """One run of one job."""

    server: str
    device: str
    version: str
    job: str
    round: int
    mb_per_second: float
    iops: float
    latency_ms: float
    """Mean completion latency."""
    p99_ms: float
    cpu_us_per_operation: float
    """Of the serving guest: all its processors' time that was not idle."""


def busy_seconds(guest: Guest) -> float:
    """The time all processors of a guest have not been idle so far."""
    return busy(guest.run("head -n 1 /proc/stat", label="cpu time").output)


def fio(client: Guest, pattern: str, block: str, depth: int, seconds: int, size: str) -> dict[str, float]:
    """One job on the mount."""
    done = client.run(
        f"cd {POINT} && fio --name=compare --filename=compare.dat --rw={pattern} --bs={block} --size={size} --direct=1 "
        f"--ioengine=libaio --iodepth={depth} --runtime={seconds} --time_based=1 --overwrite=1 --output-format=json "
        "--output=/tmp/compare.json && tr -d '\\n' </tmp/compare.json",
        timeout=seconds * 4 + 180,
        label=f"fio {pattern} {block}",
    )
    (job,) = json.loads(done.output[done.output.index("{") :])["jobs"]
    if job["error"]:
        raise GuestError(f"fio: error {job['error']}")
    figures = job["write" if "write" in pattern else "read"]
    return {
        "operations": figures["total_ios"],
        "mb_per_second": figures["bw_bytes"] / 1e6,
        "iops": figures["iops"],
        "latency_ms": figures["clat_ns"]["mean"] / 1e6,
        "p99_ms": figures["clat_ns"]["percentile"]["99.000000"] / 1e6,
    }


class Comparison:
    """The two guests, and what was measured in them."""

    def __init__(
        self, server: GuestServer, client: Guest, device: str, seconds: int, size: str, record: Callable[[Sample], None]
    ) -> None:
        self.server = server
        self.client = client
        self.device = device
        self.seconds = seconds
        self.size = size
        self.record = record

    def measure(self, name: str, version: str, number: int) -> None:
        """Mount, run the four jobs, unmount."""
        mount(self.client, self.server.door(self.device), name, version, POINT)
        for job, pattern, block, depth in JOBS:
            before = busy_seconds(self.server.guest)
            figures = fio(self.client, pattern, block, depth, self.seconds, self.size)
            used = busy_seconds(self.server.guest) - before
            cpu = used * 1e6 / max(1.0, figures.pop("operations"))
            sample = Sample(name, self.device, version, job, number, cpu_us_per_operation=cpu, **figures)
            self.record(sample)
            print(
                f"[{time.strftime('%H:%M:%S')}] {name:9} {self.device} v{version} round {number} {job:16} "
                f"{sample.mb_per_second:8.1f} MB/s {sample.iops:8.0f} IOPS {sample.latency_ms:8.2f} ms "
                f"{cpu:8.0f} us CPU per operation",
                flush=True,
            )
        self.client.run(f"umount {POINT}", timeout=120)


def table(samples: Sequence[Sample]) -> list[str]:
    """One row per device, version and job: medians of the rounds, and our figure over knfsd's."""
    lines = [
        "| device | vers | job | rdma-nfsd MB/s | knfsd MB/s | ratio | latency ms | 99th ms | latency ratio "
        "| CPU µs per op, rdma-nfsd | knfsd | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    keys = list(dict.fromkeys((sample.device, sample.version, sample.job) for sample in samples))
    for device, version, job in keys:
        chosen = [sample for sample in samples if (sample.device, sample.version, sample.job) == (device, version, job)]

        def median(server: str, field: str, rows: Sequence[Sample] = chosen) -> float:
            return statistics.median(float(getattr(sample, field)) for sample in rows if sample.server == server)

        if {sample.server for sample in chosen} != set(SERVERS):
            continue
        ours, theirs = (median(server, "mb_per_second") for server in SERVERS)
        latency, other_latency = (median(server, "latency_ms") for server in SERVERS)
        cpu, other_cpu = (median(server, "cpu_us_per_operation") for server in SERVERS)
        cells = [
            *(device, version, job, f"{ours:.1f}", f"{theirs:.1f}", f"**{ours / theirs:.2f}**"),
            *(f"{latency:.2f} / {other_latency:.2f}",),
            f"{median('rdma-nfsd', 'p99_ms'):.1f} / {median('knfsd', 'p99_ms'):.1f}",
            f"{latency / other_latency:.2f}",
            *(f"{cpu:.0f}", f"{other_cpu:.0f}", f"{cpu / other_cpu:.2f}"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def series(samples: Sequence[Sample]) -> dict[str, dict[str, dict[str, float]]]:
    """What the chart shows: of each server, by device, version and job, medians of its figures."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for server in SERVERS:
        same: dict[str, list[Sample]] = {}
        for sample in samples:
            if sample.server == server:
                same.setdefault(f"{sample.device}, NFSv{sample.version}, {sample.job}", []).append(sample)
        found[server] = {
            name: {
                "cpu_us": statistics.median(each.cpu_us_per_operation for each in made),
                "calls_per_s": statistics.median(each.iops for each in made),
            }
            for name, made in same.items()
        }
    return {server: rows for server, rows in found.items() if rows}


def write_document(lines: Sequence[str], note: str, samples: Sequence[Sample], path: Path = DOCUMENT) -> None:
    """Put the table between the markers, below its chart. Raises ValueError where they are missing."""
    (path.parent / CHARTS).mkdir(exist_ok=True)
    charts.dots("To a Linux client, servers in one guest", series(samples), path.parent / CHARTS / "client.svg")
    lines = [f"![CPU per operation and operations per second, to a Linux client]({CHARTS}/client.svg)", "", *lines]
    text = path.read_text()
    if BEGIN not in text or END not in text:
        raise ValueError(f"{path} has no {BEGIN} … {END}")
    inside = "\n".join([BEGIN, "", *lines, "", note, "", END])
    path.write_text(re.sub(re.escape(BEGIN) + ".*" + re.escape(END), lambda _: inside, text, flags=re.DOTALL))


def compare_on(
    network: Namespace,
    device: str,
    versions: Sequence[str],
    rounds: int,
    seconds: int,
    size: str,
    record: Callable[[Sample], None],
) -> None:
    """Boot the guests and run everything on one device; the order of the servers alternates."""
    with two_guests(network, device, 6 * 3600) as (server, client):
        # Laid out beforehand, or the first job's figures would be those of writing the file.
        server.guest.run(f"fallocate -l {size} /export/compare.dat && chmod 666 /export/compare.dat")
        comparison = Comparison(server, client, device, seconds, size, record)
        for number in range(rounds):
            for version in versions:
                for name in SERVERS if number % 2 == 0 else reversed(SERVERS):
                    comparison.measure(name, version, number)


def read_samples(paths: Sequence[Path]) -> list[Sample]:
    """The samples of earlier runs."""
    return [Sample(**fields) for path in paths for fields in json.loads(path.read_text())]


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.vm.compare", description=(__doc__ or "").splitlines()[0].partition(": ")[2]
    )
    parser.add_argument("--device", choices=tuple(DEVICES), action="append", help="rxe, siw (both)")
    parser.add_argument("--vers", choices=("3", "4.0", "4.1", "4.2"), action="append", help="NFS versions (3 and 4.2)")
    parser.add_argument("--rounds", type=int, default=3, help="turns each server gets (3)")
    parser.add_argument("--seconds", type=int, default=10, help="time for each fio job (10)")
    parser.add_argument("--size", default="128m", help="size of fio's file (128m)")
    parser.add_argument("--json", type=Path, default=Path("compare.json"), help="where the samples go (compare.json)")
    parser.add_argument("--document", action="store_true", help="put the table into docs/performance.md")
    parser.add_argument(
        "--from", type=Path, nargs="+", dest="earlier", help="measure nothing: the table of these files' samples"
    )
    options = parser.parse_args()
    samples = read_samples(options.earlier or ())
    failed = False

    def record(sample: Sample) -> None:
        samples.append(sample)
        options.json.write_text(json.dumps([asdict(each) for each in samples], indent=1) + "\n")

    if not options.earlier:
        with Namespace() as network:
            for device in options.device or tuple(DEVICES):
                try:
                    versions = options.vers or ("4.2", "3")
                    compare_on(network, device, versions, options.rounds, options.seconds, options.size, record)
                except (GuestError, ServerError) as error:
                    print(f"compare: {device}: {error}", file=sys.stderr)
                    failed = True
                except KeyboardInterrupt:
                    failed = True
                    break
    lines = table(samples)
    print("\n".join(lines))
    if options.document:
        note = (
            f"Medians of {len({sample.round for sample in samples})} rounds of {options.seconds} s per job, a file of "
            f"{options.size} on tmpfs, "
            f"latency as rdma-nfsd / knfsd; guests under {accelerator().split(',')[0]} on {os.cpu_count()} processors, "
            f"load average {os.getloadavg()[1]:.0f} (from outside). Ratios below 1.00 in throughput, and above in "
            "latency and CPU, are the kernel's advantage."
        )
        write_document(lines, note, samples)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
