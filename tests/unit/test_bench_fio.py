"""``rdma-nfsd bench fio``: a user's job on several mounts in turns, and the table of what fio says."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from bench import fio
from bench.__main__ import main

JOB = """\
[global]
direct=1
size=1m
[random]
rw=randrw
bs=4k
[stream]
stonewall
rw=read
bs=64k
"""


def direction(operations, iops, octets, p50=None, p99=None):
    """What fio 3 says of one direction, as far as it is read."""
    ranks = {} if p50 is None else {"percentile": {"50.000000": p50, "99.000000": p99}}
    return {"total_ios": operations, "iops": iops, "bw_bytes": octets, "clat_ns": ranks}


def output(*jobs):
    nothing = direction(0, 0.0, 0)
    told = [{"jobname": name, "error": 0, "read": nothing, "write": nothing, **which} for name, which in jobs]
    return "fio: a warning\n" + json.dumps({"fio version": "fio-3.33", "jobs": told})


def test_what_fio_says_is_read_by_job_and_direction():
    both = {"read": direction(10, 5.0, 2000, 1_500_000, 2_500_000), "write": direction(20, 10.0, 4000, 3e6, 4e6)}
    found = fio.read(output(("random", both), ("random", {"read": direction(1, 1.0, 1)})))
    assert found == {
        "random, read": fio.Figures(10, 5.0, 2000, 1.5, 2.5),
        "random, write": fio.Figures(20, 10.0, 4000, 3.0, 4.0),
        "random, read #2": fio.Figures(1, 1.0, 1, None, None),
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fio: no such engine", "cannot be read"),
        ('{"jobs": 7}', "cannot be read"),
        (output(("idle", {})), "has done nothing"),
        (json.dumps({"jobs": [{"jobname": "full", "error": 28}]}), "full: No space left on device"),
    ],
)
def test_what_is_no_result_is_an_error(text, why):
    with pytest.raises(fio.FioError, match=why):
        fio.read(text)


@pytest.mark.parametrize(
    "line", ["directory=/tmp", "filename = /dev/sda", "  directory = elsewhere", "include other.job"]
)
def test_a_job_that_leaves_the_mounted_directory_is_refused(line):
    with pytest.raises(fio.FioError, match="must name no other place"):
        fio.checked(JOB + line + "\n")
    assert fio.checked(JOB + "filename=data\n")
    with pytest.raises(fio.FioError, match="no \\[job\\]"):
        fio.checked("[global]\nrw=read\n")


def test_cpu_is_what_all_processors_were_busy_with():
    stat = "cpu  100 20 30 4000 500 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
    assert fio.busy_seconds(stat) == (100 + 20 + 30 + 6 + 7) / os.sysconf("SC_CLK_TCK")
    with pytest.raises(fio.FioError, match="is not /proc/stat"):
        fio.busy_seconds("ssh: connect to host: refused")


def turn(iops, cpu):
    return fio.Turn({"job, read": fio.Figures(1000, iops, iops * 4096, 0.5, 2.0)}, cpu)


def test_the_table_has_medians_of_the_turns_and_cpu_per_operation():
    lines = fio.rows({"ours": [turn(10.0, 0.1), turn(30.0, 0.3), turn(20.0, 0.2)], "kernel": [turn(40.0, None)]})
    assert lines[0] == fio.HEADS
    assert lines[1:] == [
        ("job, read", "ours", "20", "0.1", "0.50", "2.00", ""),
        ("job, read", "kernel", "40", "0.2", "0.50", "2.00", ""),
        (fio.ALL, "ours", "", "", "", "", "200"),
    ]
    told = fio.aligned(lines)
    assert len({len(line) for line in told if line.endswith(("op", "-", "200"))}) == 1
    assert told[2].split() == ["job,", "read", "ours", "20", "0.1", "0.50", "2.00"]


def test_servers_take_turns_each_in_a_new_directory_that_is_gone_afterwards(tmp_path):
    """What runs on the client, in order, by a client that answers as fio does."""
    asked = []

    def client(name):
        def run(script):
            asked.append((name, script.split()[0], "create_only" in script))
            return output(("a", {"read": direction(1, 1.0, 1)})) if "--output=result" in script else ""

        return run

    places = [fio.Place(name, str(tmp_path), client(name)) for name in ("ours", "kernel")]
    said = []
    found = fio.turns(places, JOB, 2, said.append)
    assert [len(made) for made in found.values()] == [2, 2]
    order = ["ours", "kernel", "kernel", "ours"]
    each = [("mkdir", True), ("cd", False), ("rm", False)]  # laid out, measured, removed
    assert asked == [(name, *step) for name in order for step in each]
    assert [line.split()[1].rstrip(",") for line in said] == order


def test_what_fails_leaves_no_directory_behind(tmp_path):
    removed = []

    def run(script):
        if script.startswith("rm"):
            removed.append(script)
        return ""

    with pytest.raises(fio.FioError):
        fio.run(fio.Place("ours", str(tmp_path), run), JOB)
    assert len(removed) == 1


@pytest.mark.skipif(shutil.which("fio") is None, reason="no fio here: tests/vm/host-packages.sh disks")
def test_the_command_runs_fio_in_directories_of_this_host(tmp_path, capsys):
    (tmp_path / "my.job").write_text(JOB)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    words = ["fio", str(tmp_path / "my.job"), str(tmp_path / "one"), f"other={tmp_path}/two", "--rounds", "1"]
    written = tmp_path / "run.json"
    assert main([*words, "--stat", "cat /proc/stat", "--json", str(written)]) == 0
    told = [re.split(r" {2,}", line) for line in capsys.readouterr().out.splitlines()]
    jobs = ("random, read", "random, write", "stream, read", fio.ALL)
    assert [line[:2] for line in told[2:]] == [[job, server] for job in jobs for server in ("one", "other")]
    found = json.loads(written.read_text())
    assert {name: made[0]["jobs"]["stream, read"]["operations"] for name, made in found.items()} == {
        "one": 16,
        "other": 16,
    }
    assert list((tmp_path / "one").iterdir()) == []


def test_a_place_that_is_not_there_is_named(tmp_path, capsys):
    (tmp_path / "my.job").write_text(JOB)
    assert main(["fio", str(tmp_path / "my.job"), str(tmp_path / "nowhere")]) == 1
    assert "nowhere is no directory" in capsys.readouterr().err
    Path(tmp_path / "a").mkdir()
    assert main(["fio", str(tmp_path / "my.job"), str(tmp_path / "a"), f"{tmp_path}/a"]) == 1
    assert "say NAME=DIR" in capsys.readouterr().err
