"""Latency under trouble: how long one client's GETATTR takes while others stall or flood the server."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from bench.disk import StallingDisk, stalling_disk
from bench.machine import in_child
from bench.scenarios import BY_NAME, DATA, FILE_SIZE, Files, Scenario, handles, names3, prepare, read3, rpc
from bench.servers import RdmaNfsd
from bench.study import Row, Study, Terms, by, markdown, medians, progress
from nfsd.protocol.nfs3 import nfs_fh3
from rpcrdma.xdr import pack

GOAL = 3.0
"""Times the idle server's 99th percentile."""
PAUSE = 0.0005
"""Seconds between two calls."""


def slow3(files: Files, size: int) -> list[bytes]:
    """Calls that need the disk: READs of what is not cached, stable WRITEs, new names."""
    writes = [
        rpc(files, 7, pack(nfs_fh3, files.data) + struct.pack(">QIII", at, size, 2, size) + DATA[:size])
        for at in range(0, 64 * size, size)
    ]
    return [call for three in zip(read3(files, size), writes * 16, names3(files, 0), strict=False) for call in three]


PROBE = Scenario("probe", BY_NAME["getattr"].calls, 1)
STALLED = Scenario("stalled", slow3, 256, 4096)
FLOODS = {
    "a flood of 4 KiB READs": replace(BY_NAME["read-4k-32"], outstanding=128),
    "a flood of GETATTRs": replace(BY_NAME["getattr"], outstanding=128),
    "a flood of 1 MiB READs": replace(BY_NAME["read-1m-4"], outstanding=16),
    "a flood of 1 MiB WRITEs": replace(BY_NAME["write-1m-4"], outstanding=16),
}


class Trouble(Study):
    """The same GETATTR, one at a time, in each situation."""

    name = "trouble"
    summary = "one client's GETATTR while another export's disk stalls and another client floods the server"

    def run(self, terms: Terms) -> list[Row]:
        """One server, one situation after the other; the idle one first in every round."""
        terms.directory.mkdir()
        data = random.randbytes(1 << 20) * (FILE_SIZE >> 20)
        rounds = []
        with ExitStack() as ends:
            disk = ends.enter_context(stalling_disk(terms.directory / "stalling", data))
            server = RdmaNfsd(terms.directory / "server", exports={"/stalled": disk.path})
            ends.callback(server.stop)
            files = asyncio.run(prepare(server, terms.uid))
            root, file = asyncio.run(handles(server, "/stalled"))
            slow = replace(files, root=root, data=file)
            for number in range(terms.rounds):
                rows: list[Row] = []
                for over in terms.transports:

                    def measure(situation: str, over: str = over, number: int = number, rows: list[Row] = rows) -> None:
                        progress(f"trouble, round {number + 1}: {situation}, GETATTR over {over}")
                        rows.append({"situation": situation, "over": over} | probe(server, files, over, terms.seconds))

                    measure("idle")
                    for name, scenario in FLOODS.items():
                        with client(server, scenario, files, over):
                            measure(name)
                    with stall(disk, server, slow):
                        measure("a stalled disk")
                        with client(server, FLOODS["a flood of 4 KiB READs"], files, over):
                            measure("a stalled disk and a flood of 4 KiB READs")
                rounds.append(rows)
        return medians(rounds, ("situation", "over"))

    def table(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> list[str]:
        """One row per situation."""
        lines = []
        for (over,), same in by(rows, "over").items():
            for row in same:
                times = f"{row['p99_us'] / same[0]['p99_us']:.1f}"
                figures = [f"{row[part]:,.0f}" for part in ("p50_us", "p99_us", "p999_us")]
                lines.append([row["situation"], over, *figures, times, "" if row is same[0] else f"≤ {GOAL:.0f}"])
        return markdown(["situation", "over", "p50 µs", "p99 µs", "p999 µs", "p99, times idle", "goal"], lines)

    def watched(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> dict[str, float]:
        """The 99th percentile in units of the idle server's."""
        return {
            f"{row['situation']} over {over}": row["p99_us"] / same[0]["p99_us"]
            for (over,), same in by(rows, "over").items()
            for row in same[1:]
        }


def probe(server: RdmaNfsd, files: Files, over: str, seconds: float) -> dict[str, float]:
    """How long a GETATTR takes, one at a time, with a pause before each, or the others would hardly get to ask. Whoever
    asks goes before the other clients on this machine, which are not what is measured."""
    took = []
    with PROBE.load(server, files, over) as load, first_in_line():
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(PAUSE)
            load.run(3600, 1)
            took.append(load.percentile(0.5))
    took.sort()
    return {f"p{name}_us": took[int(part * len(took))] for name, part in (("50", 0.5), ("99", 0.99), ("999", 0.999))}


@contextmanager
def first_in_line() -> Iterator[None]:
    """Scheduled before everybody else, where that is allowed."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@contextmanager
def client(server: RdmaNfsd, scenario: Scenario, files: Files, over: str) -> Iterator[None]:
    """Another client, a process of its own, that never stops asking until it is killed."""

    def work() -> None:
        with scenario.load(server, files, over, lenient=True) as load:
            load.run(3600)

    pid = in_child(work)
    try:
        time.sleep(0.3)
        yield
        if os.waitpid(pid, os.WNOHANG)[0]:
            pid = 0
            raise RuntimeError(f"the client that sends {scenario.name} has ended")
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@contextmanager
def stall(disk: StallingDisk, server: RdmaNfsd, files: Files) -> Iterator[None]:
    """The disk does not answer, and a client waits for it with as many calls as it may have outstanding."""
    with disk.stalled(), client(server, STALLED, files, "tcp"):
        yield
