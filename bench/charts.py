"""Charts that compare servers, as SVG: a row for each kind of call, a dot for each server.

Imports :mod:`bench.plots` for matplotlib and :mod:`bench.sides` for the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import plots, sides
from bench.places import MEMORY
from bench.scenarios import BY_NAME
from bench.servers import IN_GUEST, OURS, RdmaNfsd
from bench.study import markdown

Result = Mapping[str, Any]
Series = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By label of a server, and by row: figures."""
PANELS = (("cpu_us", "CPU µs per call (less is better)"), ("calls_per_s", "calls per second (more is better)"))
ROW_INCHES = 0.24
MARKS = "os^Dv"


def dots(title: str, series: Series, path: Path) -> None:
    """Both figures of every row, one panel each, on logarithmic axes. Raises SystemExit without matplotlib."""
    matplotlib, figure_module = plots.library()
    names = list(dict.fromkeys(row for rows in series.values() for row in rows))
    height = 1.5 + ROW_INCHES * len(names)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        picture = figure_module.Figure(figsize=(10, height), layout="constrained")
        panels = picture.subplots(1, len(PANELS), sharey=True)
        for axes, (figure, label) in zip(panels, PANELS, strict=True):
            for number, (server, rows) in enumerate(series.items()):
                points = [(rows[name][figure], at) for at, name in enumerate(names) if name in rows]
                style = {"marker": MARKS[number % len(MARKS)], "linestyle": "none", "markersize": 5}
                axes.plot(*zip(*points, strict=True), label=server, **style)
            axes.set(xscale="log", xlabel=label)
            axes.grid(visible=True, alpha=0.4)
        panels[0].set_yticks(range(len(names)), names)
        panels[0].set_ylim(len(names) - 0.5, -0.5)  # the first row at the top
        picture.suptitle(title)
        picture.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(series))
        picture.savefig(path, format="svg", metadata={"Date": None})


def in_place(result: Result, place: str) -> dict[str, dict[str, Mapping[str, float]]]:
    """What a picture of one place shows: every server over TCP, and rdma-nfsd over RDMA where that was measured."""
    found: dict[str, dict[str, Mapping[str, float]]] = {}
    for server, measured in sides.everywhere(result)[place].items():
        for over in ("tcp", "rdma"):
            chosen = {name: measured["scenarios"].get(f"{name} {over}") for name in BY_NAME}
            rows = {sides.named(name): figures for name, figures in chosen.items() if figures}
            if rows:
                found[f"{server}, {over.upper()}"] = rows
    return found


def in_guest(result: Result) -> dict[str, dict[str, Mapping[str, float]]]:
    """What the picture of the servers in a guest shows."""
    servers = result["guest"]["servers"]
    return {name: servers[name]["scenarios"] for name in IN_GUEST if servers.get(name, {}).get("scenarios")}


def draw(result: Result, directory: Path) -> Iterator[tuple[str, str]]:
    """Draw every place and the guest; yields each picture's name (``memory``, the place's, ``guest``) and file name.
    Places with nothing measured have none."""
    for place in sides.everywhere(result):
        series = in_place(result, place)
        if series:
            name = "memory" if place == MEMORY else place
            dots(f"{place}: the server's CPU, and what one load generator gets", series, directory / f"{name}.svg")
            yield name, f"{name}.svg"
    if "guest" in result and in_guest(result):
        dots("In one guest, by TCP and by siw", in_guest(result), directory / "guest.svg")
        yield "guest", "guest.svg"


def summary(result: Result) -> list[str]:
    """A row for each place and other server: the geometric means of rdma-nfsd's figures over the other's."""
    lines = []
    for place, servers in sides.everywhere(result).items():
        ours = servers.get(RdmaNfsd.name, {}).get("scenarios", {})
        for name, measured in servers.items():
            if name not in OURS:
                lines.append(_ratios(place, name, ours, measured["scenarios"]))
    guest = result.get("guest", {}).get("servers", {})
    mine, theirs = (guest.get(name, {}).get("scenarios", {}) for name in IN_GUEST)
    if mine and theirs:
        lines.append(_ratios("in a guest, TCP and siw", "knfsd", mine, theirs))
    heads = ["served from", "beside", "kinds of calls", "CPU per call", "at best", "at worst", "calls per second"]
    return markdown(heads, [line for line in lines if line]) if any(lines) else []


def _ratios(place: str, name: str, ours: Result, theirs: Result) -> list[str]:
    """One row; empty where nothing was measured of both."""
    both = [key for key in ours if key in theirs]
    if not both:
        return []
    cpu = [ours[key]["cpu_us"] / theirs[key]["cpu_us"] for key in both]
    rate = [ours[key]["calls_per_s"] / theirs[key]["calls_per_s"] for key in both]
    return [place, name, str(len(both)), *(f"{value:.2f}" for value in (_mean(cpu), min(cpu), max(cpu), _mean(rate)))]


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
