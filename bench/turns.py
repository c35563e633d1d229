"""Servers take turns at scenarios, so that other work on the machine affects all of them.

Owns the order of the turns and the handling of failures; imports :mod:`bench.scenarios` and :mod:`bench.servers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.calls import Files
from bench.generator import CallFailed
from bench.laps import Laps
from bench.nfs3_client import Nfs3Failure
from bench.nfs4_client import Failed
from bench.scenarios import Scenario
from bench.servers import LocalServer, Server
from bench.study import cost, median, progress
from nfsd.protocol.nfs3 import nfsstat3
from nfsd.protocol.nfs4 import nfsstat4

TRACED = 3072, 48
"""Calls during which copies are counted: of little data (all the calls of a scenario), and of much."""
SMALL = 16384


@dataclass(slots=True)
class Found:
    """What was measured of a server, by scenario and transport."""

    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    copies: dict[str, dict[str, float]] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)

    def result(self) -> dict[str, Any]:
        """Medians; of what failed in some rounds, those of the others."""
        return {
            "scenarios": {key: median(rounds) | self.copies.get(key, {}) for key, rounds in self.rounds.items()},
            "failures": self.failures,
        }


def reason(failure: Exception, scenario: Scenario) -> str:
    """A failure in a few words."""
    if not isinstance(failure, CallFailed) or failure.refused:
        return str(failure) or type(failure).__name__
    statuses = nfsstat3 if scenario.minor is None else nfsstat4
    try:
        return statuses(failure.status).name
    except ValueError:
        return f"status {failure.status}"


def take_turns(
    servers: Sequence[tuple[Server, Files]],
    chosen: Sequence[Scenario],
    transports: Sequence[str],
    rounds: int,
    seconds: float,
    before: Callable[[str], None] = lambda turn: None,
) -> dict[str, Found]:
    """Measure everything in every round, after ``before(turn)``. What fails is noted, and the others go on."""
    found = {server.label: Found() for server, _ in servers}
    with at_rest([server for server, _ in servers]):
        for number in range(rounds):
            turn = f"round {number + 1} of {rounds}"
            before(turn)
            for scenario in chosen:
                for server, files in servers if number % 2 == 0 else reversed(servers):
                    for over in transports:
                        if server.has(scenario.name) and server.takes(scenario.transports, over, disks=scenario.disks):
                            progress(f"{turn}: {scenario.name} over {over}, {server.label}")
                            one_turn(found[server.label], server, files, scenario, over, seconds)
    return found


@contextmanager
def at_rest(servers: Sequence[Server]) -> Iterator[None]:
    """Those of them that are processes here do not run unless they have their turn."""
    processes = [server for server in servers if isinstance(server, LocalServer)]
    try:
        for server in processes:
            server.rest()
        yield
    finally:
        for server in processes:
            server.go_on()


@contextmanager
def awake(server: Server) -> Iterator[None]:
    """It has its turn, after which nothing of it is left to be written back."""
    with ExitStack() as ends:
        if isinstance(server, LocalServer):
            server.go_on()
            ends.callback(server.rest)
        server.settle()
        ends.callback(server.settle)
        yield


def one_turn(found: Found, server: Server, files: Files, scenario: Scenario, over: str, seconds: float) -> None:
    """One scenario with one server over one transport."""
    key = f"{scenario.name} {over}"
    try:
        with awake(server):
            scenario.fresh(server)
            with scenario.load(server, files, over) as load:
                figures = cost(server, load, seconds)
                if key not in found.copies and not isinstance(load, Laps):
                    most = TRACED[scenario.size > SMALL]
                    found.copies[key] = server.copies(lambda: load.run(3600, most)[0])
        found.rounds.setdefault(key, []).append(figures)
    except (RuntimeError, OSError, EOFError, AssertionError, Nfs3Failure, Failed) as failure:
        found.failures.setdefault(key, []).append(reason(failure, scenario))
        progress(f"{key}, {server.label}: {found.failures[key][-1]}")
