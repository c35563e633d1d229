"""Several processes that serve together: what they do together, each with little of a processor, and whom one disturbs.

This machine has fewer processors than there are processes, and the load takes some of them. So each process gets a
quota of CPU time (cgroups), small enough for all of them and the load together. Then what eight do is to be eight times
what one does, unless they get in each other's way, or the clients are spread unevenly. (Each has one client here.)
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.generator import Generator, Loads
from bench.running import Impossible
from bench.scenarios import BY_NAME, prepare
from bench.servers import RdmaNfsd, connect_tcp
from bench.study import Row, Study, Terms, by, markdown, medians, progress
from bench.trouble import client, probe
from rpcrdma.server.spread import place_of

COUNTS: Final = (1, 2, 4, 8)
QUOTA: Final = 0.02
"""Of a processor, for each process: with more, the load of eight would be the limit."""
AT_WORK: Final = 0.2
"""The same beside a bulk client."""
PERIOD: Final = 100_000
"""Microseconds: the quota's."""
GOAL: Final = 7.0
"""Times what one does, for eight."""
CALLS: Final = {"getattr": 32, "read-4k-32": 32}
"""Scenarios, and how many of their calls are outstanding."""
BULK: Final = replace(BY_NAME["read-1m-4"], outstanding=16)
SITUATIONS: Final = ("idle", "bulk at another process", "bulk at the same process")


class OfAddress(RdmaNfsd):
    """Reached from an address of the client's choice."""

    name = "rdma-nfsd"
    own = ""

    def connect(self, transport: str) -> socket.socket:
        """Over TCP only."""
        return connect_tcp(self.host, self.tcp, self.own)


def address_of(index: int, count: int) -> str:
    """A client's, whose process this is."""
    return next(host for host in (f"127.0.1.{n}" for n in itertools.count(1)) if place_of(host, count) == index)


@contextmanager
def groups(pids: Sequence[int], part: float) -> Iterator[None]:
    """Each of these processes in a group of its own, which gets this part of a processor. Raises Impossible."""
    old, new = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    first = old.is_dir()
    made = []
    try:
        for pid in pids:
            group = (old if first else new) / f"rdma-nfsd-bench-{pid}"
            group.mkdir()
            made.append(group)
            quota = int(PERIOD * part)
            if first:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (group / "cpu.max").write_text(f"{quota} {PERIOD}")
            (group / "cgroup.procs").write_text(str(pid))
        yield
    except OSError as error:
        raise Impossible(f"it takes root and CPU quotas (cgroups): {error}") from None
    finally:
        for group, pid in zip(made, pids, strict=False):
            with_all = group.parent / "cgroup.procs"
            with_all.write_text(str(pid))
            group.rmdir()


def serving(server: RdmaNfsd, count: int) -> list[int]:
    """The processes that serve, by number."""
    if count == 1:
        return [server.process.pid]
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    return sorted(map(int, children.split()))


class Processes(Study):
    """Ever more processes; and two of them."""

    name = "processes"
    summary = "throughput of 1 to 8 processes with a CPU quota each, and a small client beside a bulk client"
    curve = ("processes", "calls_per_s", ("what",))

    def run(self, terms: Terms) -> list[Row]:
        """The numbers in turns, so that each meets the same machine."""
        rounds = []
        with ExitStack() as ends:
            servers = {}
            for count in COUNTS:
                servers[count] = OfAddress(terms.directory / str(count), options={"processes": count})
                ends.callback(servers[count].stop)
            files = {count: asyncio.run(prepare(server, terms.uid)) for count, server in servers.items()}
            for number in range(terms.rounds):
                rows: list[Row] = []
                for name, outstanding in CALLS.items():
                    for count, server in servers.items():
                        progress(f"processes, round {number + 1}: {name}, {count}")
                        found = BY_NAME[name].calls(files[count], BY_NAME[name].size)
                        calls = found if isinstance(found, list) else found.calls
                        rows.append(
                            {"what": name, "processes": count}
                            | _together(server, calls, outstanding, count, terms.seconds)
                        )
                server = servers[2]
                server.own = address_of(0, 2)
                for situation in SITUATIONS:
                    progress(f"processes, round {number + 1}: a small client, {situation}")
                    with ExitStack() as beside:
                        # Two at full speed take the processor that the small client's process needs.
                        beside.enter_context(groups(serving(server, 2), AT_WORK))
                        if situation != "idle":
                            server.own = address_of(0 if "same" in situation else 1, 2)
                            beside.enter_context(client(server, BULK, files[2], "tcp"))
                            server.own = address_of(0, 2)
                        rows.append({"what": situation, "processes": 2} | probe(server, files[2], "tcp", terms.seconds))
                rounds.append(rows)
        return medians(rounds, ("what", "processes"))

    def table(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> list[str]:
        """Throughput by number, then the small client."""
        lines = []
        for (name,), same in by([row for row in rows if "calls_per_s" in row], "what").items():
            found = {row["processes"]: row["calls_per_s"] for row in same}
            times = found[max(found)] / found[min(found)]
            lines.append([name, *(f"{found[count]:,.0f}" for count in sorted(found)), f"{times:.1f}", f"≥ {GOAL:.0f}"])
        heads = [f"calls per second with {QUOTA:.0%} of a processor each", *map(str, COUNTS), "8, times 1", "goal"]
        quiet = [row for row in rows if row["what"] in SITUATIONS]
        small = [
            [row["what"], f"{row['p50_us']:,.0f}", f"{row['p99_us']:,.0f}", f"{row['p99_us'] / quiet[0]['p99_us']:.1f}"]
            for row in quiet
        ]
        beside = markdown(["small client's GETATTR", "p50 µs", "p99 µs", "p99, times idle"], small)
        return [*markdown(heads, lines), "", *beside]

    def watched(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> dict[str, float]:
        """How many times less than so many times one's; and the small client in units of the idle server's."""
        found: dict[str, float] = {}
        for (name,), same in by([row for row in rows if "calls_per_s" in row], "what").items():
            one = next(row["calls_per_s"] for row in same if row["processes"] == 1)
            found |= {f"{name}, {row['processes']}": row["processes"] * one / row["calls_per_s"] for row in same[1:]}
        quiet = [row for row in rows if row["what"] in SITUATIONS]
        return found | {row["what"]: row["p99_us"] / quiet[0]["p99_us"] for row in quiet[1:]}


def _together(
    server: OfAddress, calls: Sequence[bytes], outstanding: int, count: int, seconds: float
) -> dict[str, float]:
    """What so many processes do, each with a client of its own that never waits."""
    with ExitStack() as ends:
        ends.enter_context(groups(serving(server, count), QUOTA))
        sockets = [ends.enter_context(connect_tcp(server.host, server.tcp, address_of(n, count))) for n in range(count)]
        load = Loads([Generator(sock.fileno(), calls, outstanding) for sock in sockets])
        load.run(0.5)
        begun = time.process_time()
        made, elapsed = load.run(seconds)
        used = (time.process_time() - begun) / elapsed
        return {"calls_per_s": made / elapsed, "load_cpu": used}
