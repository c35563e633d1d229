"""``python -m tests.vm.recalls``: what becomes of recalls when two Linux clients work on the same files, and what a
conflicting operation waits for.

Two guests of the chosen kernel (``GUEST=newest``) mount one export over RDMA. They open, change, replace, rename,
remove, lock and list the same files, and build and look at the same source tree. One of them also returns delegations
unasked: its kernel drops inodes, keeps few delegations, and unmounts. Everything on their network is captured
(:mod:`tests.vm.sniffer`); what a recall met is read from that. ``--read FILE`` reads a capture that was kept.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from nfsd.protocol import nfs4 as p
from tests.vm.build import HERE, REPO
from tests.vm.call_counts import source_tree
from tests.vm.guest import Guest
from tests.vm.mounts import complaints, load_siw, mount, rdma_options
from tests.vm.network import Namespace
from tests.vm.nfs4_calls import Exchange
from tests.vm.recall_story import Delegation, Story, Wait
from tests.vm.server import Server

POINT = "/mnt/shared"
FEW = 40
"""Delegations that the client which returns them keeps (nfsv4.delegation_watermark)."""
BOTH = ("files", "files", "locks", "listing", "tree")
"""What both guests do (tests/vm/inside/conflicts.py)."""
ONE = ("caches", "mounts")
"""What one of them does besides."""
CROSSING = 250e6
"""Nanoseconds: how long behind an answer the server takes a return for one that met the recall."""
JUST_GRANTED = 20e6
"""Nanoseconds behind the reply that grants a delegation, in which a busy client may not have taken that in."""
WHENS = (
    "answered before CB_RECALL was sent",
    "on its way then",
    "before the answer",
    "up to 250 ms behind it",
    "later, behind what it stood for",
    "later, behind what others stood for",
    "not OK: just granted",
    "later",
    "never",
)
EXPLAINED = WHENS[1:7]
"""When a return arrives that had begun when the recall was answered. (A Linux client returns the delegations of one
user one after the other, each behind the opens and locks that it stood for.)"""


def given_back(story: Story, delegation: Delegation, recall: Exchange) -> str:
    """When the DELEGRETURN of a delegation arrived, as seen from one CB_RECALL."""
    back = delegation.returned
    if back is None:
        return "never"
    if back.replied and back.replied <= recall.called:
        return "answered before CB_RECALL was sent"
    if back.called <= recall.called:
        return "on its way then"
    if not recall.replied or back.called <= recall.replied:
        return "before the answer"
    if back.called - recall.replied <= CROSSING:
        return "up to 250 ms behind it"
    if recall.status and delegation.granted and recall.called - delegation.granted <= JUST_GRANTED:
        return "not OK: just granted"
    # The return has begun by the first answer that is not OK.
    begun = min((one.replied for one in delegation.recalls if one.replied and one.status), default=recall.replied)
    since = min(begun, recall.replied)
    if story.calls_before_return(delegation, since):
        return "later, behind what it stood for"
    return "later, behind what others stood for" if story.claims_before_return(delegation, since) else "later"


def answers(story: Story) -> str:
    """A table: how recalls were answered, and when their delegations came back."""
    counts: Counter[tuple[str, str]] = Counter()
    for delegation in story.delegations.values():
        for recall in delegation.recalls:
            answer = p.nfsstat4(recall.status).name.removeprefix("NFS4ERR_") if recall.replied else "none"
            counts[answer, given_back(story, delegation, recall)] += 1
    lines = [f"| answer | CB_RECALLs | {' | '.join(WHENS)} |", "|---|---:|" + "---:|" * len(WHENS)]
    for answer in sorted({answer for answer, _ in counts}):
        row = [counts[answer, when] for when in WHENS]
        lines.append(f"| {answer} | {sum(row)} | {' | '.join(map(str, row))} |")
    return "\n".join(lines)


PARTS: tuple[tuple[str, Callable[[Wait], float]], ...] = (
    ("the whole", lambda wait: wait.whole),
    ("until CB_RECALL is sent", lambda wait: wait.to_recall),
    ("CB_RECALL until DELEGRETURN arrives", lambda wait: wait.to_return),
    ("of that, CB_RECALL's answer", lambda wait: wait.round_trip),
    ("of that, calls about the file", lambda wait: wait.flushing),
    ("DELEGRETURN until its answer", lambda wait: wait.returning),
    ("from there to the own answer", lambda wait: wait.waking),
)


def waiting(waits: Sequence[Wait]) -> str:
    """A table: what conflicting OPENs waited for."""
    opens = [wait for wait in waits if wait.operation == "OPEN" and not wait.delayed]
    groups = {
        "nothing to flush": [wait for wait in opens if not wait.flushed],
        "with calls about the file": [wait for wait in opens if wait.flushed],
    }
    lines = ["| ms, median (9 of 10 below) |" + "".join(f" {name} ({len(of)}) |" for name, of in groups.items())]
    lines.append("|---|" + "---:|" * len(groups))
    for name, part in PARTS:
        lines.append(f"| {name} |" + "".join(f" {_middle([part(wait) for wait in of])} |" for of in groups.values()))
    return "\n".join(lines)


def _middle(values: Sequence[float]) -> str:
    if len(values) < 2:
        return "-"
    return f"{statistics.median(values):.1f} ({statistics.quantiles(values, n=10)[-1]:.1f})"


def odd(story: Story) -> Iterator[str]:
    """Recalls that were not answered OK and met no return, one line each."""
    for other, delegation in story.delegations.items():
        for number, recall in enumerate(delegation.recalls):
            when = given_back(story, delegation, recall)
            fine = recall.status in (p.NFS4_OK, p.NFS4ERR_DELAY) and when != WHENS[0]
            if fine or when in EXPLAINED:
                continue
            back = delegation.returned
            yield (
                f"{delegation.client} {other.hex()} recall {number}: {p.nfsstat4(recall.status).name}, {when}; "
                f"ms from the grant to it {_since(delegation.granted, recall.called)}, to its answer "
                f"{_since(delegation.granted, recall.replied)}, to DELEGRETURN "
                f"{_since(delegation.granted, back.called if back else 0)}, its answer "
                f"{_since(delegation.granted, back.replied if back else 0)}"
            )


def _since(begin: int, end: int) -> str:
    return f"{(end - begin) / 1e6:.1f}" if begin and end else "?"


def report(story: Story) -> str:
    """Everything in words."""
    recalled = [one for one in story.delegations.values() if one.recalls]
    waits = list(story.waits())
    kinds = Counter(wait.operation for wait in waits)
    delayed = sum(wait.delayed > 0 for wait in waits)
    returned = sum(one.returned is not None for one in story.delegations.values())
    strange = list(odd(story))
    return "\n\n".join(
        [
            f"{story.calls} calls; {len(story.delegations)} delegations, {returned} returned, "
            f"{len(recalled)} recalled; of the operations that waited for one, {_counts(kinds)}; "
            f"{delayed} were answered DELAY first",
            answers(story),
            waiting(waits),
            f"{len(strange)} recalls are not explained",
            *strange[:40],
        ]
    )


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "none"


@contextmanager
def sniffing(network: Namespace, path: Path) -> Iterator[None]:
    """Capture what passes the network."""
    command = [
        *network.enter,
        "setpriv",
        "--pdeathsig",
        "KILL",
        sys.executable,
        "-m",
        "tests.vm.sniffer",
        "br0",
        str(path),
    ]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "sniffing\n"
        try:
            yield
        finally:
            process.terminate()
            print(process.stdout.read().strip())


def prepare(export: Path) -> None:
    """Make what the guests work on."""
    files = export / "files"
    files.mkdir()
    for number in range(300):
        (files / f"f{number}").write_bytes(b"a" * 500)
    locks = export / "locks"
    locks.mkdir()
    for number in range(100):
        (locks / f"l{number}").write_bytes(b"a" * 500)
    with tarfile.open(fileobj=io.BytesIO(source_tree())) as archive:
        archive.extractall(export, filter="data")
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@x"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], cwd=export / "tree", check=True, env={**os.environ, "HOME": str(export)})


def run(capture: Path, version: str, seconds: float, seed: int) -> list[str]:
    """Have the guests work, and capture it; what is wrong besides."""
    with ExitStack() as stack:
        where = os.environ.get("RDMA_NFSD_TEST_DIR", "/var/tmp")
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="recalls-", dir=where)))
        network = stack.enter_context(Namespace())
        server = stack.enter_context(Server(place / "server", network))
        prepare(server.export)
        guests = [
            stack.enter_context(Guest(name, network, memory=1024, cpus=1, time_limit=seconds + 600))
            for name in ("one", "two")
        ]
        for guest in guests:
            load_siw(guest)
        stack.enter_context(sniffing(network, capture))
        for guest in guests:
            mount(guest, server, version, POINT)
        guests[1].run(f"echo {FEW} >/sys/module/nfsv4/parameters/delegation_watermark")
        options = rdma_options(version, "nosharecache")
        beside = f"mount -t nfs -o {options} {server.address}:{server.export_name(version)}"
        jobs = [
            guest.start(
                f"export HOME=/tmp CONFLICTS_MOUNT='{beside}'; "
                f"python3 {HERE / 'inside/conflicts.py'} {POINT} {seconds} {seed}-{guest.name} {' '.join(what)}",
                seconds + 300,
                "conflicts",
            )
            for guest, what in zip(guests, (BOTH, (*BOTH, *ONE)), strict=True)
        ]
        for job in jobs:
            job.wait()
        for guest in guests:
            guest.run(f"umount {POINT}", timeout=60)
        server.assert_running()
        return [line for guest in guests for line in complaints(guest)]


def main(arguments: Iterable[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m tests.vm.recalls", description=__doc__)
    parser.add_argument("--version", default="4.2")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="keep the capture there")
    parser.add_argument("--read", type=Path, help="read this capture instead")
    options = parser.parse_args(arguments if arguments is None else list(arguments))
    with tempfile.TemporaryDirectory(prefix="recalls-", dir="/var/tmp") as place:
        capture: Path = options.read or options.keep or Path(place, "all.pcap")
        complained = [] if options.read else run(capture, options.version, options.seconds, options.seed)
        with capture.open("rb") as file:
            story = Story.read(file, Namespace.server_address)
    print(report(story))
    print("\n".join(complained))
    return 0


if __name__ == "__main__":
    sys.exit(main())
