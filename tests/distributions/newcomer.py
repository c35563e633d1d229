"""The newcomer's way, timed on bare Debians: ``python -m tests.distributions.newcomer bookworm trixie``, as root.

In a Debian made for it, of each suite named: everything from no compiler to a file read over RDMA and a mount by Linux,
with the commands of README.md, then ``make test-fast`` (``steps.sh``). ``--until`` stops before that. ``--write`` puts
the table into docs/install.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
REPO = HERE.parents[1]
PAGE = REPO / "docs/install.md"
BLOCK = re.compile(r"(?<=<!-- newcomer.py -->\n).*?(?=<!-- end of newcomer.py -->)", re.DOTALL)
INCLUDE = "git,make,mount,ca-certificates,procps,passwd,iproute2,openssh-client"
"""What is there at the beginning: git, which made the clone, make, and what every Debian that was installed has."""


@dataclass(frozen=True)
class Steps:
    """What was measured on one Debian."""

    name: str
    steps: dict[str, tuple[float, float, float]]
    """Of each step its seconds, those of a processor, and how many processes ran or waited to."""
    tests: str
    """pytest's last line."""
    green: bool = True
    """Whether every step came to its end."""


def parse(text: str) -> dict[str, tuple[float, float, float]]:
    """The lines that steps.sh leaves."""
    rows = (line.split("\t") for line in text.splitlines())
    return {name: (float(wall), float(user) + float(system), float(load)) for name, wall, user, system, load in rows}


def measure(suite: str, lab: Path, until: str, *, go_on: bool) -> Steps:
    """Go the way on one Debian, from nothing, or on from where it ended the last time. Raises CalledProcessError."""
    root = lab / f"newcomer-{suite}"
    if not go_on:
        shutil.rmtree(root, ignore_errors=True)
    command = [str(HERE / "enter.sh"), suite, str(root), "tests/distributions/steps.sh", "/tmp/steps", until]
    command += ["test-fast"] * (until == "tested")
    done = subprocess.run(command, env={**os.environ, "RDMA_NFSD_INCLUDE": INCLUDE}, check=False)
    told = root / "tmp/steps"
    if done.returncode and not Path(f"{told}.tests").exists():
        raise subprocess.CalledProcessError(done.returncode, command)
    release = dict(line.split("=", 1) for line in (root / "etc/os-release").read_text().splitlines() if "=" in line)
    config = (root / "clone/.venv/pyvenv.cfg").read_text()
    version = re.search(r"^version = (\S+)", config, re.MULTILINE)
    assert version
    name = f"{release['PRETTY_NAME'].strip(chr(34)).removeprefix('Debian GNU/Linux ')}, Python {version[1]}"
    tests = Path(f"{told}.tests").read_text().strip() if until == "tested" else ""
    return Steps(name, parse(told.read_text()), tests, not done.returncode)


def table(measured: list[Steps]) -> str:
    """Markdown: a row for each step, with its seconds and, in brackets, those of a processor."""
    lines = ["| | " + " | ".join(f"Debian {one.name}" for one in measured) + " |", "|---" * (len(measured) + 1) + "|"]
    for step in measured[0].steps:
        cells = ["{:.0f} s ({:.0f} s)".format(*one.steps[step][:2]) if step in one.steps else "" for one in measured]
        lines.append(f"| {step} | " + " | ".join(cells) + " |")
    if any(one.tests for one in measured):
        lines.append("| its result | " + " | ".join(one.tests for one in measured) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, print the table, write it if asked to. The status is 1 where a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suites", nargs="+", help="Debian's names: bookworm, trixie, sid")
    parser.add_argument("--until", choices=("served", "mounted", "tested"), default="tested", help="where to stop")
    parser.add_argument("--go-on", action="store_true", help="do what was not done the last time")
    parser.add_argument("--write", action="store_true", help="put the table into docs/install.md")
    options = parser.parse_args()
    lab = Path(os.environ.get("RDMA_NFSD_LAB") or REPO / ".lab")
    measured = [measure(suite, lab, options.until, go_on=options.go_on) for suite in options.suites]
    loads = [load for one in measured for *_, load in one.steps.values()]
    text = table(measured) + (
        f"\nSeconds that passed, downloads among them, and in brackets those of a processor. {os.cpu_count()} "
        f"processors ({platform.machine()}), for which up to {max(loads):.0f} processes\nwere in need of one.\n"
    )
    print(text)
    if options.write:
        page = PAGE.read_text()
        assert BLOCK.search(page), f"{PAGE} has no place for the table"
        PAGE.write_text(BLOCK.sub(lambda _: text, page))
    return 0 if all(one.green for one in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
