"""Throughput and CPU per call with 1 to 256 connections, all of them busy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from bench.scenarios import BY_NAME, prepare
from bench.servers import RdmaNfsd
from bench.study import Row, Study, Terms, by, cost, markdown, medians, progress

COUNTS = (1, 4, 16, 64, 256)
CALLS = ("getattr", "read-4k-32")


class Connections(Study):
    """The same calls, outstanding on ever more connections."""

    name = "connections"
    summary = "throughput and CPU per call with 1 to 256 busy connections"
    curve = ("connections", "cpu_us", ("call", "over"))

    def run(self, terms: Terms) -> list[Row]:
        """One server, one number of connections after the other."""
        server = RdmaNfsd(terms.directory)
        try:
            files = asyncio.run(prepare(server, terms.uid))
            rounds = []
            for number in range(terms.rounds):
                rows: list[Row] = []
                for name in CALLS:
                    for over in terms.transports:
                        for count in COUNTS:
                            progress(f"connections, round {number + 1}: {name} over {over}, {count}")
                            with BY_NAME[name].load(server, files, over, count) as load:
                                figures = cost(server, load, terms.seconds)
                            rows.append({"call": name, "over": over, "connections": count} | figures)
                rounds.append(rows)
        finally:
            server.stop()
        return medians(rounds, ("call", "over", "connections"))

    def table(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> list[str]:
        """One row per call and transport, one column per number."""
        counts = sorted({row["connections"] for row in rows})
        lines = []
        for (call, over), same in by(rows, "call", "over").items():
            found = {row["connections"]: row for row in same}
            cells = [f"{found[n]['cpu_us']:.2f} / {found[n]['calls_per_s'] / 1000:,.0f}k" for n in counts if n in found]
            lines.append([call, over, *cells])
        return ["CPU µs per call / calls per second, by connections:", "", *markdown(["call", "over", *counts], lines)]

    def watched(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> dict[str, float]:
        """CPU per call in round trips."""
        return {
            f"{row['call']} over {row['over']}, {row['connections']} connections": row["cpu_us"]
            / bounds["round_trip_us"]
            for row in rows
        }
