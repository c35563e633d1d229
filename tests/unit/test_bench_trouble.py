"""The study of latency under trouble: what is measured beside the server, and how it is shown."""

import os

import pytest

from bench import trouble
from bench.machine import in_child
from bench.trouble import CONTROLS, FLOODS, Trouble


@pytest.mark.parametrize("situation", CONTROLS)
def test_a_round_trip_without_a_server_is_timed_and_leaves_no_process(situation, monkeypatch):
    pids = []

    def recorded(*arguments):
        pids.append(in_child(*arguments))
        return pids[-1]

    monkeypatch.setattr(trouble, "in_child", recorded)
    figures = trouble.bystander(situation, 0.05)
    assert 0 < figures["p50_us"] <= figures["p99_us"] <= figures["p999_us"]
    assert len(pids) == (1 if CONTROLS[situation] is None else 3)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_controls_move_what_their_floods_move():
    for situation, sizes in CONTROLS.items():
        assert (situation in FLOODS) == (sizes is not None)
        assert sizes is None or sum(sizes) > FLOODS[situation].size


def test_the_table_shows_both_in_units_of_idle():
    def row(situation, p99, **more):
        return {"situation": situation, "over": "tcp", "p50_us": 10.0, "p99_us": p99, "p999_us": 2000.0} | more

    rows = [
        row("idle", 100.0, control_p99_us=50.0),
        row("a flood of 1 MiB READs", 400.0, control_p99_us=150.0),
        row("a stalled disk", 70.0),
    ]
    assert Trouble().table(rows, {})[2:] == [
        "| idle | tcp | 10 | 100 | 2,000 | 1.0 |  | 50 | 1.0 |",
        "| a flood of 1 MiB READs | tcp | 10 | 400 | 2,000 | 4.0 | ≤ 3 | 150 | 3.0 |",
        "| a stalled disk | tcp | 10 | 70 | 2,000 | 0.7 | ≤ 3 |  |  |",
    ]
