"""docs/performance.md: tables and pictures between its markers. Owns the markers; imports :mod:`bench.report`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import plots, report
from bench.study import Study

DOCUMENT = Path(__file__).parents[1] / "docs" / "performance.md"


def put(text: str, name: str, lines: Sequence[str]) -> str:
    """The text with these lines between the markers of ``name``. Raises ValueError where they are missing."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    if begin not in text or end not in text:
        raise ValueError(f"no {begin} … {end}")
    inside = "\n".join([begin, "", *lines, "", end])
    return re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: inside, text, flags=re.DOTALL)


def note(result: Mapping[str, Any]) -> str:
    """Where the figures come from."""
    facts = result["machine"]
    return (
        f"{facts['cores']} cores of {facts['cpu']}, Linux {facts['kernel']}, Python {facts['python']}, load average "
        f"{facts['load']:.1f} at the beginning, {facts['when']}."
    )


def write_goals(table: Sequence[str], result: Mapping[str, Any], path: Path = DOCUMENT) -> None:
    """Put the goals where they belong."""
    path.write_text(put(path.read_text(), "goals", [*table, "", note(result)]))


def write(result: Mapping[str, Any], studies: Sequence[Study], path: Path = DOCUMENT) -> None:
    """Put what was measured where it belongs; what was not stays as it is."""
    text = path.read_text()
    if any(found["scenarios"] or found["failures"] for found in result["servers"].values()):
        lines = [*report.machine(result), *report.scenarios(result), "", note(result)]
        text = put(text, "scenarios", lines)
    if result.get("disks"):
        text = put(text, "places", [*report.in_places(result), "", note(result)])
    if "guest" in result:
        text = put(text, "guest", [*report.guest(result), "", note(result)])
    for study in studies:
        rows = result["studies"].get(study.name)
        if rows:
            lines = [*study.table(rows, result["limits"]), "", note(result)]
            if study.curve is not None:
                picture = path.parent / "curves" / f"{study.name}.svg"
                picture.parent.mkdir(exist_ok=True)
                plots.draw(study, rows, picture)
                lines = [f"![{study.summary}](curves/{study.name}.svg)", "", *lines]
            text = put(text, study.name, lines)
    path.write_text(text)
