"""Build an instrumented copy of the packages for fuzzing: ``python -m tests.fuzz.build DIRECTORY``.

The extensions are compiled by clang with AddressSanitizer and with the coverage counters of libFuzzer, beside copies of
the Python modules. What is up to date is left alone. The sanitizer's runtime is not linked: it is in Atheris' own
shared object, which :mod:`tests.fuzz.run` preloads.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension

PACKAGES = ("rpcrdma", "nfsd")
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": True,
}
"""As in setup.py: what is fuzzed is what is shipped."""
FLAGS = [
    "-O1", "-g1", "-fPIC", "-fno-strict-aliasing", "-fno-omit-frame-pointer", "-w",
    "-fsanitize=address,fuzzer-no-link", "-fno-sanitize-recover=all",
]  # fmt: skip


def clang() -> str:
    """The compiler: $CC if that is clang, or the newest that Debian may have installed."""
    for name in (os.environ.get("CC", ""), "clang", *(f"clang-{version}" for version in range(22, 12, -1))):
        if "clang" in name and shutil.which(name):
            return name
    sys.exit("fuzzing needs clang: apt-get install clang-14")


def newer(source: Path, target: Path) -> bool:
    return not target.exists() or source.stat().st_mtime > target.stat().st_mtime


def copy_modules(directory: Path) -> None:
    """The Python modules, and the declarations beside the extensions."""
    wanted = set()
    for package in PACKAGES:
        for source in Path(package).rglob("*.py"):
            target = directory / source
            wanted.add(target)
            if newer(source, target):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        for target in (directory / package).rglob("*.py"):
            if target not in wanted:
                target.unlink()


def compile_extensions(directory: Path) -> None:
    """Every extension but those over RDMA devices, which take nothing from a peer without a device."""
    sources = [
        source
        for package in PACKAGES
        for source in sorted(Path(package).rglob("*.pyx"))
        if "device" not in source.parts
    ]
    names = [".".join(source.with_suffix("").parts) for source in sources]
    extensions = [Extension(name, [str(source)]) for name, source in zip(names, sources, strict=True)]
    cythonize(extensions, quiet=True, compiler_directives=DIRECTIVES)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for source in sources:
        generated = source.with_suffix(".c")
        target = directory / source.with_suffix(suffix)
        if not newer(generated, target):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        unlinked = target.with_suffix(".o")
        print(f"compiling {source}", flush=True)
        compiler = [clang(), *FLAGS, f"-I{sysconfig.get_path('include')}"]
        subprocess.run([*compiler, "-c", str(generated), "-o", str(unlinked)], check=True)
        subprocess.run([clang(), "-shared", str(unlinked), "-lpthread", "-ldl", "-o", str(target)], check=True)
        unlinked.unlink()


if __name__ == "__main__":
    place = Path(sys.argv[1])
    copy_modules(place)
    compile_extensions(place)
