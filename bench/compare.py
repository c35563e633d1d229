"""Compare the CPU per call of two builds of rdma-nfsd, in turns A B B A.

Both servers run at the same time, each with the code of its own tree, and only one of them has work. Each turn of the
one has a turn of the other beside it, so that whatever else the machine does meets both; the ratio of a scenario is the
median of the ratios of such pairs. The servers are started more than once, since a process differs from the next one
(where its memory lies, in which order its dictionaries are). The load is this tree's, for both.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.calls import Files
from bench.laps import Laps
from bench.running import Running
from bench.scenarios import BY_NAME, TODAY, Scenario, needed, prepare
from bench.servers import RdmaNfsd
from bench.study import Meter, markdown, progress
from bench.turns import reason

SIDES = ("old", "new")
WARMING = 0.1
"""Seconds of calls before a load's first turn that are not measured, and their part of each turn."""
FAILURES = (RuntimeError, OSError, EOFError, AssertionError)
Key = tuple[str, str]
"""A scenario and what it goes over."""
Served = tuple[RdmaNfsd, Files]


@dataclass(slots=True)
class Pairs:
    """What the turns of one scenario have found: CPU microseconds per call and calls per second, by turn."""

    cpu: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})
    rate: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})

    def ratios(self) -> list[float]:
        """New over old, pair by pair, in ascending order."""
        return sorted(new / old for old, new in zip(self.cpu["old"], self.cpu["new"], strict=True))

    def ratio(self) -> float:
        """The median of them."""
        return statistics.median(self.ratios())

    def spread(self) -> tuple[float, float]:
        """The quartiles of them."""
        found = self.ratios()
        if len(found) < 2:
            return found[0], found[0]
        low, _, high = statistics.quantiles(found, n=4, method="inclusive")
        return low, high


def order(number: int) -> tuple[str, ...]:
    """Who goes first in a pair: A B B A, so that what drifts favours neither."""
    return SIDES if number % 2 == 0 else SIDES[::-1]


def one_turn(server: RdmaNfsd, load: Running, seconds: float) -> tuple[float, float]:
    """CPU microseconds per call, and calls per second."""
    meter = Meter(server, events=False)
    if isinstance(load, Laps):
        calls, elapsed = load.run(seconds, meter=meter)
    else:
        load.run(WARMING * seconds)
        with meter:
            calls, elapsed = load.run(seconds)
    return meter.used.seconds / calls * 1e6, calls / elapsed


def measure(servers: Mapping[str, Served], scenario: Scenario, over: str, turns: int, seconds: float) -> Pairs:
    """So many pairs of turns of one scenario."""
    found = Pairs()
    with ExitStack() as ends:
        loads = {
            side: ends.enter_context(scenario.load(server, files, over)) for side, (server, files) in servers.items()
        }
        for load in loads.values():
            if not isinstance(load, Laps):
                load.run(WARMING)
        for number in range(turns):
            for side in order(number):
                scenario.fresh(servers[side][0])
                cpu, rate = one_turn(servers[side][0], loads[side], seconds)
                found.cpu[side].append(cpu)
                found.rate[side].append(rate)
    return found


@contextmanager
def started(place: Path, trees: Mapping[str, Path], needs: set[str]) -> Iterator[dict[str, Served]]:
    """A server of each tree, with its file of data."""
    with ExitStack() as ends:
        found = {}
        for side, tree in trees.items():
            server = RdmaNfsd(place / side, tree=tree)
            ends.callback(server.stop)
            found[side] = server, asyncio.run(prepare(server, needs=needs))
        yield found


def run(options: argparse.Namespace) -> tuple[dict[Key, Pairs], dict[Key, str]]:
    """What was measured, and what failed."""
    trees = {"old": options.old.resolve(), "new": options.new.resolve()}
    chosen = [BY_NAME[name] for name in options.scenario] or list(TODAY)
    keys = [(each, over) for each in chosen for over in options.transport if over in each.transports]
    found: dict[Key, Pairs] = {}
    failures: dict[Key, str] = {}
    for start in range(options.starts):
        with (
            tempfile.TemporaryDirectory(dir=options.on, prefix="rdma-nfsd-compare-") as place,
            started(Path(place), trees, needed(chosen)) as servers,
        ):
            for scenario, over in keys:
                key = scenario.name, over
                progress(f"start {start + 1} of {options.starts}: {scenario.name} over {over}")
                try:
                    pairs = measure(servers, scenario, over, options.turns, options.seconds)
                except FAILURES as failure:
                    failures[key] = reason(failure, scenario)
                    continue
                whole = found.setdefault(key, Pairs())
                for side in SIDES:
                    whole.cpu[side] += pairs.cpu[side]
                    whole.rate[side] += pairs.rate[side]
    progress("")
    return found, failures


def table(found: Mapping[Key, Pairs], failures: Mapping[Key, str], tolerance: float) -> list[str]:
    """A row for each scenario, and the geometric mean of all ratios."""
    heads = ["scenario", "over", "old CPU µs", "new CPU µs", "new / old", "quartiles", "calls/s, new / old", ""]
    lines: list[list[str]] = []
    for (name, over), pairs in found.items():
        low, high = pairs.spread()
        cpu = [f"{statistics.median(pairs.cpu[side]):.2f}" for side in SIDES]
        rate = statistics.median(pairs.rate["new"]) / statistics.median(pairs.rate["old"])
        verdict = "worse" if pairs.ratio() > 1 + tolerance else "better" if pairs.ratio() < 1 - tolerance else ""
        lines.append([name, over, *cpu, f"**{pairs.ratio():.3f}**", f"{low:.3f} to {high:.3f}", f"{rate:.2f}", verdict])
    lines += [[name, over, f"failed: {why}", *[""] * 5] for (name, over), why in failures.items()]
    text = markdown(heads, lines)
    if found:
        mean = math.exp(statistics.fmean(math.log(pairs.ratio()) for pairs in found.values()))
        text += ["", f"The geometric mean of the ratios is {mean:.3f}."]
    return text


def parser() -> argparse.ArgumentParser:
    """The command line."""
    named = argparse.ArgumentParser(
        prog="python -m bench compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="scenarios: " + " ".join(BY_NAME) + "\n\ntoday's: " + " ".join(each.name for each in TODAY),
    )
    named.add_argument("old", type=Path, metavar="OLDTREE", help="a checkout with its extensions built")
    named.add_argument("new", type=Path, metavar="NEWTREE", help="another")
    named.add_argument("scenario", nargs="*", metavar="SCENARIO", help="these only (default: today's)")
    named.add_argument(
        "--transport", nargs="*", choices=["tcp", "rdma"], default=["tcp", "rdma"], help="over these only"
    )
    named.add_argument("--turns", type=int, default=6, help="pairs of turns of a scenario in each start (default 6)")
    named.add_argument("--seconds", type=float, default=0.4, help="of each turn (default 0.4)")
    named.add_argument("--starts", type=int, default=2, help="how often the servers are started (default 2)")
    named.add_argument("--quick", action="store_true", help="one start, four pairs of turns of 0.2 s")
    named.add_argument("--on", default="/dev/shm", metavar="DIR", help="serve files there (default /dev/shm)")
    named.add_argument(
        "--tolerance", type=float, default=0.03, help="how much worse is worse: exit status 1 (default 0.03)"
    )
    return named


def main(arguments: Sequence[str]) -> int:
    """Run from the command line."""
    named = parser()
    options = named.parse_args(arguments)
    unknown = [name for name in options.scenario if name not in BY_NAME]
    if unknown:
        named.error(f"no scenario {', '.join(unknown)}")
    for tree in (options.old, options.new):
        if not (tree / "nfsd").is_dir():
            named.error(f"{tree} is no checkout")
    if options.quick:
        options.starts, options.turns, options.seconds = 1, 4, 0.2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers are ended all the same
    found, failures = run(options)
    print("\n".join(table(found, failures, options.tolerance)))
    return 1 if failures or any(pairs.ratio() > 1 + options.tolerance for pairs in found.values()) else 0
