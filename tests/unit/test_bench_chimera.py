"""Chimera beside the others: a stand-in for its program is started in a network of its own, and the goals compare."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from bench import __main__ as bench
from bench import chimera, goals, report, sides
from bench.__main__ import main, parser
from bench.calls import Files
from bench.nfs3_client import Nfs3Failure
from bench.nfs4_client import Failed
from bench.scenarios import BY_NAME
from bench.servers import NotStarted, connect_tcp
from bench.turns import take_turns

STAND_IN = """\
#!{python}
import json, signal, socket, sys
settings = json.load(open(sys.argv[sys.argv.index("-c") + 1]))
listeners = [socket.create_server(("0.0.0.0", port)) for port in (settings["server"]["nfs_port"], 20048)]
print("it listens", flush=True)
signal.pause()
"""


def program(tmp_path, text):
    path = tmp_path / "chimera"
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)
    return path


def has_namespaces():
    if os.geteuid() != 0:
        return False
    made = subprocess.run(["unshare", "--net", "ip", "link", "show", "lo"], capture_output=True, check=False)
    return made.returncode == 0


needs_namespaces = pytest.mark.skipif(not has_namespaces(), reason="no network namespaces can be made here")


def test_a_program_that_is_not_there_is_asked_for_with_where_to_read_how_it_is_built(tmp_path):
    with pytest.raises(SystemExit, match=r"no Chimera at .*/chimera: docs/measuring\.md .* --chimera"):
        chimera.built("chimera", tmp_path / "chimera")
    (tmp_path / "chimera").write_text("not executable")
    with pytest.raises(SystemExit, match="no Chimera"):
        chimera.built("chimera", tmp_path / "chimera")
    kind = chimera.built("chimera-io-uring", program(tmp_path, ""), ["getattr"])
    assert (kind.name, kind.module, kind.program) == ("chimera-io-uring", "io_uring", tmp_path / "chimera")
    assert kind.has("getattr")
    assert not kind.has("lookup")
    assert chimera.built("chimera", tmp_path / "chimera").has("lookup")


def test_it_is_configured_with_two_threads_that_make_the_system_calls(tmp_path):
    told = chimera.settings("linux", tmp_path / "export", 2050, tmp_path / "state")
    assert (told["server"]["threads"], told["server"]["sync_delegation"]) == (2, False)
    (mount,) = told["mounts"].items()
    assert mount[1] == {"module": "linux", "path": str(tmp_path / "export")}
    assert told["exports"] == {"/export": {"path": f"/{mount[0]}"}}
    json.dumps(told)


@needs_namespaces
def test_it_is_reached_in_its_own_network_and_ends(tmp_path):
    kind = chimera.built("chimera", program(tmp_path, STAND_IN))
    first, second = kind(tmp_path / "first"), kind(tmp_path / "second")
    try:
        with first.network(), first.connect("tcp"), connect_tcp(first.host, first.mountd):
            pass
        with second.network(), second.connect("tcp"):
            pass
        with pytest.raises(ConnectionRefusedError):
            first.connect("tcp")
        assert first.cpu().seconds > 0
        assert first.memory() > 0
        assert first.export == tmp_path / "first/export"
    finally:
        first.stop()
        second.stop()
    assert first.process.returncode is not None
    assert (tmp_path / "first/log").read_text() == "it listens\n"
    assert not first.is_ready(0.1), "it has ended"


@needs_namespaces
def test_one_that_does_not_start_says_why(tmp_path):
    kind = chimera.built("chimera", program(tmp_path, "#!/bin/sh\necho no such module; exit 1\n"))
    with pytest.raises(NotStarted, match=r"chimera did not start; .*\n(.*\n)*no such module"):
        kind(tmp_path / "place")


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (RuntimeError("it is measured"), "it is measured"),
        (Nfs3Failure("LOOKUP", "NOENT"), "LOOKUP: 'NOENT'"),
        (Failed(10063, []), "NFS4ERR_SEQ_MISORDERED after []"),
    ],
)
def test_only_the_scenarios_that_it_is_for_are_measured_and_what_fails_is_noted(failure, told):
    class Bystander(chimera.Chimera):
        only = frozenset(["lookup"])

        def __init__(self):
            pass

        def rest(self):
            pass

        go_on = rest

        def settle(self):
            raise failure

    scenarios = [replace(BY_NAME[name]) for name in ("getattr", "lookup")]
    found = take_turns([(Bystander(), Files(b"", b""))], scenarios, ["tcp"], 1, 0.01)
    assert found["chimera"].failures == {"lookup tcp": [told]}


def server(cpu):
    times = {"calls_per_s": 1000.0, "user_us": 1.0, "p50_us": 5, "p99_us": 9, "p999_us": 10}
    return {"scenarios": {"write-4k-32 tcp": {"cpu_us": cpu, **times}}, "failures": {}, "peak_memory": 1 << 20}


def result(ours, **others):
    """What a run finds on tmpfs and ext4, made up: CPU of each."""
    servers = {"rdma-nfsd": server(ours), **{name.replace("_", "-"): server(cpu) for name, cpu in others.items()}}
    return {"servers": servers, "disks": {"ext4": servers}, "places": {"ext4": {"told": "a disk"}}}


def rows(found):
    return {row.scenario: row for row in goals.rows(found) if row.goal == "1.0 x Chimera"}


def test_the_goal_is_its_cheapest_module_and_not_measured_without_it():
    found = rows(result(3.0, chimera=4.0, chimera_io_uring=2.5, ganesha=1.0))
    assert found["write-4k-32, ext4"].figure == "3.00 of 2.50 µs"
    assert found["write-4k-32, ext4"].met is False
    assert (found["write-4k-32, xfs"].figure, found["write-4k-32, xfs"].met) == ("not measured", None)
    assert rows(result(2.5, chimera=2.5))["write-4k-32, ext4"].met
    assert rows(result(3.0, ganesha=9.0))["write-4k-32, ext4"].met is None


def test_ganeshas_goals_are_not_about_chimera():
    found = {row.scenario: row for row in goals.rows(result(3.0, chimera=1.0)) if row.goal == "0.4 x Ganesha"}
    assert found["write-4k-32, ext4"].met is None


def test_the_head_says_what_it_does_not_flush():
    assert f"- {chimera.DURABILITY}" in sides.head(result(3.0, chimera_io_uring=2.0))
    assert not any("Ganesha" in line for line in sides.head(result(3.0, chimera=2.0)))
    assert not any("Chimera" in line for line in sides.head(result(3.0, ganesha=2.0)))


def test_what_is_a_goal_beside_ganesha_is_none_beside_chimera():
    limits = {"round_trip_us": 1.0, "pread_us": 1.0, "pwrite_us": 1.0}
    lines = report.scenarios(result(3.0, chimera=2.0, ganesha=6.0) | {"limits": limits})
    assert "| times chimera | times ganesha | goal | calls/s |" in lines[3]
    assert "| 1.50 | 0.50 | ≤ 0.2 | 1,000 |" in lines[5]
    assert lines[5].count("|") == lines[3].count("|")


def test_the_goals_measure_it_where_it_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(chimera, "PROGRAM", tmp_path / "chimera")
    assert not chimera.KINDS.keys() & goals.extended(parser()).parse_args([]).server
    (tmp_path / "chimera").touch()
    options = goals.extended(parser()).parse_args([])
    assert options.server[-2:] == ["chimera", "chimera-io-uring"]
    assert set(options.chimera_only) <= set(goals.NEEDED)


def test_who_says_where_it_is_wants_it_measured(tmp_path, monkeypatch):
    chosen = []

    def run(options):
        chosen.append((options.server, options.chimera))
        raise SystemExit

    monkeypatch.setattr(bench, "run", run)
    for words in ([], ["--server", "rdma-nfsd", "chimera"]):
        with pytest.raises(SystemExit):
            main([*words, "--chimera", str(tmp_path)])
    assert chosen == [(["rdma-nfsd", *chimera.KINDS], tmp_path), (["rdma-nfsd", "chimera"], tmp_path)]
