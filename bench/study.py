"""Studies: questions about the server that one kind of call on one connection does not answer.

Owns :class:`Study`, the terms it runs under, how calls are measured, and tables; imports :mod:`bench.servers`.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bench.ganesha import Ganesha
from bench.laps import Laps
from bench.places import Place
from bench.running import Running
from bench.servers import Cpu, Server

Row = dict[str, Any]
"""What was looked at (strings and sizes), and figures."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a study runs."""

    directory: Path
    """Its own, in memory."""
    seconds: float = 2.0
    rounds: int = 3
    transports: Sequence[str] = ("tcp", "rdma")
    uid: int = 0
    places: Sequence[Place] = ()
    """Directories on disks, besides."""
    rivals: Sequence[type[Ganesha]] = ()
    """Servers to compare with, where a study does."""


class Study:
    """Derived from for each question."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for ``--help``."""
    curve: ClassVar[tuple[str, str, tuple[str, ...]] | None] = None
    """What the picture shows: the row's key along the axis, its figure, and the keys that tell lines apart."""

    def run(self, terms: Terms) -> list[Row]:
        """Measure. Raises :class:`Impossible` where this machine does not allow it."""
        raise NotImplementedError

    def table(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> list[str]:
        """The rows as Markdown; ``bounds`` is what the machine can do."""
        raise NotImplementedError

    def watched(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> dict[str, float]:
        """What a comparison looks at: ratios, of which more is worse, by what they are of."""
        raise NotImplementedError


def progress(text: str) -> None:
    """Say what is going on, in one line."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


class Meter:
    """What a server uses while this is on, which may be several times."""

    def __init__(self, server: Server, *, events: bool = True) -> None:
        """``events``: with what else it counts."""
        self._server, self._with_events = server, events
        self.used = Cpu(0.0, 0.0, 0.0)
        self.events: dict[str, float] = {}

    def __enter__(self) -> Meter:
        self._events = self._server.events() if self._with_events else {}
        self._before = self._server.cpu()
        return self

    def __exit__(self, *exc: object) -> None:
        after = self._server.cpu()
        self.used = Cpu(*(used + now - then for used, now, then in zip(self.used, after, self._before, strict=True)))
        for name, value in (self._server.events() if self._with_events else {}).items():
            self.events[name] = self.events.get(name, 0.0) + value - self._events.get(name, 0.0)


def cost(server: Server, load: Running, seconds: float, *, events: bool = True) -> dict[str, float]:
    """What calls cost and how long they take, after a moment to get going. Laps get going by themselves."""
    meter = Meter(server, events=events)
    if isinstance(load, Laps):
        calls, elapsed = load.run(seconds, meter=meter)
    else:
        load.run(min(0.3, seconds))
        with meter:
            calls, elapsed = load.run(seconds)
    used, ticks = meter.used.seconds, meter.used.user + meter.used.system
    figures = {
        "cpu_us": used / calls * 1e6,
        "user_us": used / calls * 1e6 * (meter.used.user / ticks if ticks else 0.0),
        "calls_per_s": calls / elapsed,
        "p50_us": load.percentile(0.5),
        "p99_us": load.percentile(0.99),
        "p999_us": load.percentile(0.999),
    }
    return figures | {name: value / calls for name, value in meter.events.items()}


def median(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure that every round has."""
    names = [name for name in rounds[0] if all(name in one for one in rounds)]
    return {name: statistics.median(one[name] for one in rounds) for name in names}


def medians(rounds: Iterable[Sequence[Row]], keys: Sequence[str]) -> list[Row]:
    """The rows of all rounds, those with the same ``keys`` made one."""
    together: dict[tuple[Any, ...], list[Row]] = {}
    for rows in rounds:
        for row in rows:
            together.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [
        dict(zip(keys, found, strict=True))
        | median([{name: value for name, value in row.items() if name not in keys} for row in same])
        for found, same in together.items()
    ]


def markdown(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A table."""
    return [_cells(heads), "|" + "---|" * len(heads), *(_cells(row) for row in rows)]


def _cells(row: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in row) + " |"


def by(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows with the same values together, in order."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found
