"""The .pyi files agree with their native modules: names, arguments, defaults (mypy's stubtest)."""

import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Functions that are called from native code or by the event loop alone have no place in a contract for Python; and that
# two native classes have no common heir is not for mypy to find out.
OPTIONS = ["--ignore-missing-stub", "--ignore-disjoint-bases", "--concise"]


def stubs():
    return [path for package in ("nfsd", "rpcrdma", "bench") for path in sorted((ROOT / package).rglob("*.pyi"))]


def is_built(stub):
    return any(stub.with_name(stub.stem + suffix).exists() for suffix in EXTENSION_SUFFIXES)


def stubtest(*modules, cwd=ROOT):
    run = [sys.executable, "-m", "mypy.stubtest", *OPTIONS, *modules]
    return subprocess.run(run, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.timeout(900)
def test_stubs_say_what_is_there():
    # Without the headers of the RDMA libraries their provider is not built, nor without Ceph's what is over those.
    built = [path for path in stubs() if is_built(path) or not {"device", "cephfs", "rados"} & set(path.parts)]
    assert len(built) > 30
    result = stubtest(*(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in built))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.timeout(900)
def test_a_stub_that_is_wrong_is_found(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "module.py").write_text("def f(a, b=1):\n    return a\n")
    (tmp_path / "module.pyi").write_text("def f(a: int, c: int = 1) -> int: ...\ndef g() -> None: ...\n")
    result = stubtest("module", cwd=tmp_path)
    assert result.returncode == 1
    assert "module.g is not present at runtime" in result.stdout
    assert 'parameter "c"' in result.stdout
