"""``python -m bench.guest_flames``: flame graphs of a whole guest in which a server works over an RDMA device.

The lowest frames are threads: over a software device much of the work is done by the kernel's, and by softirqs in
whatever thread is interrupted. A frame's width is its share of the time that the guest's processors were busy. perf
runs in the guest and takes samples by a timer, as an emulated processor has no counters: what runs with interrupts off
is seen where they are allowed again. Needs what ``--server rdma-nfsd-verbs`` needs, and perf (apt-get install
linux-perf).
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench import flames
from bench.calls import Files
from bench.guests import GUESTS, InGuest, Verbs, booted
from bench.scenarios import BY_NAME, local, prepare
from bench.study import progress

IDLE = "native_safe_halt"
OURSELVES = ("perf", "perf-exec", "sleep")
"""Threads of the sampling itself."""


def threads(script: Iterable[str]) -> Iterator[list[str]]:
    """The stacks in what ``perf script -F comm,ip,sym`` prints: the thread's name, then functions, outermost first."""
    name, lines = "", list[str]()
    for line in (*script, ""):
        if line and not line[0].isspace():
            name = line.strip()
        elif line.strip():
            lines.append(line)
        elif lines:
            (stack,) = flames.stacks(lines)
            if name not in OURSELVES and stack[-1:] != [IDLE]:
                yield [name, *stack]
            lines = []


def sample(server: InGuest, files: Files, scenario: str, seconds: int, frequency: int, share: Path) -> Iterator[str]:
    """Sample the guest while it has a scenario's load; what perf says of the samples."""
    command = (
        f"perf record -q -a -e cpu-clock -F {frequency} --call-graph dwarf,16384 -o /tmp/perf.data -- sleep {seconds} "
        f"&& cp /tmp/perf.data {share}/perf.data && cat /proc/kallsyms >{share}/kallsyms"
    )
    with BY_NAME[scenario].load(server, files, "rdma") as load:
        load.run(2)
        job = server.guest.start(command, timeout=seconds + 180, label="perf record")
        while not job.done():
            load.run(1)
        job.wait()
    # Here, where it takes a tenth of the time: the guest's programs are ours, its kernel's names it has told us.
    script = ["perf", "script", "-i", str(share / "perf.data"), "--kallsyms", str(share / "kallsyms")]
    done = subprocess.run(
        [*script, "-F", "comm,ip,sym", "--no-inline"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    yield from done.stdout.splitlines()


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.guest_flames", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="*",
        choices=[name for name, scenario in BY_NAME.items() if not local(scenario)],
        default=flames.SCENARIOS,
        metavar="NAME",
    )
    parser.add_argument("--server", choices=list(GUESTS), default=Verbs.name)
    parser.add_argument("--seconds", type=int, default=10, help="how long each is sampled (default 10)")
    parser.add_argument("--frequency", type=int, default=99, help="samples per second and processor (default 99)")
    parser.add_argument("--into", type=Path, default=flames.PICTURES, help="a directory (default docs/flames)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the guest is ended all the same
    options.into.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="rdma-nfsd-flames-") as directory,
        booted([options.server], 600 + len(options.only) * (options.seconds + 60), [Path(directory)]) as (server,),
    ):
        with server.network():
            files = asyncio.run(prepare(server))
        for name in options.only:
            progress(f"{name}, {server.name}")
            script = sample(server, files, name, options.seconds, options.frequency, Path(directory))
            root = flames.tree(threads(script))
            title = f"{name} over {server.name}: {root.samples} samples of the guest's busy processors"
            kind = "verbs" if server.name == Verbs.name else server.name
            (options.into / f"{name}-{kind}.svg").write_text(flames.svg(root, title))
    progress("")
    return 0


if __name__ == "__main__":
    sys.exit(main())
