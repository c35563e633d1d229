"""The measuring machine: a description of it, and the best that it can do.

Owns the limits that servers' figures are put beside; imports :mod:`bench.limits` and :mod:`bench.servers`.
"""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from bench import limits
from bench.fixtures import COLD, common, uncache
from bench.places import Place
from bench.scenarios import Scenario
from bench.servers import TREE, connect_tcp

REQUEST, REPLY = 128, 4224
"""Octets of a 4 KiB READ's call and reply, about."""


def pair(*, paced: bool = True) -> tuple[socket.socket, socket.socket]:
    """A TCP connection on loopback; the algorithm by which it sends is the machine's, or (from its first end) one that
    does not pace."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        one = socket.create_connection(address) if paced else connect_tcp(*address)
        other, _ = listener.accept()
    for end in (one, other):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, other


def in_child(work: Any, *ends: socket.socket) -> int:
    """Run ``work()`` in a process of its own, without the ``ends`` of sockets that are ours. Returns its pid."""
    pid = os.fork()
    if pid == 0:
        for end in ends:
            end.close()
        try:
            work()
        finally:
            os._exit(0)
    return pid


def served(
    serve: Callable[[int], object],
    request: int,
    reply: int,
    outstanding: int,
    seconds: float,
    others: Callable[[], float] = float,
    connections: int = 1,
) -> tuple[float, float]:
    """CPU microseconds of one request in a process that does ``serve(descriptor)``, and requests per second. There are
    as many processes as connections. ``others()`` are the seconds of whoever works for them."""
    ends: list[socket.socket] = []
    pids = []
    for _ in range(connections):
        ours, theirs = pair()
        ends.append(ours)
        pids.append(in_child(partial(serve, theirs.fileno()), *ends))
        theirs.close()

    def used() -> float:
        # Of each process, to the nanosecond: ``/proc`` counts ticks.
        return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids) + others()

    def asked(seconds: float) -> list[tuple[int, float]]:
        with ThreadPoolExecutor(connections) as pool:
            ask = partial(limits.ask, request=request, reply=reply, outstanding=outstanding, seconds=seconds)
            return list(pool.map(ask, [end.fileno() for end in ends]))

    asked(0.2)
    before = used()
    answered = asked(seconds)
    spent = used() - before
    for end, pid in zip(ends, pids, strict=True):
        end.close()
        os.waitpid(pid, 0)
    return spent / sum(count for count, _ in answered) * 1e6, sum(count / elapsed for count, elapsed in answered)


def round_trip(seconds: float) -> tuple[float, float]:
    """CPU microseconds of one round trip on its serving side, 16 outstanding, unbatched; and round trips per second."""
    return served(lambda end: limits.answer(end, REQUEST, REPLY), REQUEST, REPLY, 16, seconds)


def file_call(path: Path, write: bool) -> float:
    """CPU microseconds of one 4 KiB pread or pwrite."""
    size = path.stat().st_size
    places = [random.randrange(size // 4096) * 4096 for _ in range(200_000)]
    descriptor = os.open(path, os.O_RDWR)
    begun = time.process_time()
    done = limits.file_calls(descriptor, places, write)
    used = time.process_time() - begun
    os.close(descriptor)
    return used / done * 1e6


def loopback(seconds: float, *, paced: bool = True) -> float:
    """Octets per second of one stream."""
    ours, theirs = pair(paced=paced)
    pid = in_child(lambda: limits.drain(theirs.fileno()), ours)
    theirs.close()
    rate = limits.stream(ours.fileno(), seconds)
    ours.close()
    os.waitpid(pid, 0)
    return rate


def measure_limits(path: Path, seconds: float) -> dict[str, float]:
    """What the machine can do at best; ``path``: a file of many times 4 KiB."""
    trip, trips = round_trip(seconds)
    return {
        "round_trip_us": trip,
        "round_trips_per_s": trips,
        "pread_us": file_call(path, False),
        "pwrite_us": file_call(path, True),
        "loopback_octets_per_s": loopback(seconds),
        "unpaced_octets_per_s": loopback(seconds, paced=False),
        "memcpy_octets_per_s": limits.copying(min(seconds, 1.0)),
    }


def disk_limits(place: Place, seconds: float, chosen: Iterable[Scenario]) -> dict[str, float]:
    """What a disk's file system can do at best: one pread and one pwrite in line, cached; and fio on a file that is not
    cached, if a scenario reads such a one."""
    file = place.path / "limits"
    os.sync()
    found = {"pread_us": file_call(file, False), "pwrite_us": file_call(file, True)}
    if any(COLD in scenario.needs for scenario in chosen):
        found |= read_directly(common(COLD, place.path), seconds)
    return found


def read_directly(file: Path, seconds: float) -> dict[str, float]:
    """fio's READs of 4 KiB, 32 outstanding, past the cache: how many a second, and their CPU."""
    if not shutil.which("fio"):
        return {}
    uncache(file)
    job = ["--name=read", f"--filename={file}", "--rw=randread", "--bs=4k", "--iodepth=32", "--direct=1"]
    how = ["--ioengine=io_uring", "--time_based", f"--runtime={max(1, round(seconds))}", "--output-format=json"]
    done = subprocess.run(["fio", *job, *how], capture_output=True, text=True, check=False)
    if done.returncode:
        return {}
    (told,) = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
    rate = told["read"]["iops"]
    return {"fio_per_s": rate, "fio_cpu_us": (told["usr_cpu"] + told["sys_cpu"]) / 100 / rate * 1e6 if rate else 0.0}


CROWDED = 0.15
"""Part of the machine's processors that others may use before it is crowded."""


def crowd(allowed: bool, seconds: float = 1.0) -> dict[str, float]:
    """How much of the processors others use now. Raises SystemExit where that is too much, unless it is allowed."""
    before = processors(Path("/proc/stat").read_text())
    time.sleep(seconds)
    after = processors(Path("/proc/stat").read_text())
    busy = (after[0] - before[0]) / max(after[1] - before[1], 1)
    if busy > CROWDED and not allowed:
        raise SystemExit(f"others use {busy:.0%} of this machine's processors: wait for them, or say --crowded")
    return {"busy": busy}


def processors(stat: str) -> tuple[int, int]:
    """Ticks that all processors were busy, and all their ticks; what a hypervisor took is as good as busy."""
    ticks = [int(word) for word in stat.splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def facts() -> dict[str, Any]:
    """What somebody must know to whom the figures are shown."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        "when": time.strftime("%Y-%m-%d"),
        "commit": commit_of(TREE),
    }


def commit_of(tree: Path) -> str:
    """Which commit a checkout is of, as ``git describe`` says it, with a + if files differ from it. Where there is no
    repository or no git: the directory's name."""
    if not (tree / ".git").exists() or shutil.which("git") is None:
        return tree.name
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty=+"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    return told.stdout.strip() or tree.name


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
