"""What a run came to, as JSON and as a table."""

from __future__ import annotations

import json
import math
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tests.soak.server import Use

if TYPE_CHECKING:
    from tests.soak.faults import Schedule
    from tests.soak.record import Record


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Of the line through points that has the least squares, with its standard error; NaN for fewer than three."""
    if len(points) < 3:
        return math.nan, math.nan
    mean_x, mean_y = (statistics.fmean(point[axis] for point in points) for axis in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    found = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - found * (x - mean_x)) ** 2 for x, y in points)
    return found, math.sqrt(rest / (len(points) - 2) / spread)


@dataclass
class Growth:
    """Of the server's longest life, without its first third, in which it fills its caches."""

    seconds: float
    resident_first: int
    """Octets; the median of the first tenth of the samples."""
    resident_last: int
    slope: float
    """Octets an hour."""
    slope_error: float
    descriptors_first: float
    descriptors_last: float
    descriptors_slope: float
    """An hour."""
    descriptors_slope_error: float

    @classmethod
    def of(cls, uses: Sequence[Use]) -> Growth | None:
        lives: dict[int, list[Use]] = {}
        for use in uses:
            lives.setdefault(use.life, []).append(use)
        life = max(lives.values(), key=len, default=[])
        life = life[len(life) // 3 :]
        if len(life) < 10:
            return None
        tenth = max(1, len(life) // 10)
        memory, memory_error = slope([(use.at / 3600, use.resident) for use in life])
        files, files_error = slope([(use.at / 3600, use.descriptors) for use in life])
        return cls(
            life[-1].at - life[0].at,
            int(statistics.median(use.resident for use in life[:tenth])),
            int(statistics.median(use.resident for use in life[-tenth:])),
            memory, memory_error,
            statistics.median(use.descriptors for use in life[:tenth]),
            statistics.median(use.descriptors for use in life[-tenth:]),
            files, files_error,
        )  # fmt: skip


@dataclass
class Report:
    """Of one run."""

    seconds: float
    seed: int
    faults: dict[str, int]
    operations: dict[str, int]
    histories: dict[str, int]
    """Explained, by kind; ``operations``: in all of them."""
    undecided: int
    connections: int
    """Made and dropped."""
    native_calls: int
    longest_start: float
    growth: Growth | None
    findings: list[str] = field(default_factory=list)
    kernel: str = field(default_factory=platform.release)

    @classmethod
    def of(
        cls, options: Any, seconds: float, record: Record, schedule: Schedule, uses: Sequence[Use], churned: list[int]
    ) -> Report:
        """Of what they have counted."""
        return cls(
            seconds, options.seed, dict(sorted(schedule.made.items())), dict(sorted(record.counts.items())),
            dict(sorted(record.checked.items())), record.counts["undecided"], churned[0], churned[1],
            schedule.longest_start, Growth.of(uses), record.findings,
        )  # fmt: skip

    def as_json(self) -> str:
        """Everything."""
        return json.dumps(asdict(self), indent=1)

    def table(self) -> str:
        """In Markdown."""
        histories = {kind: number for kind, number in self.histories.items() if kind != "operations"}
        kinds = ", ".join(f"{number:,} of {kind}" for kind, number in histories.items())
        rows = {
            "Time": f"{self.seconds / 3600:.2f} h, seed {self.seed}, Linux {self.kernel}",
            "Faults": f"{sum(self.faults.values()):,}: "
            + ", ".join(f"{name} {number:,}" for name, number in self.faults.items()),
            "Operations in histories": f"{self.histories.get('operations', 0):,}",
            "Histories explained": f"{sum(histories.values()):,}: {kinds}",
            "Histories undecided": f"{self.undecided:,}",
            "Written and read under a lock": f"{self.operations.get('written and read under a lock', 0):,}",
            "Locks reclaimed": f"{self.operations.get('locks reclaimed', 0):,}",
            "COMPOUNDs sent again in a session": f"{self.operations.get('sent again in a session', 0):,}",
            "Close-to-open": f"{self.operations.get('close-to-open write', 0):,} writes, "
            f"{self.operations.get('close-to-open read', 0):,} reads",
            "Connections made and dropped": f"{self.connections:,}",
            "Calls of the native generator": f"{self.native_calls:,}",
            "Longest start": f"{self.longest_start:.1f} s",
        }
        if told := self.operations.get("guest: operations"):
            rows["System calls of Linux in histories"] = f"{told:,}"
        if self.growth is not None:
            one = self.growth
            rows["Memory of the longest life"] = (
                f"{one.resident_first / 2**20:.1f} MiB, {one.seconds:.0f} s later {one.resident_last / 2**20:.1f}:"
                f" {one.slope / 2**20:+.2f} ± {one.slope_error / 2**20:.2f} MiB/h"
            )
            rows["Its descriptors"] = (
                f"{one.descriptors_first:.0f}, later {one.descriptors_last:.0f}:"
                f" {one.descriptors_slope:+.1f} ± {one.descriptors_slope_error:.1f} an hour"
            )
        rows["Findings"] = f"{len(self.findings)}"
        lines = ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())]
        return "\n".join(lines)
