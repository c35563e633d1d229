"""``python -m bench compare``: two builds in turns."""

import shutil
import subprocess

import pytest

from bench import compare, machine
from bench.compare import Pairs
from bench.servers import TREE, RdmaNfsd, strange_code


def test_the_ratio_is_that_of_turns_beside_each_other():
    pairs = Pairs({"old": [1.0, 2.0, 8.0], "new": [1.1, 2.0, 16.0]}, {"old": [1.0] * 3, "new": [2.0] * 3})
    assert pairs.ratios() == [1.0, 1.1, 2.0]
    assert pairs.ratio() == 1.1, "not 2.0 / 2.0, the medians'"
    assert pairs.spread() == (1.05, 1.55)


def test_turns_go_there_and_back():
    assert [side for number in range(4) for side in compare.order(number)] == ["old", "new", "new", "old"] * 2


def test_the_table_says_what_is_worse_and_what_failed():
    def pairs(old, new):
        return Pairs({"old": [old] * 2, "new": [new] * 2}, {"old": [100.0], "new": [50.0]})

    found = {("getattr", "tcp"): pairs(1.0, 1.02), ("lookup", "tcp"): pairs(2.0, 4.0), ("access", "rdma"): pairs(4, 2)}
    lines = compare.table(found, {("read-4k-1", "tcp"): "NFS3ERR_IO"}, 0.03)
    assert lines[2] == "| getattr | tcp | 1.00 | 1.02 | **1.020** | 1.020 to 1.020 | 0.50 |  |"
    assert lines[3].endswith("| **2.000** | 2.000 to 2.000 | 0.50 | worse |")
    assert lines[4].endswith("| better |")
    assert "failed: NFS3ERR_IO" in lines[5]
    assert lines[-1] == "The geometric mean of the ratios is 1.007."
    assert {line.count("|") for line in lines[:6]} == {9}


def git(tree, *words):
    command = ["git", "-C", tree, "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_a_checkout_is_told_by_its_commit(tmp_path):
    tree = tmp_path / "before"
    tree.mkdir()
    assert machine.commit_of(tree) == "before", "it is no repository"
    git(tree, "init", "--quiet")
    assert machine.commit_of(tree) == "before", "it has no commit yet"
    (tree / "file").write_text("text")
    git(tree, "add", "file")
    git(tree, "commit", "--quiet", "--message", "First")
    commit = git(tree, "rev-parse", "--short", "HEAD")
    assert machine.commit_of(tree) == commit
    (tree / "file").write_text("another")
    assert machine.commit_of(tree) == f"{commit}+"


def test_extensions_of_another_tree_are_seen(tmp_path):
    def mapped(path):
        return f"7f0-7f1 r-xp 00000000 fe:00 1234                       {path}\n"

    ours = mapped(tmp_path / "nfsd" / "spans.so") + mapped("/usr/lib/libc.so") + "7f2-7f3 rw-p 00000000 00:00 0 \n"
    assert strange_code(ours, tmp_path) == []
    assert strange_code(ours + mapped("/other/tree/rpcrdma/clock.so"), tmp_path) == ["/other/tree/rpcrdma/clock.so"]


def test_a_server_that_runs_another_trees_code_is_refused(tmp_path):
    """A checkout without extensions of its own would find those of whoever's is installed."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for package in ("nfsd", "rpcrdma"):
        (tree / package).symlink_to(TREE / package)
    with pytest.raises(SystemExit, match="runs other code"):
        RdmaNfsd(tmp_path / "server", tree=tree)


@pytest.mark.timeout(600)
def test_two_servers_are_compared(capsys, tmp_path):
    arguments = [str(TREE), str(TREE), "getattr", "create-stat-unlink", "getattr-v4.1", "--transport", "tcp"]
    arguments += ["--starts", "2", "--turns", "1", "--seconds", "0.05", "--on", str(tmp_path), "--tolerance", "1e9"]
    assert compare.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:5]] == ["| getattr", "| create-stat-unlink", "| getattr-v4.1"]
    assert all(float(cell) > 0 for line in lines[2:5] for cell in line.split(" | ")[2:4])
    assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit):
        compare.main([str(TREE), str(TREE), "no-such-scenario"])
    with pytest.raises(SystemExit):
        compare.main([str(TREE), str(tmp_path)])
    assert f"{tmp_path} is no checkout" in capsys.readouterr().err
