"""The study of several processes: the load reaches each of them, and its figures are shown as they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.processes import OfAddress, Processes, _together, address_of, groups, serving
from bench.running import Impossible
from bench.scenarios import BY_NAME, prepare

ROWS = [
    {"what": "getattr", "processes": 1, "calls_per_s": 1000.0},
    {"what": "getattr", "processes": 8, "calls_per_s": 7500.0},
    {"what": "idle", "processes": 2, "p50_us": 50.0, "p99_us": 100.0},
    {"what": "bulk at another process", "processes": 2, "p50_us": 50.0, "p99_us": 150.0},
]


def test_each_process_gets_calls(tmp_path: Path) -> None:
    server = OfAddress(tmp_path / "served", options={"processes": 2})
    try:
        pids = serving(server, 2)
        assert len(pids) == 2
        server.own = address_of(1, 2)
        files = asyncio.run(prepare(server, 0))
        try:
            with groups(pids, 0.5):
                pass
        except Impossible as reason:
            pytest.skip(str(reason))
        found = BY_NAME["getattr"].calls(files, 0)
        calls = found if isinstance(found, list) else found.calls
        assert _together(server, calls, 4, 2, 0.1)["calls_per_s"] > 0
        counted = {
            name: value for name, value in server.counters().items() if name.startswith("rdma_nfsd_process_calls")
        }
        assert len(counted) == 2
        assert all(value > 10 for value in counted.values())
    finally:
        server.stop()


def test_figures_are_shown_as_ratios() -> None:
    study = Processes()
    assert study.watched(ROWS, {}) == {"getattr, 8": 8 / 7.5, "bulk at another process": 1.5}
    lines = study.table(ROWS, {})
    assert "| getattr | 1,000 | 7,500 | 7.5 | ≥ 7 |" in lines
    assert "| bulk at another process | 50 | 150 | 1.5 |" in lines
