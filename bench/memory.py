"""Memory per RDMA connection: of one that is open, and of one that moves data."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.running import Impossible
from bench.scenarios import BY_NAME, Scenario, prepare
from bench.servers import RdmaNfsd
from bench.study import Row, Study, Terms, markdown, progress

CONNECTIONS = 64
MIB = 1 << 20
STATES = (
    # name, scenario, what one connection may take
    ("idle", "getattr", 1 * MIB),
    ("busy: 1 MiB READs", "read-1m-4", 8 * MIB),
    ("busy: 1 MiB WRITEs", "write-1m-4", 8 * MIB),
    ("busy: 4 KiB WRITEs", "write-4k-32", 8 * MIB),
)


def resident(pid: int) -> int:
    """Octets of memory a process has, its buffers included, but not what it shares with others' programs."""
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) << 10
    return fields["Private_Dirty"] + fields["Shared_Dirty"]


class Sampler(threading.Thread):
    """The most that a server takes until :meth:`end`."""

    def __init__(self, server: RdmaNfsd) -> None:
        super().__init__()
        self.server = server
        self.all = self.buffers = self.used = 0.0
        self.over = threading.Event()

    def sample(self) -> None:
        """Look once."""
        counters = self.server.counters()
        self.all = max(self.all, resident(self.server.process.pid))
        self.buffers = max(self.buffers, counters['rdma_nfsd_memory_bytes{kind="mapped"}'])
        self.used = max(self.used, counters['rdma_nfsd_memory_bytes{kind="in_use"}'])

    def run(self) -> None:
        """Look again and again."""
        while not self.over.wait(0.05):
            self.sample()

    def end(self) -> None:
        """The last look."""
        self.over.set()
        self.join()


class Memory(Study):
    """What 64 connections add to what a server has without any."""

    name = "memory"
    summary = f"registered and other memory per idle and per busy RDMA connection, with {CONNECTIONS} of them"

    def run(self, terms: Terms) -> list[Row]:
        """A server of its own for each state."""
        if "rdma" not in terms.transports:
            raise Impossible("it is about RDMA")
        rows = []
        for number, (state, scenario, goal) in enumerate(STATES):
            progress(f"memory: {state}")
            found = self._measure(terms, terms.directory / str(number), BY_NAME[scenario], state == "idle")
            rows.append({"state": state, "goal": goal, "connections": CONNECTIONS} | found)
        return rows

    def _measure(self, terms: Terms, place: Path, scenario: Scenario, idle: bool) -> dict[str, float]:
        server = RdmaNfsd(place)
        try:
            files = asyncio.run(prepare(server, terms.uid))
            if scenario.direction:  # what is not the connections': the page cache of the file, the loop's own
                with replace(scenario, outstanding=1).load(server, files, "tcp") as load:
                    load.run(0.2)
            before, most = Sampler(server), Sampler(server)
            before.sample()
            with scenario.load(server, files, "rdma", CONNECTIONS) as load:
                load.run(0.1)
                if idle:
                    time.sleep(0.5)
                    most.sample()
                else:
                    most.start()
                    try:
                        load.run(terms.seconds)
                    finally:
                        most.end()
        finally:
            server.stop()
        return {
            "all": (most.all - before.all) / CONNECTIONS,
            "buffers": (most.buffers - before.buffers) / CONNECTIONS,
            "used": (most.used - before.used) / CONNECTIONS,
        }

    def table(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> list[str]:
        """In MiB."""
        heads = ["connection", "MiB altogether", "goal", "registered", "of which in use"]
        lines = [
            [
                row["state"],
                f"{row['all'] / MIB:.2f}",
                f"≤ {row['goal'] // MIB}",
                *(f"{row[kind] / MIB:.2f}" for kind in ("buffers", "used")),
            ]
            for row in rows
        ]
        return markdown(heads, lines)

    def watched(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> dict[str, float]:
        """What one connection takes, in units of what it may."""
        return {row["state"]: max(row["all"], row["buffers"]) / row["goal"] for row in rows}
