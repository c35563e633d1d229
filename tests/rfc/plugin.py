"""Which test proves which demand of the specifications: ``@covers("RFC 8166 3.3.1 never-zero", …)``.

Loaded for every run by ``tests/conftest.py``. A name that is in no list of :mod:`nfsd.conformance.demands` is an error
at collection. ``--rfc-coverage FILE`` writes the results of the run as a document: item, tests, result; run it over all
tests that need no guest:

    python -m pytest tests/unit tests/rfc -m covers --rfc-coverage docs/rfc-coverage.md
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nfsd.conformance.demands import ITEMS
from tests.rfc.document import Outcome, render


def covers(*names: str) -> Callable[[Any], Any]:
    """Mark a test as proof of these items."""
    return pytest.mark.covers(*names)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rfc-coverage", metavar="FILE", help="write which items of the specifications passed")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "covers(*items): demands of the specifications that the test proves")
    config.pluginmanager.register(Recorder(config.getoption("--rfc-coverage")), "rfc-coverage")


class Recorder:
    """Collects outcomes by item."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._items: dict[str, tuple[str, ...]] = {}
        self.outcomes: dict[str, dict[str, Outcome]] = defaultdict(dict)
        """By item and test function: all its cases together."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            names = tuple(name for mark in item.iter_markers("covers") for name in mark.args)
            unknown = [name for name in names if name not in ITEMS]
            if unknown:
                raise pytest.UsageError(f"{item.nodeid} covers {unknown}, which no specification demands")
            self._items[item.nodeid] = names

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        test = report.nodeid.partition("[")[0]
        for name in self._items.get(report.nodeid, ()):
            outcome = self.outcomes[name].setdefault(test, Outcome())
            outcome.cases += 1
            outcome.failed += not report.passed

    def pytest_sessionfinish(self) -> None:
        if self._path is not None:
            Path(self._path).write_text(render(self.outcomes))
