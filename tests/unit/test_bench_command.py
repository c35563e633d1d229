"""``rdma-nfsd bench``: the load generator as part of the installed package."""

import json
import re
import sys
from pathlib import Path

import pytest

import bench
from bench import document
from nfsd.cli import main


def test_the_command_measures_and_shows_an_earlier_run(tmp_path, capsys):
    run = str(tmp_path / "run.json")
    words = ["--only", "getattr-v4.1", "--transport", "tcp", "--rounds", "1", "--seconds", "0.1", "--crowded"]
    assert main(["bench", *words, "--json", run]) == 0
    told = capsys.readouterr().out
    assert "| getattr-v4.1 | tcp |" in told
    assert json.loads(Path(run).read_text())["servers"]["rdma-nfsd"]["failures"] == {}
    assert main(["bench", "--from", run]) == 0
    assert capsys.readouterr().out == told
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--help"])
    assert ended.value.code == 0
    assert "scenarios:" in capsys.readouterr().out


def test_the_load_generator_imports_nothing_of_the_tests():
    """Else it runs in a clone only. The guests are a clone's."""
    of_guests = {"guests.py", "guest_flames.py"}
    for source in Path(bench.__file__).parent.glob("*.py"):
        if source.name not in of_guests:
            found = re.findall(r"^\s*(?:from|import) tests\b.*", source.read_text(), re.MULTILINE)
            assert found == [], source


def test_where_the_load_generator_is_not_built_the_command_says_what_builds_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "bench.__main__", None)
    assert main(["bench"]) == 1
    assert "make develop" in capsys.readouterr().err


def test_without_a_clone_there_is_no_document_to_write(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(document, "DOCUMENT", tmp_path / "performance.md")
    assert main(["bench", "--document", "--from", "no such file"]) == 2
    assert "only a clone" in capsys.readouterr().err
