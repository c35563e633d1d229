"""``python -m bench``: what operations cost the server, beside what the machine can do at best, in one run.

Server CPU per operation is the figure that counts: user and system time of the server's process over the calls answered
meanwhile. The load is native (:mod:`bench.generator`), on loopback, from a file in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import socket
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import limits
from bench.scenarios import BY_NAME, SCENARIOS, Files, Scenario, prepare
from bench.servers import SERVERS, Ganesha, RdmaNfsd, Server, cpu_of, enter_namespace

REQUEST, REPLY = 128, 4224
"""Octets of a 4 KiB READ's call and reply, about."""


def pair() -> tuple[socket.socket, socket.socket]:
    """A TCP connection on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
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


def round_trip(seconds: float) -> tuple[float, float]:
    """CPU microseconds of one round trip on its serving side, 16 outstanding, unbatched; and round trips per second."""
    ours, theirs = pair()
    pid = in_child(lambda: limits.answer(theirs.fileno(), REQUEST, REPLY), ours)
    theirs.close()
    limits.ask(ours.fileno(), REQUEST, REPLY, 16, 0.2)
    before = sum(cpu_of(pid))
    count, elapsed = limits.ask(ours.fileno(), REQUEST, REPLY, 16, seconds)
    used = sum(cpu_of(pid)) - before
    ours.close()
    os.waitpid(pid, 0)
    return used / count * 1e6, count / elapsed


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


def loopback(seconds: float) -> float:
    """Octets per second of one stream."""
    ours, theirs = pair()
    pid = in_child(lambda: limits.drain(theirs.fileno()), ours)
    theirs.close()
    rate = limits.stream(ours.fileno(), seconds)
    ours.close()
    os.waitpid(pid, 0)
    return rate


def measure_limits(server: Server, seconds: float) -> dict[str, float]:
    """What the machine can do at best."""
    trip, trips = round_trip(seconds)
    path = server.export / "data"
    return {
        "round_trip_us": trip,
        "round_trips_per_s": trips,
        "pread_us": file_call(path, False),
        "pwrite_us": file_call(path, True),
        "loopback_octets_per_s": loopback(seconds),
        "memcpy_octets_per_s": limits.copying(min(seconds, 1.0)),
    }


def measure(server: Server, files: Files, scenario: Scenario, transport: str, seconds: float) -> dict[str, float]:
    """One scenario for so long."""
    connection, load = scenario.load(server, files, transport)
    try:
        load.run(min(0.3, seconds))
        user, system = server.cpu()
        calls, elapsed = load.run(seconds)
        user_after, system_after = server.cpu()
    finally:
        connection.close()
    return {
        "cpu_us": (user_after - user + system_after - system) / calls * 1e6,
        "user_us": (user_after - user) / calls * 1e6,
        "calls_per_s": calls / elapsed,
        "p50_us": load.percentile(0.5),
        "p99_us": load.percentile(0.99),
        "p999_us": load.percentile(0.999),
    }


def median(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Everything that was asked for, in rounds that take turns: the machine, then each scenario with every server."""
    chosen = [scenario for scenario in SCENARIOS if not options.only or scenario.name in options.only]
    figures: dict[str, dict[str, list[dict[str, float]]]] = {}
    bounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="rdma-nfsd-bench-") as directory, ExitStack() as ends:
        servers: list[tuple[Server, Files]] = []
        for name in options.server:
            server = SERVERS[name](Path(directory) / name)
            ends.callback(server.stop)
            servers.append((server, asyncio.run(prepare(server, options.uid))))
        for number in range(options.rounds):
            _progress(f"round {number + 1} of {options.rounds}: the machine")
            bounds.append(measure_limits(servers[0][0], options.seconds))
            for scenario in chosen:
                for server, files in servers:
                    for transport in server.transports:
                        if transport not in options.transport or transport not in scenario.transports:
                            continue
                        said = f"{scenario.name} over {transport}, {server.name}"
                        _progress(f"round {number + 1} of {options.rounds}: {said}")
                        result = measure(server, files, scenario, transport, options.seconds)
                        figures.setdefault(server.name, {}).setdefault(f"{scenario.name} {transport}", []).append(
                            result
                        )
        peaks = {server.name: server.memory() for server, _ in servers}
        _progress("")
    return {
        "machine": {
            "cpu": _processor(),
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "load": os.getloadavg()[0],
        },
        "limits": median(bounds),
        "servers": {
            server: {
                "scenarios": {name: median(rounds) for name, rounds in scenarios.items()},
                "peak_memory": peaks[server],
            }
            for server, scenarios in figures.items()
        },
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def unit(scenario: Scenario, bounds: dict[str, float]) -> float:
    """What one operation costs at the least: one round trip, and one system call on the file."""
    return bounds["round_trip_us"] + bounds["pwrite_us" if scenario.direction == "write" else "pread_us"]


def table(result: dict[str, Any]) -> str:
    """The figures for people; as Markdown."""
    bounds = result["limits"]
    lines = [
        f"The machine: a round trip {bounds['round_trip_us']:.2f} µs, pread {bounds['pread_us']:.2f} µs, "
        f"pwrite {bounds['pwrite_us']:.2f} µs of CPU; {bounds['round_trips_per_s']:,.0f} round trips/s; loopback "
        f"{bounds['loopback_octets_per_s'] / 1e9:.2f} GB/s; memcpy {bounds['memcpy_octets_per_s'] / 1e9:.1f} GB/s.",
    ]
    for server, found in result["servers"].items():
        lines += ["", f"{server}, at most {found['peak_memory'] / (1 << 20):.0f} MiB of memory:", ""]
        lines += _server_table(result, server)
    return "\n".join(lines)


def _server_table(result: dict[str, Any], server: str) -> list[str]:
    scenarios, bounds = result["servers"][server]["scenarios"], result["limits"]
    others = [name for name in result["servers"] if name != server] if server == RdmaNfsd.name else []
    heads = ["scenario", "over", "CPU µs per call", "of which user", "times the limit"]
    heads += [word for name in others for word in (f"times {name}", "goal")] + ["calls/s", "p50 µs", "p99 µs"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for key, figures in scenarios.items():
        name, transport = key.split(" ")
        scenario = BY_NAME[name]
        cells = [name, transport, f"{figures['cpu_us']:.2f}", f"{figures['user_us']:.2f}"]
        times = figures["cpu_us"] / unit(scenario, bounds)
        aim = (
            f" (≤ {scenario.goal})"
            if scenario.goal is not None and transport == "tcp" and server == RdmaNfsd.name
            else ""
        )
        cells.append(f"{times:.2f}{aim}" if scenario.size <= 4096 and scenario.outstanding > 1 else "")
        for other in others:
            theirs = result["servers"][other]["scenarios"].get(f"{name} tcp")
            cells += (
                ["", ""] if theirs is None else [f"{figures['cpu_us'] / theirs['cpu_us']:.2f}", f"≤ {scenario.rival}"]
            )
        cells += [f"{figures['calls_per_s']:,.0f}", f"{figures['p50_us']:.0f}", f"{figures['p99_us']:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def compare(result: dict[str, Any], before: dict[str, Any], tolerance: float) -> list[str]:
    """What has become slower: by CPU per call in units of each run's own limit, so that the clocks cancel out."""
    slower = []
    for key, figures in result["servers"][RdmaNfsd.name]["scenarios"].items():
        earlier = before["servers"][RdmaNfsd.name]["scenarios"].get(key)
        if earlier is None:
            continue
        scenario = BY_NAME[key.split(" ")[0]]
        now = figures["cpu_us"] / unit(scenario, result["limits"])
        then = earlier["cpu_us"] / unit(scenario, before["limits"])
        if now > then * (1 + tolerance):
            slower.append(f"{key}: {now:.2f} times the limit, {then:.2f} before")
    return slower


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=[s.name for s in SCENARIOS], help="these scenarios only")
    parser.add_argument(
        "--transport",
        nargs="*",
        choices=["tcp", "rdma"],
        default=["tcp", "rdma"],
        help="over these only (rdma: softiwarp)",
    )
    parser.add_argument(
        "--server",
        nargs="*",
        choices=list(SERVERS),
        default=[RdmaNfsd.name],
        help="these, in turns (default rdma-nfsd)",
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each is measured in a round (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="how often; medians are reported (default 3)")
    parser.add_argument("--uid", type=int, default=0, help="whom the calls are made as (default 0)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--compare", metavar="FILE", help="figures of an earlier run: exit status 1 if any is worse")
    parser.add_argument("--tolerance", type=float, default=0.15, help="how much worse is worse (default 0.15)")
    options = parser.parse_args()
    if Ganesha.name in options.server:
        enter_namespace(sys.argv[1:])
    result = run(options)
    print(table(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    if options.compare:
        slower = compare(result, json.loads(Path(options.compare).read_text()), options.tolerance)
        print("\n".join(slower) or "Nothing has become slower.")
        return 1 if slower else 0
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
