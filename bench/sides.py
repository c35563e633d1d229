"""The cost of each call, for servers side by side, in memory and on disks. Imports scenarios for their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench import chimera, ganesha
from bench.places import MEMORY
from bench.scenarios import BY_NAME
from bench.servers import OURS
from bench.study import markdown

Result = Mapping[str, Any]
Figures = Mapping[str, float]
SELDOM = 0.005
"""Flushes per call that are not worth a row."""


def split(found: Mapping[str, Any], places: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was measured, by label, as (in memory by server, on disks by place and server)."""
    disks: dict[str, Any] = {place: {} for place in places}
    memory = {}
    for label, figures in found.items():
        name, on, place = label.partition(" on ")
        if on:
            disks[place][name] = figures
        else:
            memory[name] = figures
    return memory, disks


def everywhere(result: Result) -> dict[str, Any]:
    """By place, memory first, what was measured of each server."""
    return {MEMORY: result["servers"], **result.get("disks", {})}


def figures(result: Result, place: str, server: str, scenario: str, over: str = "tcp") -> Figures | None:
    """Of one scenario with one server in one place; None: it was not measured."""
    of_server = everywhere(result).get(place, {}).get(server, {})
    found: Figures | None = of_server.get("scenarios", {}).get(f"{scenario} {over}")
    return found


def peers(result: Result, kind: str) -> list[str]:
    """The servers that are not ours, of one kind: Ganesha's releases, or Chimera's modules."""
    names = (name for servers in everywhere(result).values() for name in servers)
    return [name for name in dict.fromkeys(names) if name not in OURS and name.startswith(kind)]


def head(result: Result) -> list[str]:
    """What somebody must know to whom the figures are shown."""
    lines = [*crowd(result), *([""] if crowd(result) else [])]
    lines += [f"- {place['told']}{_limits(place)}." for place in result.get("places", {}).values()]
    lines += [f"- {name}: not measured: {reason}." for name, reason in result.get("absent", {}).items()]
    for kind, durability in ((ganesha.Ganesha.name, ganesha.DURABILITY), (chimera.Chimera.name, chimera.DURABILITY)):
        if peers(result, kind):
            lines += [f"- {durability}"]
    return lines


def crowd(result: Result) -> list[str]:
    """How busy others kept the machine; earlier results do not say."""
    facts = result.get("machine", {})
    if "busy" not in facts:
        return []
    used = f"At the beginning other programs used {facts['busy']:.0%} of the processors"
    return [f"{used}; the load average was {facts['load']:.1f}."]


def _limits(place: Figures) -> str:
    """What a place's file system takes by itself."""
    if "pwrite_us" not in place:
        return ""
    fio = f", fio's READs of what is not cached {place['fio_per_s']:,.0f}/s" if "fio_per_s" in place else ""
    return f": pread {place['pread_us']:.2f} µs, pwrite {place['pwrite_us']:.2f} µs of CPU{fio}"


def beside(result: Result) -> list[str]:
    """A row for each scenario over TCP: CPU microseconds per call and calls per second, by place and server."""
    columns = [(place, name) for place, servers in everywhere(result).items() for name in servers]
    heads = ["scenario", *(f"{name}, {place}" for place, name in columns)]
    lines = [[named(key), *(cell(result, place, name, key) for place, name in columns)] for key in _keys(result)]
    return markdown(heads, lines) if lines else []


def cell(result: Result, place: str, name: str, scenario: str) -> str:
    """CPU and rate; what failed says so."""
    found = figures(result, place, name, scenario)
    if found is not None:
        return f"{number(found['cpu_us'])} ({found['calls_per_s']:,.0f}/s)"
    failures = everywhere(result)[place][name].get("failures", {}).get(f"{scenario} tcp")
    return "failed: " + ", ".join(dict.fromkeys(failures)) if failures else "-"


def flushes(result: Result) -> list[str]:
    """How often a disk had to make stable what it has, per call: who does not flush answers before it is safe."""
    columns = [(place, name) for place, servers in result.get("disks", {}).items() for name in servers]
    lines = []
    for key in _keys(result):
        found = [(figures(result, place, name, key) or {}).get("flushes") for place, name in columns]
        if any(each is not None and each > SELDOM for each in found):
            lines.append([named(key), *("-" if each is None else f"{each:.2f}" for each in found)])
    return markdown(["flushes of the disk per call", *(f"{name}, {place}" for place, name in columns)], lines)


def number(value: float) -> str:
    """With as many digits as say something."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def named(scenario: str) -> str:
    """A scenario, and what is counted in it unless that is calls."""
    thing = BY_NAME[scenario].thing
    return scenario if thing == "call" else f"{scenario}, per {thing}"


def _keys(result: Result) -> Iterator[str]:
    """Scenarios that were measured over TCP anywhere."""
    found = {
        key.partition(" ")[0]
        for servers in everywhere(result).values()
        for server in servers.values()
        for key in [*server.get("scenarios", {}), *server.get("failures", {})]
        if key.endswith(" tcp")
    }
    return (name for name in BY_NAME if name in found)
