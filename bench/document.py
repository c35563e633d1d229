"""The pages of figures: tables and pictures between markers. Owns the markers; imports :mod:`bench.report`.

docs/performance.md compares servers, and docs/studies.md has the studies. Only a clone has both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import charts, plots, report
from bench.study import Study

DOCUMENT = Path(__file__).parents[1] / "docs" / "performance.md"
STUDIES = DOCUMENT.with_name("studies.md")
CHARTS, CURVES = "charts", "curves"
"""Directories of pictures beside them."""


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
        f"{facts['load']:.1f} at the beginning, {facts['when']}, commit {facts['commit']}; "
        f"{facts['rounds']} x {facts['seconds']:g} s of each."
    )


def write_goals(table: Sequence[str], result: Mapping[str, Any], path: Path = DOCUMENT) -> None:
    """Put the goals where they belong."""
    path.write_text(put(path.read_text(), "goals", [*table, "", note(result)]))


def write(result: Mapping[str, Any], studies: Sequence[Study], path: Path | None = None) -> None:
    """Put what was measured where it belongs; what was not stays as it is. ``path``: performance.md;
    studies.md and the pictures are beside it."""
    path = path or DOCUMENT
    (path.parent / CHARTS).mkdir(exist_ok=True)
    pictures = dict(charts.draw(result, path.parent / CHARTS))
    text = path.read_text()
    for name, lines in figures(result, pictures):
        text = put(text, name, [*lines, "", note(result)])
    path.write_text(text)
    write_studies(result, studies, path.with_name(STUDIES.name))


def figures(result: Mapping[str, Any], pictures: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """The parts of performance.md that a run has figures for: the name of each, and its lines."""
    if summary := charts.summary(result):
        yield "summary", summary
    if has_run(result["servers"]):
        yield "scenarios", [*shown(pictures, "memory"), *report.machine(result), *report.scenarios(result)]
    if any(map(has_run, result.get("disks", {}).values())):
        yield "places", [*shown(pictures, *result["disks"]), *report.in_places(result)]
    if "guest" in result:
        yield "guest", [*shown(pictures, "guest"), *report.guest(result)]


def has_run(servers: Mapping[str, Any]) -> bool:
    """Whether any of them has met a scenario: a run may have been one of studies alone."""
    return any(found["scenarios"] or found.get("failures") for found in servers.values())


def shown(pictures: Mapping[str, str], *names: str) -> list[str]:
    """The pictures of these names, as far as there are any."""
    return [
        line
        for name in names
        if name in pictures
        for line in (f"![CPU per call and calls per second, {name}]({CHARTS}/{pictures[name]})", "")
    ]


def write_studies(result: Mapping[str, Any], studies: Sequence[Study], path: Path = STUDIES) -> None:
    """Put the studies where they belong."""
    text = path.read_text()
    for study in studies:
        rows = result["studies"].get(study.name)
        if rows:
            lines = [*study.table(rows, result["limits"]), "", note(result)]
            if study.curve is not None:
                picture = path.parent / CURVES / f"{study.name}.svg"
                picture.parent.mkdir(exist_ok=True)
                plots.draw(study, rows, picture)
                lines = [f"![{study.summary}]({CURVES}/{study.name}.svg)", "", *lines]
            text = put(text, study.name, lines)
    path.write_text(text)
