"""Pictures of the studies' curves, as SVG. Needs matplotlib: ``pip install rdma-nfsd[bench]``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.study import Study, by

_LABELS: Final = {"cpu_us": "CPU µs per call", "calls_per_s": "calls per second"}


def library() -> tuple[Any, Any]:
    """matplotlib and matplotlib.figure. Raises SystemExit where they are not installed."""
    try:
        return importlib.import_module("matplotlib"), importlib.import_module("matplotlib.figure")
    except ImportError:
        raise SystemExit("no matplotlib here: pip install matplotlib") from None


def draw(study: Study, rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One line for each kind of call. Raises SystemExit without matplotlib."""
    assert study.curve is not None
    matplotlib, figure_module = library()
    along, figure, keys = study.curve
    # The same picture from the same figures, with text that stays text.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": study.name}):
        picture = figure_module.Figure(figsize=(7, 3.5), layout="constrained")
        axes = picture.add_subplot()
        for kind, same in by([dict(row) for row in rows], *keys).items():
            points = sorted((row[along], row[figure]) for row in same if figure in row)
            if not points:
                continue  # another question of the same study
            axes.plot(*zip(*points, strict=True), marker="o", label=" over ".join(kind))
        axes.set(xscale="log", yscale="log", xlabel=along, ylabel=_LABELS[figure], title=study.name)
        axes.grid(visible=True, which="major", alpha=0.4)
        axes.legend()
        picture.savefig(path, format="svg", metadata={"Date": None})
