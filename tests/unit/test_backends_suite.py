"""The suite as authors of backends run it, and that it notices what a backend does wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = [
    sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "/",
    "-c", "/dev/null", "--pyargs", "nfsd.backend_suite.test_backend",
]  # fmt: skip


def suite(tmp_path, *options):
    """Exit status and output of a run with these options."""
    done = subprocess.run(
        [*RUN, "--basetemp", str(tmp_path / "runs"), *options],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.returncode, done.stdout + done.stderr


def test_other_runs_of_pytest_do_not_import_the_server():
    """They did, all of them where rdma-nfsd is installed, and failed in a clone that was not built yet."""
    code = "import sys, nfsd.backend_suite.plugin; print([name for name in sys.modules if name.startswith('rpcrdma')])"
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_a_good_backend_passes(tmp_path):
    status, output = suite(tmp_path, "--backend=memory", "-k", "tcp-4.1 or operation")
    assert status == 0, output
    assert "25 passed" in output


@pytest.mark.parametrize(
    ("store", "scenario"),
    [
        ("Forgetful", "data_is_read_as_it_was_written"),
        ("Repeating", "large_directories_are_listed_whole"),
        ("Unlinking", "an_open_file_outlives_its_name"),
    ],
)
def test_a_wrong_backend_fails(tmp_path, store, scenario):
    status, output = suite(tmp_path, f"--backend=tests.unit.backend_plugins:{store}", "-k", f"{scenario} and tcp-4.1")
    assert status == 1, output
    assert "1 failed" in output
    assert scenario in output


def test_a_backend_that_has_not_what_it_declares_fails(tmp_path):
    options = "--backend=tests.unit.backend_plugins:Mumbling", "-k", "extended_attributes or copying"
    status, output = suite(tmp_path, *options)
    assert status == 1, output
    assert "1 failed, 1 passed" in output
