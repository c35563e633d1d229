"""What is built for others installs elsewhere and serves there; a build that was interrupted is mended by the next."""

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from tests.support.installed import REPO, copy_clone, environment, install, run, tracked, use

EXTENSION = sysconfig.get_config_var("EXT_SUFFIX")

AS_IT_STANDS = {
    *(f"nfsd/web/{name}" for name in ("page.html", "page.js", "page.css", "grafana.json")),
    "rpcrdma/capture/rpcordma2.lua",
}
"""What is served, or given to Wireshark, as it stands."""


def sources(suffix: str) -> set[str]:
    """The tracked files of the three packages with a suffix."""
    return {name for name in tracked() if name.startswith(("nfsd/", "rpcrdma/", "bench/")) and name.endswith(suffix)}


def test_no_extension_has_typed_memoryviews() -> None:
    """One of them makes Cython write some 17,000 lines of C into the module, for every build to compile."""
    declared = re.compile(r"\b(?:char|short|int|long|float|double|\w+_t)\s*\[\s*::?1?\s*(?:,\s*::?1?\s*)*\]")
    assert declared.search("cdef const unsigned char[::1] octets = view")
    # All that is there: who has unpacked the source distribution has no git to ask.
    written = [path for package in ("nfsd", "rpcrdma") for path in (REPO / package).rglob("*.p[yx][xd]")]
    assert len(written) > 100
    assert [path.name for path in written if declared.search(path.read_text())] == []


def test_sources_without_extensions_are_not_built(tmp_path: Path) -> None:
    """What was packed without them installed without a word, and could not be imported."""
    for name in ("setup.py", "setup_translate.py"):
        (tmp_path / name).write_text((REPO / name).read_text())
    command = [sys.executable, "setup.py", "bdist_wheel"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "not the whole sources" in done.stderr
    assert not list(tmp_path.rglob("*.whl"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the source distribution, and the wheel made from it, in an environment of its own: what pip does
    to install the former."""
    clone = copy_clone(tmp_path_factory.mktemp("clone"))
    run([sys.executable, "-m", "build", "--outdir", clone / "dist"], cwd=clone)
    return clone / "dist"


@pytest.mark.package
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_source_distribution_has_all_sources_and_the_wheel_every_extension(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert sources(".pyx") | sources(".pxd") | sources(".pyi") | sources(".py") <= packed
    assert packed >= AS_IT_STANDS
    assert {"Makefile", "systemd/rdma-nfsd.service", "tests/vm/host-packages.sh", "bench/generator.pyx"} <= packed
    assert [name for name in packed if name.endswith((".c", ".so", ".pyc"))] == []
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    extensions = {name.removesuffix(".pyx") + EXTENSION for name in sources(".pyx")}
    if not (REPO / f"rpcrdma/verbs/device/device{EXTENSION}").exists():  # no headers of the verbs on this host
        extensions = {name for name in extensions if "/device/" not in name or name.endswith(f"/queue{EXTENSION}")}
    if not (REPO / f"nfsd/backends/cephfs/client{EXTENSION}").exists():  # nor those of libcephfs
        extensions = {name for name in extensions if "/cephfs/" not in name}
    if not (REPO / f"nfsd/stable/rados/client{EXTENSION}").exists():  # nor librados's
        extensions = {name for name in extensions if "/rados/" not in name}
    assert {name for name in names if name.endswith(".so")} == extensions
    assert names >= AS_IT_STANDS
    assert sources(".pyi") | sources(".py") | {"nfsd/py.typed", "rpcrdma/py.typed"} <= names
    assert [name for name in names if name.endswith((".c", ".pyx", ".pxd")) or name.startswith("tests")] == []
    assert any(name.endswith("share/rdma-nfsd/rdma-nfsd.service") for name in names)


@pytest.mark.package
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_what_is_built_installs_in_an_empty_environment_and_serves(built: Path, tmp_path: Path) -> None:
    program = install(next(built.glob("*.whl")), tmp_path)
    assert re.fullmatch(r"rdma-nfsd \d+\.\d+\S*\n", run([program, "--version"], cwd=tmp_path))
    use(program, tmp_path)
    measure(program, tmp_path)


def measure(program: Path, directory: Path) -> None:
    """The load generator of what is installed, with the server of what is installed, outside of any clone."""
    quick = ["--only", "getattr", "getattr-v4.1", "--rounds", "1", "--seconds", "0.2", "--crowded"]
    told = run([program, "bench", *quick, "--json", directory / "run.json"], cwd=directory)
    found = json.loads((directory / "run.json").read_text())["servers"]["rdma-nfsd"]
    assert found["failures"] == {}
    assert set(found["scenarios"]) == {f"{name} {over}" for name in quick[1:3] for over in ("tcp", "rdma")}
    assert "| getattr-v4.1 | rdma |" in told
    shown = [program.parent / "python", "-m", "bench", "--from", directory / "run.json"]
    assert run(shown, cwd=directory) == told
    refused = subprocess.run(
        [*shown, "--document"], cwd=directory, env=environment(), capture_output=True, text=True, check=False
    )
    assert (refused.returncode, refused.stderr) == (2, "bench: --document writes docs/, which only a clone has\n")


def interrupted(clone: Path, after: str, least: int) -> None:
    """Begin ``make setup`` and kill it, and all it has started, as soon as there are so many files of a pattern."""
    with (clone / "make.log").open("a") as log:
        make = subprocess.Popen(
            ["make", "setup"], cwd=clone, env=environment(), stdout=log, stderr=log, process_group=0
        )
        try:
            while sum(1 for _ in clone.glob(after)) < least:
                assert make.poll() is None, (clone / "make.log").read_text()
                time.sleep(0.02)
        finally:
            os.killpg(make.pid, signal.SIGKILL)
            make.wait()


@pytest.mark.package
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_setup_that_was_interrupted_is_mended_by_the_next(tmp_path: Path) -> None:
    clone = copy_clone(tmp_path / "clone")
    interrupted(clone, ".venv/lib/*/site-packages/pip/_internal/*.py", 1)
    interrupted(clone, "rpcrdma/**/*.so", 3)
    # What is left of a file whose writing ended half-way has the name and the time of a whole one.
    for pattern in ("nfsd/**/*.c", "rpcrdma/**/*.so"):
        half = sorted(clone.glob(pattern))[0]
        half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    told = subprocess.run(
        ["make", "setup"], cwd=clone, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout
    # A newcomer is not to wonder what a compiler's warnings mean.
    assert "warning:" not in (clone / "make.log").read_text() + told.stdout
    # What pickles classes that nobody pickles is a fifth of the compiler's work.
    extensions = [path for package in ("nfsd", "rpcrdma") for path in (clone / package).rglob("*.so")]
    assert len(extensions) > 50
    assert [path.name for path in extensions if b"__reduce_cython__" in path.read_bytes()] == []
    program = clone / ".venv/bin/rdma-nfsd"
    use(program, tmp_path)
    # Serving takes no development tools, and no load generator.
    left_out = "import importlib.util as u; print([n for n in ('pytest', 'mypy', 'bench.generator') if u.find_spec(n)])"
    assert run([clone / ".venv/bin/python", "-c", left_out], cwd=clone) == "[]\n"
