"""setup_translate reads each declaration once. The C is what Cython alone makes, but that gcc is told what seldom
runs. Mistakes are told as ever."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]

BOTH_WAYS = """\
import sys
from pathlib import Path
from Cython.Build import cythonize
from setuptools import Extension
import setup_translate
names = sorted(str(path) for path in Path("pack").rglob("*.pyx"))
extensions = [Extension(name[:-4].replace("/", "."), [name]) for name in names]
directives = {"language_level": 3, "embedsignature": True}
if sys.argv[1:] == ["alone"]:
    cythonize(extensions, quiet=True, compiler_directives=directives)
else:
    read = setup_translate._declarations

    def told(*words):
        found = read(*words)
        print("read once" if found else "read by each")
        return found

    setup_translate._declarations = told
    translated = setup_translate.translate(extensions, 2, directives)
    assert sorted(source for one in translated for source in one.sources) == [name[:-3] + "c" for name in names]
"""

NUMBERS = 5
PRAGMAS = re.compile(r"#ifndef __clang__\n(?:#pragma GCC .*\n)+#endif\n")
UNOPTIMIZED = re.compile(
    r"#pragma GCC push_options\n#pragma GCC optimize \(0\)\n.*?#pragma GCC pop_options\n", re.DOTALL
)


def sources(directory: Path) -> None:
    """A package in which each module has declarations of its own, and all but the first use those of the one before."""
    (directory / "pack").mkdir(parents=True)
    (directory / "pack/__init__.py").touch()
    (directory / "pack/inlined.pxd").write_text(
        "from libc.stdint cimport uint32_t\ncdef inline uint32_t twice(uint32_t it) noexcept:\n    return it + it\n"
        "cdef inline uint32_t unwanted(uint32_t it) noexcept:\n    return twice(it) + 1\n"
    )
    for number in range(NUMBERS):
        name = directory / f"pack/m{number}"
        name.with_suffix(".pxd").write_text(f"cdef class C{number}:\n    cdef int at\n    cdef int get(self)\n")
        uses = f"from pack.m{number - 1} cimport C{number - 1}\n" if number else "from pack.inlined cimport twice\n"
        body = "twice(self.at)" if not number else f"(<C{number - 1}>other).at"
        name.with_suffix(".pyx").write_text(
            f"{uses}cdef class C{number}:\n    cdef int get(self):\n        other = self\n        return {body}\n"
        )


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BOTH_WAYS, *words],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        check=False,
    )


def made(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.rglob("*.c")}


@pytest.mark.timeout(900)
def test_the_c_is_what_cython_makes_of_each_module_alone(tmp_path: Path) -> None:
    texts = []
    for one in ("alone", "together"):
        sources(tmp_path / one)
        done = run(tmp_path / one, one)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ("" if one == "alone" else "read once\n")
        texts.append(made(tmp_path / one))
    assert len(texts[0]) == NUMBERS
    assert texts[0] == {name: PRAGMAS.sub("", text) for name, text in texts[1].items()}


@pytest.mark.timeout(900)
def test_gcc_optimizes_a_modules_own_functions_and_not_its_start(tmp_path: Path) -> None:
    sources(tmp_path)
    done = run(tmp_path, "together")
    assert done.returncode == 0, done.stderr
    (text,) = (text for name, text in made(tmp_path).items() if name == "m1.c")
    unoptimized = UNOPTIMIZED.findall(text)
    assert "push_options" not in UNOPTIMIZED.sub("", text)
    assert any("__pyx_pymod_exec_m1(" in part for part in unoptimized)
    assert any("void __Pyx_AddTraceback(" in part for part in unoptimized)
    assert not any(
        "__pyx_f_4pack_2m1_2C1_get(struct __pyx_obj_4pack_2m1_C1 *__pyx_v_self) {" in each for each in unoptimized
    )
    # What comes behind is optimized again: gcc says so by a macro.
    (tmp_path / "m1.c").write_text(f"{text}\n#ifdef __OPTIMIZE__\nint optimized_again;\n#endif\n")
    include = f"-I{sysconfig.get_path('include')}"
    compiled = ["gcc", "-O1", "-fPIC", "-w", include, "-c", str(tmp_path / "m1.c"), "-o", str(tmp_path / "m1.o")]
    subprocess.run(compiled, check=True)
    assert b"optimized_again" in (tmp_path / "m1.o").read_bytes()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("suffix", [".pyx", ".pxd"])
def test_a_mistake_is_told_and_ends_the_build(tmp_path: Path, suffix: str) -> None:
    sources(tmp_path)
    (tmp_path / f"pack/m2{suffix}").write_text("cdef class C2:\n    cdef nosuchtype at\n")
    done = run(tmp_path, "together")
    assert done.returncode == 1
    assert done.stdout.startswith("read once" if suffix == ".pyx" else "read by each")
    assert f"pack/m2{suffix}:2:9: 'nosuchtype' is not a type identifier" in done.stderr
    assert "could not translate" in done.stderr
