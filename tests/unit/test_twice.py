"""tests/twice.sh: a test that fails beside others runs once more; one that fails again has failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "twice.sh"
STARVED = """\
from pathlib import Path
def test_starved():
    marker = Path({marker!r})
    again = marker.exists()
    marker.touch()
    assert again
"""


@pytest.mark.parametrize(
    ("text", "status", "twice"),
    [
        ("def test_good(): pass\n", 0, False),
        (STARVED, 0, True),
        ("def test_wrong(): assert False\n", 1, True),
        (STARVED + "def test_wrong(): assert False\n", 1, True),
        ("import nothing_of_that_name\n", 1, True),
        ("", 5, False),
    ],
    ids=["good", "starved", "wrong", "both", "not collected", "no tests"],
)
def test_what_fails_runs_once_more(tmp_path: Path, text: str, status: int, twice: bool) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_it.py").write_text(text.format(marker=str(tmp_path / "marker")) if "{" in text else text)
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n" if text else "")
    done = subprocess.run(
        [SCRIPT, sys.executable, "-n", "2", "--dist", "loadfile"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "run once more" in done.stdout) == (status, twice), done.stdout + done.stderr
    if twice:
        second = done.stdout.partition("run once more")[2]
        assert "test_other" not in second
        assert ("passed by themselves" in second) is (status == 0)
