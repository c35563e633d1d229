"""Goals are computed from the figures of one run."""

import copy
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench import __main__ as bench
from bench import chimera, compare, document, fixtures, floors, goals, limits, report
from bench.__main__ import NAMES, main, parser
from bench.goals import at_least, at_most, rows
from bench.places import Place
from bench.scenarios import BY_NAME
from bench.writers import Writers, waiting
from nfsd.vfs import uring


def figures(cpu, rate=1000.0):
    return {"cpu_us": cpu, "calls_per_s": rate}


def everything(ours, theirs, *, two=1.0, rate=1000.0):
    """What a run finds, made up: each call costs ours and theirs, with version Two (and 4.0) ``two`` times as much."""

    def server(cpu, rate):
        more = {
            f"{name} {over}": figures(cpu * (two if name.endswith(("-two", "-v4.0")) else 1.0), rate)
            for name in goals.NEEDED
            for over in ("tcp", "rdma")
        }
        return {"scenarios": more, "failures": {}}

    both = {"rdma-nfsd": server(ours, rate), "ganesha": server(theirs, 1000.0), "ganesha-9": server(2 * theirs, 1.0)}
    both["chimera"] = server(theirs, 1000.0)
    disk = {"told": "a disk", "pread_us": 1.0, "pwrite_us": 1.0, "fio_per_s": 1000.0}
    latency = [
        {"situation": situation, "over": "tcp", "p99_us": p99}
        for situation, p99 in (("idle", 10.0), ("4 bulk writers", 29.0), ("a stalled fsync", 31.0))
    ]
    return {
        "machine": {"load": 0.1},
        "limits": {"pread_us": 1.0, "pwrite_us": 1.0},
        "servers": both,
        "disks": {"ext4": copy.deepcopy(both), "xfs": copy.deepcopy(both)},
        "places": {"ext4": disk, "xfs": dict(disk)},
        "studies": {Writers.name: latency},
        "before": {"ratios": {"getattr tcp": 1.02, "lookup tcp": 0.9}, "failures": {}},
    }


def missed(result):
    return [(row.scenario, row.goal) for row in rows(result) if row.met is False]


def test_all_is_measured_and_what_is_cheap_enough_is_met():
    found = rows(everything(1.0, 4.0))
    assert [row for row in found if row.met is None] == []
    assert missed(everything(1.0, 4.0)) == [("GETATTR p99, a stalled fsync, tcp", "3 x idle")]


def test_changes_are_compared_with_the_same_durability_where_that_was_measured():
    result = everything(3.0, 4.0)
    alike = {f"{name} tcp": figures(1.0) for name in (*goals.FILES, *goals.CHANGES)}
    result["disks"]["ext4"]["rdma-nfsd-names"] = {"scenarios": alike, "failures": {}}
    of_changes = {row.scenario: row for row in rows(result) if "Ganesha" in row.goal and "/s" not in row.figure}
    assert of_changes["mkdir, ext4, async: names"].met
    assert "mkdir, ext4" not in of_changes
    assert of_changes["mkdir, tmpfs"].met is False
    assert of_changes["untar, per file, ext4, async: names"].met, "Ganesha flushes what COMMIT asks for; so do these"


def test_what_costs_more_than_a_part_of_the_cheapest_ganeshas_is_not_met():
    of_ganesha = [(name, goal) for name, goal in missed(everything(1.0, 1.1)) if "Ganesha" in goal]
    assert ("read-1m-4x4, ext4", "0.7 x Ganesha") in of_ganesha
    assert ("readdirplus, per entry, ext4", "1.0 x Ganesha") not in of_ganesha
    assert {goal for _, goal in of_ganesha} == {f"{part} x Ganesha" for part in (0.4, 0.5, 0.6, 0.7)}


def test_a_write_may_cost_what_the_file_system_takes_more_than_memory():
    result = everything(1.0, 100.0)
    result["disks"]["ext4"]["rdma-nfsd"]["scenarios"]["write-4k-32 tcp"] = figures(10.0)
    assert ("write-4k-32, ext4", "ours on tmpfs + 1.5 x (pwrite there - on tmpfs)") in missed(result)
    result["places"]["ext4"]["pwrite_us"] = 7.0
    assert not any(name == "write-4k-32, ext4" for name, _ in missed(result)), "1 + 1.5 x 6"


def test_rates_and_versions_have_goals():
    slow = missed(everything(0.1, 4.0, rate=400.0))
    assert ("untar, ext4", "0.5 x Ganesha's, unsynced") in slow
    assert ("read-4k-cold, ext4", "0.9 x fio on the file itself") in slow
    dear = missed(everything(1.0, 100.0, two=1.2))
    assert sum("v4.0" in name for name, _ in dear) == sum("version Two" in name for name, _ in dear) == 4


def test_an_earlier_build_is_beside_this_one():
    result = everything(1.0, 4.0)
    result["before"] = {"ratios": {"getattr tcp": 1.04, "lookup tcp": 1.0}, "failures": {"access rdma": "NFS3ERR_IO"}}
    first = rows(result)[0]
    assert (first.figure, first.met) == ("getattr tcp 1.040; access rdma failed", False)
    assert first.goal.endswith("x before"), "earlier results do not say which commit"
    result["before"] = {"commit": "52dc732", "ratios": {}, "failures": {}}
    assert rows(result)[0].met is None
    assert rows(result)[0].goal.endswith("x before (52dc732)")


def test_what_was_not_measured_is_neither():
    assert at_most("x", "y", None, 1.0).met is None
    assert at_least("x", "y", 1.0, None).met is None
    assert at_most("x", "y", 1.0, 1.0).met
    assert not at_least("x", "y", 0.9, 1.0).met
    nothing = {"machine": {}, "servers": {}}
    assert {row.met for row in rows(nothing)} == {None}
    assert goals.table(nothing)[-1].startswith("0 met, 0 not, ")


def test_what_failed_is_not_met_and_named():
    result = everything(1.0, 4.0)
    del result["studies"]
    result["studies_failed"] = {Writers.name: "it broke"}
    result["disks"]["ext4"]["rdma-nfsd"]["failures"] = {"untar tcp": ["NFS3ERR_IO", "NFS3ERR_IO"]}
    assert rows(result)[-1].figure == "failed: it broke"
    assert rows(result)[-1].met is False
    assert "- untar tcp on ext4 failed: NFS3ERR_IO" in goals.table(result)


def test_a_study_that_fails_takes_nothing_else_with_it(monkeypatch):
    class Broken(Writers):
        name = "broken"

        def run(self, terms):
            raise RuntimeError("it broke")

    scenarios = {"limits": {}, "servers": {"rdma-nfsd": {"scenarios": {}, "failures": {}}}}
    monkeypatch.setattr(bench, "STUDIES", (Broken(),))
    monkeypatch.setattr(bench, "run_scenarios", lambda *arguments: dict(scenarios))
    options = parser().parse_args(["--crowded"])
    options.only = ["broken"]
    result = bench.run(options)
    assert result["studies_failed"] == {"broken": "it broke"}
    assert result["servers"] == scenarios["servers"]
    assert report.has_failed(result)


def test_the_table_counts_and_shows_what_is_missed():
    lines = goals.table(everything(1.0, 4.0))
    assert "| GETATTR p99, a stalled fsync, tcp | 3 x idle | 31.0 of 30.0 µs |  | **no** |" in lines
    assert lines[-1] == f"{len(rows(everything(1.0, 4.0))) - 1} met, 1 not, 0 not measured."


def test_goals_measure_what_they_need(tmp_path, capsys, monkeypatch):
    assert set(goals.NEEDED) <= set(NAMES)
    monkeypatch.setattr(chimera, "PROGRAM", tmp_path / "chimera")
    options = goals.extended(parser()).parse_args([])
    assert (options.on, options.server) == (["ext4", "xfs"], ["rdma-nfsd", "rdma-nfsd-names", "ganesha"])
    assert "put here" in document.put(document.DOCUMENT.read_text(), "goals", ["put here"])
    (tmp_path / "run.json").write_text('{"machine": {}, "servers": {}}')
    arguments = ["bench", "goals", "--from", str(tmp_path / "run.json"), "--into", str(tmp_path / "goals.md")]
    monkeypatch.setattr("sys.argv", arguments)
    assert main() == 0
    assert (tmp_path / "goals.md").read_text() == capsys.readouterr().out


def test_latency_beside_bulk_is_in_units_of_idle():
    measured = [
        {"situation": situation, "over": over, "p50_us": 1.0, "p99_us": p99, "p999_us": 9.0}
        for over in ("tcp", "rdma")
        for situation, p99 in (("idle", 10.0), ("4 bulk writers", 25.0))
    ]
    assert Writers().watched(measured, {}) == {f"4 bulk writers over {over}": 2.5 for over in ("tcp", "rdma")}
    assert Writers().table(measured, {})[3] == "| 4 bulk writers | tcp | 1 | 25 | 9 | 2.5 | ≤ 3 |  |  |"
    controlled = [row | {"control_p99_us": row["p99_us"] * 2} for row in measured]
    assert Writers().table(controlled, {})[3] == "| 4 bulk writers | tcp | 1 | 25 | 9 | 2.5 | ≤ 3 | 50 | 2.5 |"
    with pytest.raises(KeyError):
        Writers().table([{"situation": "idle", "over": "tcp"}], {})


def test_two_trees_are_compared_with_all_of_todays_scenarios(monkeypatch, tmp_path):
    asked = []

    def run(options):
        asked.append(options)
        pairs = compare.Pairs({"old": [1.0, 2.0], "new": [1.5, 3.0]}, {"old": [1.0] * 2, "new": [1.0] * 2})
        return {("getattr", "tcp"): pairs}, {("access", "rdma"): "NFS3ERR_IO"}

    monkeypatch.setattr(compare, "run", run)
    before = goals.compared(tmp_path / "old", tmp_path / "new")
    assert before == {"commit": "old", "ratios": {"getattr tcp": 1.5}, "failures": {"access rdma": "NFS3ERR_IO"}}
    (options,) = asked
    assert (options.old, options.new) == (tmp_path / "old", tmp_path / "new")
    assert (options.scenario, options.transport) == ([], ["tcp", "rdma"]), "none named: today's"
    assert rows({"machine": {}, "servers": {}, "before": before})[0].met is False


def test_floors_stand_beside_the_goals_that_they_bound():
    result = everything(1.0, 4.0)
    result["places"]["ext4"] |= {"store_4k_us": 3.0, "store_4k_by_worker_us": 3.5, "store_1m_us": 250.0}
    result["places"]["ext4"] |= {"store_1m_by_worker_us": 300.0, "store_1mx4_us": 320.0}
    result["places"]["ext4"] |= {"fetch_us": 9.0, "fetch_per_s": 50_000.0, "look_us": 1.5}
    result["places"]["tmpfs"] = {"told": "tmpfs in memory", "look_us": 1.25}
    result["studies"] = {
        "writers": [
            {"situation": "idle", "over": "tcp", "p99_us": 100.0, "control_p99_us": 50.0},
            {"situation": "4 bulk writers", "over": "tcp", "p99_us": 400.0, "control_p99_us": 900.0},
            {"situation": "a stalled fsync", "over": "tcp", "p99_us": 100.0},
        ]
    }
    floors = {(row.scenario, row.floor) for row in rows(result) if row.floor}
    assert floors == {
        ("write-4k-32, ext4", "3.00 µs, by a worker 3.50 µs"),
        ("write-1m-4, ext4", "250 µs, by a worker 300 µs"),
        ("write-1m-4x4, ext4", "320 µs"),
        ("read-4k-cold, ext4", "9.00 µs"),
        ("read-4k-cold, ext4", "50,000 /s"),
        ("readdirplus, per entry, tmpfs", "1.25 µs"),
        ("readdirplus, per entry, ext4", "1.50 µs"),
        ("GETATTR p99, 4 bulk writers, tcp", "900 µs"),
    }
    assert any("| 250 µs, by a worker 300 µs |" in line for line in goals.table(result))


@pytest.mark.parametrize("by_worker", [False, True])
def test_what_the_floor_of_writes_is_measured_by_puts_the_data_into_the_file(tmp_path, by_worker):
    file = tmp_path / "file"
    file.write_bytes(bytes(64 << 10))
    ours, theirs = socket.socketpair()
    request = bytes(10) + b"x" * 4096
    with ours, theirs, file.open("rb+") as target, ThreadPoolExecutor(1) as pool:
        stored = pool.submit(limits.store, theirs.fileno(), target.fileno(), 4096, 10, 3, 64 << 10, by_worker)
        ours.sendall(request * 3 + request[:50])
        answered = ours.recv(9, socket.MSG_WAITALL)
        ours.shutdown(socket.SHUT_WR)
        assert stored.result(60) == 3
    assert answered == bytes(9)
    assert file.read_bytes().count(b"x") == 3 * 4096


@pytest.mark.skipif(bool(uring.hindrance()), reason=f"no io_uring here: {uring.hindrance()}")
def test_what_the_floor_of_cold_reads_is_measured_by_sends_what_the_file_has(tmp_path):
    file = tmp_path / "file"
    blocks = [bytes([number]) * 4096 for number in range(16)]
    file.write_bytes(b"".join(blocks))
    ours, theirs = socket.socketpair()
    got = b""
    with ours, theirs, file.open("rb") as source, ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(limits.fetch, theirs.fileno(), source.fileno(), 4096, 10, 4100, 64 << 10)
        ours.sendall(bytes(10) * 16 + bytes(7))
        while len(got) < 16 * 4100:
            got += ours.recv(1 << 20)
        ours.shutdown(socket.SHUT_WR)
        assert fetched.result(60) == 16
    replies = [got[at : at + 4100] for at in range(0, len(got), 4100)]
    assert sorted(replies) == [bytes(4) + block for block in blocks]


@pytest.mark.skipif(bool(uring.hindrance()), reason=f"no io_uring here: {uring.hindrance()}")
def test_cold_reads_whose_peer_has_gone_are_waited_for(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(64 << 10))
    for _ in range(20):
        ours, theirs = socket.socketpair()
        with theirs, file.open("rb") as source, ThreadPoolExecutor(1) as pool:
            fetched = pool.submit(limits.fetch, theirs.fileno(), source.fileno(), 4096, 10, 4100, 64 << 10)
            ours.sendall(bytes(10) * 64)
            ours.close()
            assert fetched.result(60) <= 64


def test_what_the_floor_of_listings_is_measured_by_looks_at_everything(tmp_path):
    for number in range(1000):
        (tmp_path / f"a rather long name, number {number}").touch()
    assert limits.look(str(tmp_path)) == 1002, "itself and what is above as well"
    with pytest.raises(FileNotFoundError):
        limits.look(str(tmp_path / "nothing"))


def test_floors_are_measured_in_their_places(tmp_path, monkeypatch):
    small = {fixtures.COLD: fixtures.file_of(1 << 20), fixtures.MANY: fixtures.make_names}
    monkeypatch.setattr(fixtures, "MAKE", small)
    (tmp_path / "limits").write_bytes(bytes(4 << 20))
    chosen = [BY_NAME["readdirplus"], BY_NAME["read-4k-cold"]]
    memory = floors.floors(Place("tmpfs", tmp_path), 0.05, chosen)
    assert set(memory) == {"look_us"}
    disk = floors.floors(Place("ext4", tmp_path, "loop99"), 0.05, chosen)
    cold = set() if uring.hindrance() else {"fetch_us", "fetch_per_s"}
    assert set(disk) == {"look_us", *floors.STORED} | cold
    assert all(value > 0 for value in disk.values())
    assert set(floors.floors(Place("ext4", tmp_path, "loop99"), 0.05, [BY_NAME["getattr"]])) == set(floors.STORED)


def test_a_process_that_waits_as_for_a_disk_is_told_from_one_that_does_not(tmp_path):
    # Who begins a program waits in state D until it has begun (vfork(2)): this one opens its standard input first.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    begin = (
        "import os, sys; actions = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]; "
        "os.waitpid(os.posix_spawn('/bin/true', ['true'], {}, file_actions=actions), 0)"
    )
    with subprocess.Popen([sys.executable, "-c", begin, str(pipe)]) as process:
        until = time.monotonic() + 60
        while not waiting(process.pid) and time.monotonic() < until:
            time.sleep(0.01)
        assert waiting(process.pid)
        pipe.open("wb").close()
    assert process.returncode == 0
    assert not waiting(os.getpid())
