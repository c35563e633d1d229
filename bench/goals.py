"""``python -m bench goals``: what the server is to reach, what it reaches in one run, and whether that is enough.

Owns the goals; each compares figures of the same run, so that a slow day slows both. Of several releases of Ganesha,
and of Chimera's modules, the cheapest counts. Imports :mod:`bench.sides` for the figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import chimera, compare, machine, sides
from bench.ganesha import Ganesha
from bench.places import KINDS, MEMORY
from bench.scenarios import TODAY
from bench.servers import RdmaNfsd, RdmaNfsdNames
from bench.study import by, markdown
from bench.writers import Writers

Result = Mapping[str, Any]
TOLERANCE = 0.03
CHANGES = ("mkdir", "rename", "link", "symlink", "setattr-size", "open-create-v4.1")
VERSION_40 = ("read-4k-32", "write-4k-32", "getattr", "open-close")
VERSION_TWO = ("getattr", "lookup", "read-4k-32", "write-4k-32")
BULK = ("read-1m-4", "write-1m-4", "read-1m-4x4", "write-1m-4x4")
STORED = {"write-1m-4": "1m", "write-1m-4x4": "1mx4"}
"""Of these the floor is measured as of 4k WRITEs, under these names."""
BESIDE_CHIMERA = ("write-4k-32",)
"""All that Chimera is measured with, where somebody has built it."""
FILES = ("create-stat-unlink", "untar", "remove")
FLOOR = (
    "The floor is what a C program takes, or reaches, that does nothing else. No server that does the same meets a "
    "goal which its floor misses. WRITEs: the program puts their octets from a socket into the same file, by itself, "
    "and by another thread, which may wait; of four connections, each has such a program. READs of what is not "
    "cached: it reads them with io_uring, many at a time, and sends them. READDIRPLUS: it reads names and asks for the "
    "attributes of each. GETATTR beside bulk writers: it "
    "answers in a process of its own, while another process takes as much from as many."
)
NEEDED = (
    *("read-4k-32", "write-4k-32", "read-4k-half", "read-4k-cold", "readdirplus", *BULK, *FILES, *CHANGES),
    *(f"{name}-v4.{minor}" for name in VERSION_40 for minor in (0, 1)),
    *(f"{name}{two}" for name in VERSION_TWO for two in ("", "-two")),
    *("read-4k-1x64", Writers.name),
)
"""What a run for all of them measures."""


@dataclass(frozen=True, slots=True)
class Row:
    """One goal."""

    scenario: str
    goal: str
    figure: str
    met: bool | None
    """None: it was not measured."""
    floor: str = ""
    """What it takes without a server."""


def at_most(scenario: str, goal: str, value: float | None, most: float | None, floor: str = "") -> Row:
    """A goal of a figure in µs and its bound."""
    if value is None or most is None:
        return Row(scenario, goal, "not measured", None, floor)
    return Row(scenario, goal, f"{sides.number(value)} of {sides.number(most)} µs", value <= most, floor)


def at_least(scenario: str, goal: str, value: float | None, least: float | None, floor: str = "") -> Row:
    """A goal of a rate and its bound."""
    if value is None or least is None:
        return Row(scenario, goal, "not measured", None, floor)
    return Row(scenario, goal, f"{value:,.0f} of {least:,.0f} /s", value >= least, floor)


def microseconds(value: float | None) -> str:
    """For people; nothing of what was not measured."""
    return "" if value is None else f"{sides.number(value)} µs"


class Figures:
    """What a run has found, by what goals are about."""

    def __init__(self, result: Result) -> None:
        self.result = result

    def ours(self, scenario: str, place: str = MEMORY, *, over: str = "tcp", figure: str = "cpu_us") -> float | None:
        """A figure of ours."""
        found = sides.figures(self.result, place, RdmaNfsd.name, scenario, over)
        return None if found is None else found[figure]

    def as_ganesha(self, scenario: str, place: str) -> float | None:
        """The CPU of ours with the same durability: Ganesha does not flush names before it answers, only data."""
        found = sides.figures(self.result, place, RdmaNfsdNames.name, scenario)
        return None if found is None else found["cpu_us"]

    def ganesha(
        self, scenario: str, place: str, figure: str = "cpu_us", best: Callable[[Iterable[float]], float] = min
    ) -> float | None:
        """The best of Ganesha's releases."""
        return self._peer(Ganesha.name, scenario, place, figure, best)

    def chimera(self, scenario: str, place: str) -> float | None:
        """The least CPU of Chimera's modules."""
        return self._peer(chimera.Chimera.name, scenario, place, "cpu_us", min)

    def _peer(
        self, kind: str, scenario: str, place: str, figure: str, best: Callable[[Iterable[float]], float]
    ) -> float | None:
        found = [sides.figures(self.result, place, name, scenario) for name in sides.peers(self.result, kind)]
        values = [each[figure] for each in found if each is not None]
        return best(values) if values else None

    def storing(self, place: str, size: str) -> str:
        """The floor of a WRITE."""
        floor = microseconds(self.place(place, f"store_{size}_us"))
        by_worker = microseconds(self.place(place, f"store_{size}_by_worker_us"))
        return f"{floor}, by a worker {by_worker}" if by_worker else floor

    def place(self, place: str, figure: str) -> float | None:
        """What a file system does by itself."""
        limits = self.result.get("limits", {}) if place == MEMORY else {}
        value: float | None = (limits | self.result.get("places", {}).get(place, {})).get(figure)
        return value


def times(factor: float, value: float | None) -> float | None:
    """Of what may not have been measured."""
    return None if value is None else factor * value


def unchanged(before: Mapping[str, Any] | None) -> list[Row]:
    """Today's scenarios beside an earlier build."""
    goal = f"tmpfs, each of the {len(TODAY)} native scenarios: at most {1 + TOLERANCE:.2f} x before"
    if before and "commit" in before:
        goal += f" ({before['commit']})"
    if not before or not before["ratios"]:
        return [Row("today's scenarios", goal, "not measured: --before OLDTREE", None)]
    worse = {key: ratio for key, ratio in before["ratios"].items() if ratio > 1 + TOLERANCE}
    told = ", ".join(f"{key} {ratio:.3f}" for key, ratio in worse.items())
    failed = ", ".join(f"{key} failed" for key in before["failures"])
    figure = "; ".join(each for each in (told, failed) if each) or f"at most {max(before['ratios'].values()):.3f}"
    return [Row("today's scenarios", goal, figure, not worse and not failed)]


def writes(found: Figures) -> list[Row]:
    """4k WRITE unstable, depth 32."""
    rows = []
    (name,) = BESIDE_CHIMERA
    for place in KINDS:
        parts = found.ours(name), found.place(place, "pwrite_us"), found.place(MEMORY, "pwrite_us")
        memory, there, inline = parts
        most = None
        if memory is not None and there is not None and inline is not None:
            most = memory + 1.5 * max(there - inline, 0.0)
        what, ours, floor = f"{name}, {place}", found.ours(name, place), found.storing(place, "4k")
        rows.append(at_most(what, "ours on tmpfs + 1.5 x (pwrite there - on tmpfs)", ours, most, floor))
        rows.append(at_most(what, "0.4 x Ganesha", ours, times(0.4, found.ganesha(name, place)), floor))
        rows.append(at_most(what, "1.0 x Chimera", ours, found.chimera(name, place), floor))
    return rows


def reads(found: Figures) -> list[Row]:
    """4k READ on ext4: cached, partly cached, not cached."""
    disk, memory = KINDS[0], found.ours("read-4k-32")
    cold = found.ours("read-4k-cold", disk)
    half, fio = found.ours("read-4k-half", disk), found.place(disk, "fio_per_s")
    rate = found.ours("read-4k-cold", disk, figure="calls_per_s")
    floor = found.place(disk, "fetch_per_s")
    told = "" if floor is None else f"{floor:,.0f} /s"
    floor_us = microseconds(found.place(disk, "fetch_us"))
    return [
        at_most("read-4k-32, ext4", "1.2 x tmpfs", found.ours("read-4k-32", disk), times(1.2, memory)),
        at_most("read-4k-half, ext4", "1.5 x read-4k-32 on tmpfs", half, times(1.5, memory)),
        at_most("read-4k-cold, ext4", "0.5 x Ganesha", cold, times(0.5, found.ganesha("read-4k-cold", disk)), floor_us),
        at_least("read-4k-cold, ext4", "0.9 x fio on the file itself", rate, times(0.9, fio), told),
    ]


def beside_ganesha(found: Figures, names: Sequence[str], places: Sequence[str], factor: float) -> list[Row]:
    """CPU of each, in each place; where it was measured, with the same durability."""
    rows = []
    for name in names:
        for place in places:
            most = times(factor, found.ganesha(name, place))
            what, ours = sides.named(name) + f", {place}", found.ours(name, place)
            alike = found.as_ganesha(name, place) if name in FILES + CHANGES and place != MEMORY else None
            if alike is not None:
                rows.append(
                    at_most(f"{what}, async: names", f"{factor} x Ganesha, which flushes no names either", alike, most)
                )
            else:
                floor = found.storing(place, STORED[name]) if name in STORED else ""
                rows.append(at_most(what, f"{factor} x Ganesha", ours, most, floor))
    return rows


def files_a_second(found: Figures) -> list[Row]:
    """With every change on the disk before it is answered, against Ganesha's, which are not."""
    rows = []
    for name in FILES:
        theirs = found.ganesha(name, KINDS[0], "calls_per_s", max)
        rate = found.ours(name, KINDS[0], figure="calls_per_s")
        rows.append(at_least(f"{name}, ext4", "0.5 x Ganesha's, unsynced", rate, times(0.5, theirs)))
    return rows


def directories(found: Figures) -> list[Row]:
    """READDIRPLUS, per entry."""
    rows = []
    for place in (MEMORY, KINDS[0]):
        ours, what = found.ours("readdirplus", place), f"readdirplus, per entry, {place}"
        floor = microseconds(found.place(place, "look_us"))
        rows.append(at_most(what, "4 µs", ours, None if ours is None else 4.0, floor))
        rows.append(at_most(what, "1.0 x Ganesha", ours, found.ganesha("readdirplus", place), floor))
    return rows


def versions(found: Figures) -> list[Row]:
    """NFSv4.0 beside 4.1, and RPC-over-RDMA version Two beside One, in memory."""
    rows = [
        at_most(
            f"{name}-v4.0", "1.1 x ours over 4.1", found.ours(f"{name}-v4.0"), times(1.1, found.ours(f"{name}-v4.1"))
        )
        for name in VERSION_40
    ]
    for name in VERSION_TWO:
        one, two = (found.ours(f"{name}{version}", over="rdma") for version in ("", "-two"))
        rows.append(at_most(f"{name}, version Two", "1.1 x version One", two, times(1.1, one)))
    return rows


def latencies(result: Result) -> list[Row]:
    """GETATTR beside bulk."""
    measured = result.get("studies", {}).get(Writers.name)
    failure = result.get("studies_failed", {}).get(Writers.name)
    if not measured:
        figure = "not measured" if failure is None else f"failed: {failure}"
        return [
            Row(
                "GETATTR p99 beside bulk writers and a stalled fsync",
                "3 x idle",
                figure,
                None if failure is None else False,
            )
        ]
    return [
        at_most(
            f"GETATTR p99, {row['situation']}, {over}",
            "3 x idle",
            row["p99_us"],
            3 * same[0]["p99_us"],
            microseconds(row.get("control_p99_us")),
        )
        for (over,), same in by(measured, "over").items()
        for row in same[1:]
    ]


def rows(result: Result) -> list[Row]:
    """Every goal."""
    found = Figures(result)
    return [
        *unchanged(result.get("before")),
        *writes(found),
        *reads(found),
        *beside_ganesha(found, BULK, (KINDS[0],), 0.7),
        *beside_ganesha(found, FILES, (KINDS[0],), 0.5),
        *files_a_second(found),
        *directories(found),
        *versions(found),
        *beside_ganesha(found, CHANGES, (MEMORY, KINDS[0]), 0.6),
        *latencies(result),
    ]


def table(result: Result) -> list[str]:
    """The goals as Markdown, those not met in bold."""
    found = rows(result)
    said = {True: "yes", False: "**no**", None: "-"}
    lines = [[row.scenario, row.goal, row.figure, row.floor, said[row.met]] for row in found]
    met, missed = (sum(row.met is what for row in found) for what in (True, False))
    failed = [
        f"- {key} on {place} failed: {', '.join(dict.fromkeys(reasons))}"
        for place, servers in sides.everywhere(result).items()
        for key, reasons in servers.get(RdmaNfsd.name, {}).get("failures", {}).items()
    ]
    count = f"{met} met, {missed} not, {len(found) - met - missed} not measured."
    return [
        *sides.head(result),
        f"- {FLOOR}",
        "",
        *markdown(["scenario", "at most or at least", "figure", "floor", "met"], lines),
        "",
        *failed,
        count,
    ]


def extended(named: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The command line: a run's, with what goals need for its defaults."""
    named.prog, named.epilog = "python -m bench goals", None
    named.description = "Measure what the goals need, and say of each whether it is met."
    servers = [RdmaNfsd.name, RdmaNfsdNames.name, Ganesha.name, *(chimera.KINDS if chimera.PROGRAM.exists() else ())]
    named.set_defaults(server=servers, on=list(KINDS), only=list(NEEDED), chimera_only=BESIDE_CHIMERA)
    named.add_argument(
        "--before", type=Path, metavar="OLDTREE", help="a built checkout to compare today's scenarios with"
    )
    named.add_argument("--into", type=Path, metavar="FILE", help="write the table there, as Markdown")
    return named


def compared(old: Path, new: Path) -> dict[str, Any]:
    """Today's scenarios of two trees."""
    found, failures = compare.run(compare.parser().parse_args([str(old), str(new)]))
    return {
        "commit": machine.commit_of(old.resolve()),
        "ratios": {" ".join(key): pairs.ratio() for key, pairs in found.items()},
        "failures": {" ".join(key): why for key, why in failures.items()},
    }
