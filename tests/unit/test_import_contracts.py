"""The import contracts of ``pyproject.toml`` hold for .pyx and .pxd as they do for Python."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rules.native_imports import Import, imports_of, native_imports

ROOT = Path(__file__).parents[2]
PACKAGES = ("nfsd", "rpcrdma")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The project's sources, to be tampered with."""
    copy = tmp_path_factory.mktemp("sources")
    for package in (*PACKAGES, "tests/rules"):
        for source in (ROOT / package).rglob("*"):
            if source.suffix in (".py", ".pyx", ".pxd"):
                target = copy / source.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
    shutil.copy(ROOT / "pyproject.toml", copy)
    (copy / "tests/__init__.py").touch()
    return copy


def lint(tree):
    """Run what ``make lint`` runs; whether all contracts hold, and what was said."""
    run = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    return run.returncode == 0, run.stdout + run.stderr


@contextmanager
def tampered(tree, lines):
    """The tree with a line more at the end of some files."""
    before = {path: (tree / path).read_text() if (tree / path).exists() else None for path, _ in lines}
    try:
        for path, line in lines:
            with (tree / path).open("a") as file:
                file.write(f"\n{line}\n")
        yield
    finally:
        for path, text in before.items():
            if text is None:
                (tree / path).unlink()
            else:
                (tree / path).write_text(text)


def test_the_contracts_hold(tree):
    """Also with an import of a native module that none of them forbids."""
    with tampered(tree, [("rpcrdma/memory_plan.py", "from rpcrdma.engine.native import NativeResponder")]):
        holds, said = lint(tree)
    assert holds, said


# A file, a line to put there, the contract that it breaks and the import that is named.
BREAKS = [
    ("rpcrdma/engine/native.pyx", "import asyncio", "state machines do no I/O", "asyncio"),
    ("rpcrdma/engine/native.pyx", "def f():\n    import socket", "state machines do no I/O", "socket"),
    (
        "rpcrdma/engine/native.pyx",
        "from nfsd.v4.server import Nfs4Server",
        "rpcrdma knows nothing of NFS",
        "nfsd.v4.server",
    ),
    (
        "rpcrdma/engine/native.pyx",
        "from nfsd.vfs.records cimport Node",
        "rpcrdma knows nothing of NFS",
        "nfsd.vfs.records",
    ),
    ("rpcrdma/engine/credits.pxd", "cimport nfsd.vfs.records", "rpcrdma knows nothing of NFS", "nfsd.vfs.records"),
    ("rpcrdma/place.pyx", "from rpcrdma.rpc.replay cimport ReplayCache", "layers of rpcrdma", "rpcrdma.rpc.replay"),
    ("rpcrdma/parts.pyx", "from .rpc.replay cimport ReplayCache", "layers of rpcrdma", "rpcrdma.rpc.replay"),
    (
        "nfsd/vfs/native_files.pyx",
        "from nfsd.v4.native_compound cimport left",
        "layers of nfsd",
        "nfsd.v4.native_compound",
    ),
    # A Python file that imports a native module: to import-linter alone it leads nowhere.
    (
        "rpcrdma/xdr/errors.py",
        "from rpcrdma.engine.native import NativeResponder",
        "layers of rpcrdma",
        "rpcrdma.engine.native",
    ),
]


@pytest.fixture(scope="module")
def said_of_breaks(tree):
    """What is said of a tree in which each of them stands; a run takes seconds, so it is made once."""
    with tampered(tree, [(path, line) for path, line, _, _ in BREAKS]):
        holds, said = lint(tree)
    assert not holds
    return said


@pytest.mark.parametrize(("path", "line", "broken", "imported"), BREAKS)
def test_an_import_in_native_code_breaks_a_contract(said_of_breaks, path, line, broken, imported):
    assert f"{broken} BROKEN" in said_of_breaks
    importer = path.rpartition(".")[0].replace("/", ".")
    assert re.search(rf"{re.escape(importer)} -> {re.escape(imported)} \(l\.", said_of_breaks), said_of_breaks


def test_every_spelling_is_read(tmp_path):
    file = tmp_path / "odd.pyx"
    file.write_text(
        'cdef extern from "sys/socket.h" nogil:\n    int socket(int a, int b, int c)\n'
        "cimport a.b as c, d\n"
        "import e.f, g\n"
        "from .. import h\n"
        "from .i cimport (\n    j,  # a remark\n    k as l,\n)\n"
        'TEXT = """\nimport nothing\n"""\n'
        "cdef class T:\n    cdef int m(self):\n        from n import o; import p\n        return 0\n"
    )
    assert {one._replace(line=0) for one in imports_of(file, "x.y.odd")} == {
        Import("sys/socket.h", None, 0, 0, True),
        Import("a.b", None, 0, 0),
        Import("d", None, 0, 0),
        Import("e.f", None, 0, 0),
        Import("g", None, 0, 0),
        Import("", ("h",), 2, 0),
        Import("i", ("j", "k"), 1, 0),
        Import("n", ("o",), 0, 0),
        Import("p", None, 0, 0),
    }


def test_no_edge_is_left_out():
    """Every line of native code that begins with an import of ours gives an edge."""
    modules, edges = native_imports(ROOT, PACKAGES)
    assert "rpcrdma.engine.native" in modules
    read = {(edge.path, edge.line) for edge in edges}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.p[yx]*"):
            if path.suffix not in (".pyx", ".pxd"):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                words = line.split()
                if words[:1] in (["from"], ["cimport"]) and words[1].startswith(("nfsd.", "rpcrdma.")):
                    assert (path, number) in read or words[1] == ".".join(path.relative_to(ROOT).with_suffix("").parts)


# What a state machine may have of C: numbers, octets, the interpreter's objects, and no descriptor.
HARMLESS = ("cython", "cpython", "libc.stdint", "libc.string", "libc.math", "libc.stdlib")
HARMLESS_HEADERS = ("Python.h", "structmember.h", "<endian.h>")
SYSTEM = ("ctypes", "fcntl", "libc", "mmap", "os", "posix", "select", "signal", "time")


def system_calls(path):
    """What a native file imports that system calls can be made with."""
    for one in imports_of(path, "m"):
        if one.c_header:
            if one.module not in HARMLESS_HEADERS:
                yield f"{path}:{one.line}: {one.module}"
        elif one.module.split(".")[0] in SYSTEM and one.module not in HARMLESS:
            yield f"{path}:{one.line}: {one.module}"


@pytest.mark.parametrize("package", ["rpcrdma/engine", "rpcrdma/wire", "rpcrdma/xdr", "nfsd/state", "nfsd/protocol"])
def test_no_system_call_in_a_state_machine(package):
    files = [path for path in (ROOT / package).rglob("*") if path.suffix in (".pyx", ".pxd")]
    assert files
    assert not [found for path in files for found in system_calls(path)]


@pytest.mark.parametrize(
    "line",
    [
        "from posix.unistd cimport write",
        "from libc.stdio cimport printf",
        "import os",
        'cdef extern from "unistd.h":\n    int close(int fd)',
    ],
)
def test_a_system_call_in_a_state_machine_is_found(tmp_path, line):
    file = tmp_path / "credits.pyx"
    file.write_text(f"{(ROOT / 'rpcrdma/engine/credits.pyx').read_text()}\n{line}\n")
    assert len(list(system_calls(file))) == 1


@pytest.mark.parametrize("module", ["nfsd.command_line", "nfsd.daemon", "nfsd.v4.procedures", "nfsd.v4.ops"])
def test_what_a_program_may_import_first_can_be(module):
    """Native and Python modules of NFSv4 import each other: whether that ends well depends on where it begins."""
    subprocess.run([sys.executable, "-c", f"import {module}"], cwd=ROOT, check=True, timeout=300)
