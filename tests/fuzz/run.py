"""Fuzz one target for some minutes of processor time: ``python -m tests.fuzz.run TARGET MINUTES`` (docs/fuzzing.md).

Runs itself again under Atheris' AddressSanitizer runtime, on the instrumented copy of the packages that
:mod:`tests.fuzz.build` makes. The inputs found so far are in ``.fuzz/corpus/TARGET``; whatever breaks a property is
left in ``.fuzz/findings/TARGET-*``. Ends by printing what docs/fuzzing.md wants to know.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.fuzz.corpus import KEPT, TARGETS, stored

PLACE = Path(".fuzz")
LIBRARY = PLACE / "lib"
SLOWEST = 1.0
"""Seconds of processor time that an input may take under the sanitizer."""
LARGEST_ALLOCATION = 96
"""MiB that a single malloc() may ask for."""

SANITIZER = (
    "detect_leaks=0",
    "abort_on_error=1",
    "allocator_may_return_null=1",
    # Every object of Python's is an allocation: keep the books short.
    "malloc_context_size=3",
    "quarantine_size_mb=32",
)


def runtime() -> str:
    """Atheris' shared object: AddressSanitizer and libFuzzer in one."""
    import atheris

    return str(Path(atheris.path()) / "asan_with_fuzzer.so")


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{LIBRARY}:.",
        "PYTHONSAFEPATH": "1",
        "PYTHONMALLOC": "malloc",  # so that every object has its red zones
        "LD_PRELOAD": runtime(),
        "ASAN_OPTIONS": ":".join(SANITIZER),
    }


def again(target: str, *arguments: str) -> int:
    """Run this module under the sanitizer."""
    command = [sys.executable, "-m", "tests.fuzz.run", "--inside", target, *arguments]
    return subprocess.run(command, env=environment(), check=False).returncode


def prepare(target: str) -> Path:
    """The directory of inputs to go on from: the kept corpus, the seeds, and what earlier runs found."""
    directory = PLACE / "corpus" / target
    directory.mkdir(parents=True, exist_ok=True)
    (PLACE / "findings").mkdir(exist_ok=True)
    for name, data in stored(target):
        path = directory / name
        if not path.exists():
            path.write_bytes(data)
    return directory


def itself(target: str) -> Path:
    """A command that does what this process does: libFuzzer starts it for a merge."""
    command = PLACE / f"{target}.sh"
    if not command.exists():
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.fuzz.run --inside {target} "$@"\n')
        command.chmod(0o755)
    return command


def inside(target: str, arguments: list[str]) -> None:
    """In the sanitizer's process: hand over to libFuzzer."""
    import atheris

    with atheris.instrument_imports(include=["rpcrdma", "nfsd"]):
        checked = TARGETS[target]()
    minutes = float(os.environ.get("FUZZ_MINUTES", "0"))
    state: dict[str, Any] = {"runs": 0, "slowest": 0.0, "asked": False}

    def one(data: bytes) -> None:
        began = time.process_time()
        checked.one(data)
        ended = time.process_time()
        state["runs"] += 1
        state["slowest"] = max(state["slowest"], ended - began)
        assert ended - began < SLOWEST, f"{ended - began:.3f} s for one input"
        if minutes and ended > minutes * 60 and not state["asked"]:
            state["asked"] = True
            print(
                f"fuzz: {state['runs']} executions in {ended / 60:.1f} minutes of processor time, "
                f"slowest {state['slowest'] * 1000:.0f} ms, {getattr(checked, 'reached', {})}",
                flush=True,
            )
            os.kill(os.getpid(), signal.SIGUSR1)

    atheris.Setup([str(itself(target)), *arguments], one)
    atheris.Fuzz()


def main() -> None:
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("minutes", type=float, help="of processor time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="then minimise what was found into the repository's corpus")
    parser.add_argument("--replay", nargs="*", type=Path, help="only run these inputs")
    options = parser.parse_args()
    target = options.target
    if options.replay is not None:
        sys.exit(again(target, *map(str, options.replay)))
    directory = prepare(target)
    os.environ["FUZZ_MINUTES"] = str(options.minutes)
    status = 0
    if options.minutes:
        status = again(
            target, str(directory), f"-seed={options.seed}", f"-max_len={TARGETS[target].largest}", "-timeout=120",
            f"-malloc_limit_mb={LARGEST_ALLOCATION}", "-rss_limit_mb=3000", "-print_final_stats=1", "-len_control=0",
            "-reload=0", f"-artifact_prefix={PLACE}/findings/{target}-",
        )  # fmt: skip
    if options.keep:
        os.environ["FUZZ_MINUTES"] = "0"
        smallest = PLACE / "minimal" / target
        subprocess.run(["rm", "-rf", str(smallest)], check=True)
        smallest.mkdir(parents=True)
        again(target, "-merge=1", str(smallest), str(directory))
        print(f"fuzz: {KEPT / target}: {TARGETS[target].keep(smallest)}")
    sys.exit(status)


if __name__ == "__main__":
    main()
