"""Metrics of all processes together, and those of each that tell how they share the work.

A process that is started again counts from nothing. What its predecessors have counted is added, so that counters of
the whole never fall, as Prometheus has it: as far as they were last read, since a process that ends takes along what
it has counted after that.

Owns :class:`Totals`. It is asked in threads of the endpoint, and asks the processes on the supervisor's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_PREFIX: Final = "rdma_nfsd_"
_PATIENCE: Final = 5.0
_GREATEST: Final = frozenset((_PREFIX + "read_only", _PREFIX + "grace_seconds"))
_LEAST: Final = frozenset((_PREFIX + "export_served", _PREFIX + "tls_expiry_timestamp_seconds"))
_GROWING: Final = ("counter", "histogram")
Key = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name and labels."""


class Seen(NamedTuple):
    """What a process has answered, in which of its lives."""

    life: int
    families: list[dict[str, Any]]


class Process(NamedTuple):
    """What there is to tell of a process, whether it answers or not."""

    up: bool
    restarts: int
    cpu: float
    """Seconds, of this life."""


class Totals(Collector):
    """All metrics."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ask: Callable[[], Awaitable[Mapping[int, Seen]]],
        processes: Callable[[], Mapping[int, Process]],
    ) -> None:
        """``ask``: what the processes say now; ``processes``: those that there are to be."""
        self._loop, self._ask, self._processes = loop, ask, processes
        self._last: dict[int, tuple[int, dict[Key, float]]] = {}
        """By process: its life, and what its counters showed in that when they were last read."""
        self._former: dict[Key, float] = {}
        """What was counted in lives that are over."""

    def describe(self) -> list[Metric]:
        """Nothing, so that nobody is asked when there is nobody yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        try:
            yield from asyncio.run_coroutine_threadsafe(self._look(), self._loop).result(_PATIENCE)
        except (TimeoutError, RuntimeError):
            return

    async def _look(self) -> list[Metric]:
        """All of it, added up on the loop: several threads may ask at a time."""
        seen = await self._ask()
        return [*self.together(seen), *of_each(self._processes(), seen)]

    def together(self, seen: Mapping[int, Seen]) -> Iterator[Metric]:
        """The metrics of all, for these answers."""
        merged: dict[str, Metric] = {}
        values: dict[str, dict[Key, list[float]]] = {}
        # Not answers that come late: what was counted in a life that is over has been added already.
        seen = {index: one for index, one in seen.items() if one.life >= self._last.get(index, one)[0]}
        for index, (life, families) in seen.items():
            growing = {}
            for family in families:
                merged.setdefault(family["name"], Metric(family["name"], family["text"], family["type"]))
                samples = values.setdefault(family["name"], {})
                for name, labels, value in family["samples"]:
                    key = name, tuple(labels.items())
                    samples.setdefault(key, []).append(value)
                    if family["type"] in _GROWING:
                        growing[key] = value
            self._keep(index, life, growing)
        silent = [counts for index, (_, counts) in self._last.items() if index not in seen]
        for name, metric in merged.items():
            for key, found in values[name].items():
                value = _one(name, key, found)
                if metric.type in _GROWING:
                    value += self._former.get(key, 0) + sum(counts.get(key, 0) for counts in silent)
                metric.add_sample(key[0], dict(key[1]), value)
            yield metric

    def _keep(self, index: int, life: int, growing: dict[Key, float]) -> None:
        former, counts = self._last.get(index, (life, {}))
        if former != life:
            for key, value in counts.items():
                self._former[key] = self._former.get(key, 0) + value
        self._last[index] = life, growing


def _one(family: str, key: Key, values: list[float]) -> float:
    if family in _LEAST:
        return min(values)
    if family in _GREATEST or any(value.startswith("most_") for _, value in key[1]) or family.endswith("build"):
        return max(values)
    return sum(values)


def of_each(processes: Mapping[int, Process], seen: Mapping[int, Seen]) -> Iterator[Metric]:
    """What tells how the processes share the work."""
    labels = ["process"]
    up = GaugeMetricFamily(_PREFIX + "process_up", "1 while the process serves clients", labels=labels)
    restarts = CounterMetricFamily(_PREFIX + "process_restarts", "Times it was started again", labels=labels)
    cpu = GaugeMetricFamily(_PREFIX + "process_cpu_seconds", "CPU time since its last start", labels=labels)
    calls = GaugeMetricFamily(_PREFIX + "process_calls", "Calls that are over, since its last start", labels=labels)
    connections = GaugeMetricFamily(_PREFIX + "process_connections", "Open connections", labels=labels)
    for index, process in processes.items():
        label = [str(index)]
        up.add_metric(label, process.up)
        restarts.add_metric(label, process.restarts)
        cpu.add_metric(label, process.cpu)
        if index in seen:
            calls.add_metric(label, _sum(seen[index], "rpc_calls"))
            connections.add_metric(label, _sum(seen[index], "connections"))
    yield from (up, restarts, cpu, calls, connections)


def _sum(seen: Seen, name: str) -> float:
    return sum(
        float(sample[2]) for family in seen.families if family["name"] == _PREFIX + name for sample in family["samples"]
    )
