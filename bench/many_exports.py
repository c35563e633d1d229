"""The cost of calls when there are many exports."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

from bench.growth import PATIENCE, Growth
from bench.scenarios import BY_NAME, needed, prepare
from bench.servers import RdmaNfsd
from bench.study import Row, Terms, cost, medians, progress

SCENARIOS = tuple(BY_NAME[name] for name in ("lookup", "rename", "remove", "open-close-v4.1"))


class Exports(Growth):
    """Exports of one server, each of a directory of its own on one file system; one of them is used."""

    name = "exports"
    summary = "LOOKUP, RENAME, REMOVE, OPEN with CLOSE against the exports of a server"
    sizes = (1, 10, 100, 1_000)

    def run(self, terms: Terms) -> list[Row]:
        """A server for each size, over TCP."""
        rows: list[Row] = []
        until = time.monotonic() + PATIENCE
        for size in self.sizes:
            rows += self.measure(terms, size)
            if time.monotonic() > until:
                break
        return rows

    def measure(self, terms: Terms, size: int) -> list[Row]:
        """With so many exports."""
        progress(f"{self.name}: {size:,}")
        others = {f"/more/{number}": terms.directory / f"of {size}" / f"{number}" for number in range(1, size)}
        for path in others.values():
            path.mkdir(parents=True)
        with ExitStack() as ends:
            server = RdmaNfsd(terms.directory / f"{size}", exports=others)
            ends.callback(server.stop)
            files = asyncio.run(prepare(server, terms.uid, needs=needed(SCENARIOS)))
            loads = {each: ends.enter_context(each.load(server, files, "tcp")) for each in SCENARIOS}
            rounds: list[list[Row]] = []
            for number in range(terms.rounds):
                rounds.append([])
                for scenario, load in loads.items():
                    progress(f"{self.name}: {size:,}, {scenario.name}, round {number + 1}")
                    scenario.fresh(server)
                    rounds[-1].append({"call": scenario.name, "size": size} | cost(server, load, terms.seconds))
        return medians(rounds, ("call", "size"))
