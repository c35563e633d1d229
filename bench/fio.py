"""Run a fio job in several mounted directories in turns, and print a table of the results.

Each turn has a new subdirectory, in which fio lays out its files before the measurement. The servers take turns
A B B A, so other work on the machines affects all of them. CPU is that of all processors of the serving host,
because kernel threads and softirqs work for a server, too.

Owns the reading of fio's output and the table; the guest lab uses both. Imports nothing of the servers.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TICK = os.sysconf("SC_CLK_TCK")
HEADS = ("fio", "server", "IOPS", "MB/s", "p50 ms", "p99 ms", "server CPU µs/op")
ALL = "all jobs"
_ELSEWHERE = re.compile(
    r"^\s*(?:directory\s*=.*|(?:filename|opendir|file_service_dir)\s*=\s*/.*|include\s.*)$", re.MULTILINE
)


class FioError(Exception):
    """The job cannot be run, or fio says that it failed."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One direction of one job (or of a group of jobs that fio reports together)."""

    operations: int
    iops: float
    octets_per_s: float
    p50_ms: float | None
    """None: the job measures no latencies."""
    p99_ms: float | None


@dataclass(slots=True)
class Turn:
    """What one run of the job has brought."""

    jobs: dict[str, Figures] = field(default_factory=dict)
    """By job and direction."""
    cpu_seconds: float | None = None
    """Of the serving host; None: not asked for."""

    @property
    def cpu_us(self) -> float | None:
        """Microseconds per operation."""
        operations = sum(figures.operations for figures in self.jobs.values())
        return None if self.cpu_seconds is None or not operations else self.cpu_seconds * 1e6 / operations


@dataclass(frozen=True)
class Place:
    """A server's export as a client has it mounted."""

    name: str
    directory: str
    shell: Callable[[str], str]
    """Runs a script on the client; its output. Raises FioError."""
    cpu: Callable[[], float] | None = None
    """Seconds of CPU that the serving host has used so far."""


def checked(text: str) -> str:
    """The job file, as it is. Raises FioError for one that leaves the mounted directory, or has no job."""
    if leaves := _ELSEWHERE.search(text):
        raise FioError(f"{leaves[0].strip()!r}: the job runs in each mounted directory, and must name no other place")
    if not re.search(r"^\s*\[(?!global\])[^\]]+\]", text, re.MULTILINE):
        raise FioError("there is no [job] in it")
    return text


def busy_seconds(stat: str) -> float:
    """The time that all processors have not been idle so far, of the text of /proc/stat. Raises FioError."""
    fields = stat.split("\n", 1)[0].split()
    if len(fields) < 9 or fields[0] != "cpu":
        raise FioError(f"that is not /proc/stat: {stat[:60]!r}")
    user, nice, system, _idle, _iowait, irq, softirq, _steal = map(int, fields[1:9])
    return (user + nice + system + irq + softirq) / TICK


def read(output: str) -> dict[str, Figures]:
    """fio's JSON: figures by job and direction. Raises FioError."""
    try:
        told = json.loads(output[output.index("{") :])
    except ValueError as error:
        raise FioError(f"fio's output cannot be read ({error}): {output[:300]!r}") from None
    jobs = told.get("jobs")
    if not isinstance(jobs, list):
        raise FioError(f"fio's output cannot be read: {output[:300]!r}")
    found: dict[str, Figures] = {}
    for job in jobs:
        if job["error"]:
            raise FioError(f"fio: {job['jobname']}: {os.strerror(job['error'])}")
        for direction in ("read", "write", "trim"):
            figures = job.get(direction, {})
            if figures.get("total_ios"):
                name = f"{job['jobname']}, {direction}"
                same = sum(key.partition(" #")[0] == name for key in found)
                found[f"{name} #{same + 1}" if same else name] = _figures(figures)
    if not found:
        raise FioError("fio has done nothing")
    return found


def _figures(of: Mapping[str, Any]) -> Figures:
    by_rank: dict[str, float] = next(
        (of[kind]["percentile"] for kind in ("clat_ns", "lat_ns") if of.get(kind, {}).get("percentile")), {}
    )
    p50, p99 = (by_rank.get(rank) for rank in ("50.000000", "99.000000"))
    return Figures(
        of["total_ios"], of["iops"], of["bw_bytes"], *(None if each is None else each / 1e6 for each in (p50, p99))
    )


def run(place: Place, job: str) -> Turn:
    """The job once, in a new subdirectory. Raises FioError."""
    where = shlex.quote(f"{place.directory}/fio-{os.getpid()}")
    file = base64.b64encode(job.encode()).decode()
    place.shell(
        f"mkdir {where} && cd {where} && base64 -d <<<{file} >job && fio --create_only=1 job >/dev/null && sync -f ."
    )
    try:
        before = place.cpu() if place.cpu is not None else 0.0
        # Some kilobytes of white space less, for consoles.
        output = place.shell(
            f"cd {where} && fio --output-format=json --output=result job && tr -s ' \\n\\t' ' ' <result"
        )
        used = None if place.cpu is None else place.cpu() - before
        return Turn(read(output), used)
    finally:
        place.shell(f"rm -rf {where}")


def turns(places: Sequence[Place], job: str, rounds: int, say: Callable[[str], None]) -> dict[str, list[Turn]]:
    """The job in all places, as often as there are rounds, in turns. Raises FioError."""
    found: dict[str, list[Turn]] = {place.name: [] for place in places}
    for number in range(rounds):
        for place in places if number % 2 == 0 else reversed(places):
            say(f"fio: {place.name}, round {number + 1} of {rounds}")
            found[place.name].append(run(place, job))
    return found


def rows(found: Mapping[str, Sequence[Turn]]) -> list[tuple[str, ...]]:
    """The table: its heads, then for each job every server's medians, then each server's CPU per operation."""
    lines: list[tuple[str, ...]] = [HEADS]
    names = list(dict.fromkeys(job for made in found.values() for turn in made for job in turn.jobs))
    for job in names:
        for server, made in found.items():
            same = [turn.jobs[job] for turn in made if job in turn.jobs]
            if same:
                rate, octets = _median(same, "iops"), _median(same, "octets_per_s")
                delays = (_shown(_median(same, each), 2) for each in ("p50_ms", "p99_ms"))
                lines.append((job, server, _shown(rate, 0), _shown(octets and octets / 1e6, 1), *delays, ""))
    for server, made in found.items():
        if cpu := [turn.cpu_us for turn in made if turn.cpu_us is not None]:
            lines.append((ALL, server, "", "", "", "", _shown(statistics.median(cpu), 0)))
    return lines


def _median(same: Sequence[Figures], name: str) -> float | None:
    values = [getattr(each, name) for each in same]
    return None if None in values else statistics.median(values)


def _shown(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell: the first two to the left, the others to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    told = []
    for line in (lines[0], ["-" * width for width in widths], *lines[1:]):
        left = [cell.ljust(width) for cell, width in zip(line[:2], widths, strict=False)]
        right = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        told.append("  ".join([*left, *right]).rstrip())
    return told


def here(script: str) -> str:
    """Run a script on this host."""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        raise FioError((done.stderr or done.stdout).strip() or f"status {done.returncode}")
    return done.stdout


def place(named: str, stat: str) -> Place:
    """A place on this host: ``NAME=DIR`` or ``DIR``; ``stat`` prints /proc/stat of the serving host, if it is given."""
    name, equals, directory = named.partition("=")
    directory = os.path.abspath(directory if equals else name)
    if not os.path.isdir(directory):
        raise FioError(f"{directory} is no directory")
    name = name if equals else os.path.basename(directory) or directory
    return Place(name, directory, here, (lambda: busy_seconds(here(stat))) if stat else None)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    named = argparse.ArgumentParser(
        prog="rdma-nfsd bench fio",
        description=(__doc__ or "").partition("\n\nOwns")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="for example, on a client that has both servers' exports mounted:\n"
        "  rdma-nfsd bench fio my.job /mnt/rdma-nfsd /mnt/kernel --stat 'ssh SERVER cat /proc/stat'",
    )
    named.add_argument("job", type=Path, metavar="JOB", help="a job file of fio's; it should say direct=1")
    named.add_argument(
        "directory", nargs="+", metavar="[NAME=]DIR", help="a mounted directory, which may be written to"
    )
    named.add_argument("--rounds", type=int, default=2, help="turns of each (default 2); medians are shown")
    named.add_argument(
        "--stat", default="", metavar="COMMAND", help="prints the serving host's /proc/stat, for its CPU"
    )
    named.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return named


def main(words: Sequence[str]) -> int:
    """Run from the command line: exit status 1 where the job could not be run."""
    options = parser().parse_args(words)
    try:
        job = checked(options.job.read_text())
        places = [place(each, options.stat) for each in options.directory]
        if len({each.name for each in places}) < len(places):
            raise FioError("two directories have one name: say NAME=DIR")
        if not re.search(r"^\s*direct\s*=\s*1", job, re.MULTILINE):
            print("bench fio: without direct=1 the client's cache answers, too", file=sys.stderr)
        found = turns(places, job, options.rounds, lambda text: print(text, file=sys.stderr, flush=True))
    except (FioError, OSError) as error:
        print(f"bench fio: {error}", file=sys.stderr)
        return 1
    print("\n".join(aligned(rows(found))))
    if options.json:
        options.json.write_text(json.dumps(as_json(found), indent=1) + "\n")
    return 0


def as_json(found: Mapping[str, Sequence[Turn]]) -> dict[str, Any]:
    """Every turn's figures, by server."""
    return {
        server: [
            {"cpu_us": turn.cpu_us, "jobs": {job: _fields(figures) for job, figures in turn.jobs.items()}}
            for turn in made
        ]
        for server, made in found.items()
    }


def _fields(figures: Figures) -> dict[str, float | None]:
    return {name: getattr(figures, name) for name in Figures.__slots__}
