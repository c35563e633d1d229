"""The command line of ``rdma-nfsd bench``, and its runs. The load is native (:mod:`bench.generator`)."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import chimera, compare, document, fio, goals, report, sides
from bench.calls import FILE_SIZE, Files
from bench.cephfs import CephStudy
from bench.connections import Connections
from bench.fixtures import fill
from bench.floors import floors
from bench.ganesha import Ganesha, enter_namespace, in_root, packaged
from bench.growth import Directory, Handles, Locks, Opens
from bench.machine import crowd, disk_limits, facts, measure_limits
from bench.many_exports import Exports
from bench.memory import Memory
from bench.nfs3_client import Nfs3Failure
from bench.places import Place, places
from bench.processes import Processes
from bench.running import Impossible
from bench.scenarios import SCENARIOS, Scenario, needed, prepare
from bench.security import SecurityStudy
from bench.servers import IN_GUEST, OURS, TREE, LocalServer, NotStarted, RdmaNfsd, RdmaNfsdNames
from bench.study import Study, Terms, median, progress
from bench.trouble import Trouble
from bench.turns import take_turns
from bench.writers import Writers

STUDIES: tuple[Study, ...] = (
    Connections(),
    Directory(),
    Handles(),
    Opens(),
    Locks(),
    Exports(),
    Memory(),
    Trouble(),
    Writers(),
    Processes(),
    SecurityStudy(),
    CephStudy(),
)
NAMES = [scenario.name for scenario in SCENARIOS] + [study.name for study in STUDIES]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Everything that was asked for."""
    local = [name for name in options.server if name not in IN_GUEST]
    rivals: list[type[Ganesha]] = [*([Ganesha] if Ganesha.name in local else []), *map(in_root, options.ganesha_root)]
    names = options.only or (NAMES if local else [scenario.name for scenario in SCENARIOS])
    chosen = [scenario for scenario in SCENARIOS if scenario.name in names]
    effort = {"rounds": options.rounds, "seconds": options.seconds}
    result: dict[str, Any] = {"machine": facts() | crowd(options.crowded) | effort}
    with places(options.on, options.images) as found:
        memory = found[0].path
        result |= run_scenarios(options, local, found, chosen)
        result |= {"studies": {}, "studies_failed": {}}
        for study in STUDIES:
            if study.name not in names:
                continue
            terms = Terms(
                memory / study.name, options.seconds, options.rounds, options.transport, options.uid, found[1:], rivals
            )
            try:
                result["studies"][study.name] = study.run(terms)
            except Impossible as reason:
                progress("")
                print(f"bench: {study.name}: not measured: {reason}", file=sys.stderr)
            except (NotStarted, RuntimeError, OSError) as failure:
                result["studies_failed"][study.name] = str(failure)
    others = [name for name in options.server if name in IN_GUEST]
    if others and chosen:
        guests = load_guests()
        result["guest"] = guests.measure(
            others, chosen, options.transport, options.rounds, options.seconds, options.uid
        )
    progress("")
    return result


def load_guests() -> Any:
    """:mod:`bench.guests`, which needs the guest lab of a clone: it is not installed with the package."""
    try:
        return importlib.import_module("bench.guests")
    except ImportError as error:
        raise SystemExit(f"servers in a guest need a clone, and there make lab: {error}") from None


def run_scenarios(
    options: argparse.Namespace, names: Sequence[str], where: Sequence[Place], chosen: Sequence[Scenario]
) -> dict[str, Any]:
    """In rounds that take turns: the machine, then each scenario with every server in every place."""
    others: list[type[LocalServer]] = [in_root(root) for root in options.ganesha_root]
    program = options.chimera or chimera.PROGRAM
    chimeras = [chimera.built(name, program, options.chimera_only) for name in names if name in chimera.KINDS]
    every: list[type[LocalServer]] = [RdmaNfsd, RdmaNfsdNames, Ganesha, *chimeras, *others]
    kinds = {kind.name: kind for kind in every}
    limits: list[dict[str, float]] = []
    by_themselves: dict[str, list[dict[str, float]]] = {place.name: [] for place in where}
    for place in where:
        fill(place.path / "limits", FILE_SIZE)
    with ExitStack() as ends:
        servers: list[tuple[LocalServer, Files]] = []
        absent: dict[str, str] = {}
        for place in where:
            for name in [*names, *(other.name for other in others)]:
                try:
                    kind = kinds[name]
                    needs = needed(each for each in chosen if kind.has(each.name) and (place.device or not each.disks))
                    servers.append(begin(kind, place, options.uid, needs, ends))
                except (NotStarted, Nfs3Failure) as failure:
                    if name in OURS:
                        raise
                    absent[f"{name} on {place.name}"] = why_absent(failure)

        def measure_machine(turn: str) -> None:
            progress(f"{turn}: the machine")
            limits.append(measure_limits(where[0].path / "limits", options.seconds))
            for place in where:
                alone = disk_limits(place, options.seconds, chosen) if place.device else {}
                by_themselves[place.name].append(alone | floors(place, options.seconds, chosen))

        found = take_turns(servers, chosen, options.transport, options.rounds, options.seconds, measure_machine)
        results = {
            server.label: found[server.label].result() | {"peak_memory": server.memory()} for server, _ in servers
        }
    told = {place.name: {"told": place.told} | median(by_themselves[place.name]) for place in where}
    memory, disks = sides.split(results, [place.name for place in where[1:]])
    versions = {Ganesha.name: packaged()} if Ganesha.name in names else {}
    return {
        "limits": median(limits),
        "servers": memory,
        "disks": disks,
        "places": told,
        "absent": absent,
        "versions": versions,
    }


def why_absent(failure: NotStarted | Nfs3Failure) -> str:
    """In a few words."""
    if isinstance(failure, Nfs3Failure):
        return f"it does not export such a file system ({failure})"
    return str(failure).partition("\n")[0]


def begin(
    kind: type[LocalServer], place: Place, uid: int, needs: set[str], ends: ExitStack
) -> tuple[LocalServer, Files]:
    """A server in a place, with its files; it is ended with ``ends``. Raises NotStarted and what its client does."""
    server = kind(place.path / kind.name)
    server.place = place
    try:
        with server.network():
            files = asyncio.run(prepare(server, uid, needs))
    except BaseException:
        server.stop()
        raise
    ends.callback(server.stop)
    return server, files


_DESCRIPTION = """\
Measure what calls cost this server and others, beside what this machine can do at best, in one run.

The figure that counts is the server's CPU per call: the time of its process, user and system, divided by the calls that
it answered. The load comes over loopback from this host. A scenario is one kind of call on one connection, for each
server that is named. The studies look closer at rdma-nfsd: many connections, large directories, memory, stopped disks.
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    named = argparse.ArgumentParser(
        prog="rdma-nfsd bench",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="scenarios:\n  "
        + " ".join(scenario.name for scenario in SCENARIOS)
        + "\n\nstudies:\n"
        + "\n".join(f"  {study.name:12} {study.summary}" for study in STUDIES)
        + "\n\nrdma-nfsd bench compare, goals, fio: two builds, what is to be reached, a fio job (see --help)",
    )
    named.add_argument("--only", nargs="*", choices=NAMES, metavar="NAME", help="these scenarios and studies only")
    named.add_argument(
        "--transport",
        nargs="*",
        choices=["tcp", "rdma"],
        default=["tcp", "rdma"],
        help="over these only (rdma: softiwarp)",
    )
    named.add_argument(
        "--server",
        nargs="*",
        choices=[*OURS, Ganesha.name, *chimera.KINDS, *IN_GUEST],
        default=[RdmaNfsd.name],
        help="these, in turns (default rdma-nfsd); rdma-nfsd-names: with async: names in its exports; "
        "chimera and chimera-io-uring: a Chimera that was built here (needs root); "
        "rdma-nfsd-verbs and kernel: in a Linux guest, over its siw device and TCP, compared with each other only "
        "(needs root and qemu)",
    )
    named.add_argument("--seconds", type=float, default=2.0, help="how long each is measured in a round (default 2)")
    named.add_argument("--rounds", type=int, default=3, help="how often; medians are reported (default 3)")
    named.add_argument("--uid", type=int, default=0, help="whom the calls are made as (default 0)")
    named.add_argument(
        "--on",
        nargs="*",
        default=[],
        metavar="DIR",
        help="on the file system there, beside memory; ext4 and xfs: on a disk of this machine's, or a loop device",
    )
    named.add_argument("--images", type=Path, default=Path("/var/tmp"), help="for loop devices (default /var/tmp)")
    named.add_argument(
        "--ganesha-root",
        type=Path,
        nargs="*",
        default=[],
        metavar="ROOT",
        help="other releases of Ganesha as well, each in a Debian made by python -m bench.ganesha",
    )
    named.add_argument(
        "--chimera",
        type=Path,
        metavar="PROGRAM",
        help=f"Chimera as well, which is this program (default of --server chimera: {chimera.PROGRAM})",
    )
    named.set_defaults(chimera_only=())
    named.add_argument("--crowded", action="store_true", help="measure though other programs are busy")
    named.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    named.add_argument("--from", type=Path, dest="earlier", metavar="FILE", help="measure nothing: show these figures")
    named.add_argument(
        "--document",
        action="store_true",
        help="put tables and pictures into docs/performance.md and docs/studies.md (needs matplotlib)",
    )
    named.add_argument("--compare", type=Path, metavar="FILE", help="an earlier run's: exit status 1 if any is worse")
    named.add_argument("--tolerance", type=float, default=0.15, help="how much worse is worse (default 0.15)")
    return named


def main(words: Sequence[str] | None = None) -> int:
    """Run from the command line, or with these words of one."""
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["compare"]:
        return compare.main(words[1:])
    if words[:1] == ["fio"]:
        return fio.main(words[1:])
    wants_goals = words[:1] == ["goals"]
    options = goals.extended(parser()).parse_args(words[1:]) if wants_goals else parser().parse_args(words)
    if options.document and not document.DOCUMENT.exists():
        print("bench: --document writes docs/, which only a clone has", file=sys.stderr)
        return 2
    if options.chimera and not chimera.KINDS.keys() & options.server:
        options.server = [*options.server, *chimera.KINDS]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # servers and disks are ended all the same
    if (Ganesha.name in options.server or options.ganesha_root) and options.earlier is None:
        enter_namespace(words)
    result = json.loads(options.earlier.read_text()) if options.earlier else run(options)
    if wants_goals and options.before:
        result["before"] = goals.compared(options.before, TREE)
    print("\n".join(goals.table(result) if wants_goals else report.everything(result, STUDIES)))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if wants_goals:
        if options.into:
            options.into.write_text("\n".join(goals.table(result)) + "\n")
        if options.document:
            document.write_goals(goals.table(result), result)
        missed = any(row.met is False for row in goals.rows(result))
        return 1 if missed or report.has_failed(result) else 0
    if options.document:
        document.write(result, STUDIES)
    if options.compare:
        slower = report.compare(result, json.loads(options.compare.read_text()), options.tolerance, STUDIES)
        print("\n".join(slower) or "Nothing has become worse.")
        return 1 if slower or report.has_failed(result) else 0
    return 1 if report.has_failed(result) else 0


if __name__ == "__main__":
    raise SystemExit(main())
