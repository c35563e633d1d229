"""Latency under trouble: how long one client's GETATTR takes while others stall or flood the server.

Beside it, how long a round trip takes with a process that does nothing else, while as much is moved between two further
processes: that is what the machine makes of a flood, whatever the server does.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from bench import limits
from bench.calls import DATA, FILE_SIZE, Files, names3, read3, rpc
from bench.disk import StallingDisk, stalling_disk
from bench.machine import in_child, pair
from bench.scenarios import BY_NAME, Scenario, handles, prepare
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
    return [
        call for three in zip(read3(files, size), writes * 16, names3(files, 0).calls, strict=False) for call in three
    ]


PROBE = Scenario("probe", BY_NAME["getattr"].calls, 1)
STALLED = Scenario("stalled", slow3, 256, 4096)
FLOODS = {
    "a flood of 4 KiB READs": replace(BY_NAME["read-4k-32"], outstanding=128),
    "a flood of GETATTRs": replace(BY_NAME["getattr"], outstanding=128),
    "a flood of 1 MiB READs": replace(BY_NAME["read-1m-4"], outstanding=16),
    "a flood of 1 MiB WRITEs": replace(BY_NAME["write-1m-4"], outstanding=16),
}
MESSAGE = 128
"""Octets of a small call or reply, about."""
CONTROLS = {
    "idle": None,
    "a flood of 1 MiB READs": (MESSAGE, MESSAGE + (1 << 20)),
    "a flood of 1 MiB WRITEs": (MESSAGE + (1 << 20), MESSAGE),
}
"""Octets of the calls and replies of what comes closest to a flood, without a server."""


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
                alone = {name: bystander(name, terms.seconds) for name in CONTROLS}
                for row in rows:
                    if row["situation"] in alone:
                        row["control_p99_us"] = alone[row["situation"]]["p99_us"]
                rounds.append(rows)
        return medians(rounds, ("situation", "over"))

    def table(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> list[str]:
        """One row per situation."""
        lines = []
        for (over,), same in by(rows, "over").items():
            for row in same:
                times = f"{row['p99_us'] / same[0]['p99_us']:.1f}"
                figures = [f"{row[part]:,.0f}" for part in ("p50_us", "p99_us", "p999_us")]
                control, machine = row.get("control_p99_us"), ["", ""]
                if control is not None:
                    machine = [f"{control:,.0f}", f"{control / same[0]['control_p99_us']:.1f}"]
                goal = "" if row is same[0] else f"≤ {GOAL:.0f}"
                lines.append([row["situation"], over, *figures, times, goal, *machine])
        heads = ["situation", "over", "p50 µs", "p99 µs", "p999 µs", "p99, times idle", "goal"]
        return markdown([*heads, "p99 µs without a server", "that, times idle"], lines)

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
    with PROBE.load(server, files, over) as load:

        def call() -> float:
            load.run(3600, 1)
            return load.percentile(0.5)

        return now_and_then(call, seconds)


def now_and_then(call: Callable[[], float], seconds: float) -> dict[str, float]:
    """Percentiles of the microseconds that ``call()`` says it has taken."""
    took = []
    with first_in_line():
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(PAUSE)
            took.append(call())
    took.sort()
    return {f"p{name}_us": took[int(part * len(took))] for name, part in (("50", 0.5), ("99", 0.99), ("999", 0.999))}


def bystander(situation: str, seconds: float) -> dict[str, float]:
    """How long a round trip takes with somebody who does nothing else, in a situation of CONTROLS among others."""
    progress(f"trouble: {situation}, a round trip without a server")
    sizes = CONTROLS[situation]
    floods = [] if sizes is None else [Flood(*sizes, FLOODS[situation].outstanding)]
    return round_trips(seconds, floods)


class Flood(NamedTuple):
    """Requests of so many octets that keep coming, and their replies."""

    request: int
    reply: int
    outstanding: int


def round_trips(seconds: float, floods: Sequence[Flood]) -> dict[str, float]:
    """How long one takes with a process that does nothing else, while another one answers floods of other processes."""
    with ExitStack() as ends:
        if floods:
            ends.enter_context(flooded(floods))
            time.sleep(0.3)
        ours, theirs = pair()
        ends.enter_context(ours)
        ends.enter_context(child(lambda: limits.answer(theirs.fileno(), MESSAGE, MESSAGE), ours))
        theirs.close()
        message = bytes(MESSAGE)

        def call() -> float:
            begun = time.perf_counter()
            ours.sendall(message)
            ours.recv(MESSAGE, socket.MSG_WAITALL)
            return (time.perf_counter() - begun) * 1e6

        return now_and_then(call, seconds)


@contextmanager
def flooded(floods: Sequence[Flood]) -> Iterator[None]:
    """A process answers all of them, a thread each."""
    pairs = [pair() for _ in floods]

    def serve() -> None:
        with ThreadPoolExecutor(len(floods)) as pool:
            for flood, (_, theirs) in zip(floods, pairs, strict=True):
                pool.submit(limits.answer, theirs.fileno(), flood.request, flood.reply)

    with ExitStack() as ends:
        for ours, _ in pairs:
            ends.enter_context(ours)
        ends.enter_context(child(serve, *(ours for ours, _ in pairs)))
        for _, theirs in pairs:
            theirs.close()
        for flood, (ours, _) in zip(floods, pairs, strict=True):
            ends.enter_context(child(partial(limits.ask, ours.fileno(), *flood, 3600.0)))
        yield


@contextmanager
def child(work: Callable[[], object], *ends: socket.socket) -> Iterator[int]:
    """A process that does ``work()``, until it is killed."""
    pid = in_child(work, *ends)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


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

    with child(work) as pid:
        time.sleep(0.3)
        yield
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            raise RuntimeError(f"the client that sends {scenario.name} has ended")


@contextmanager
def stall(disk: StallingDisk, server: RdmaNfsd, files: Files) -> Iterator[None]:
    """The disk does not answer, and a client waits for it with as many calls as it may have outstanding."""
    with disk.stalled(), client(server, STALLED, files, "tcp"):
        yield
