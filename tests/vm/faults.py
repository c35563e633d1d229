"""What each fault does to a Linux client: the scenarios, and the table of their outcomes in docs/faults.md.

``python -m tests.vm.faults`` plays them with the guest's kernel (``GUEST=6.12`` for another), and writes that kernel's
table. :mod:`tests.vm.test_faults` plays them too, and says which outcomes must be.
"""

from __future__ import annotations

import re
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nfsd.admin.asking import ask
from tests.vm.build import HERE, REPO
from tests.vm.guest import Guest, GuestError
from tests.vm.mounts import complaints, load_siw, mount
from tests.vm.network import Network, namespace_or_slirp
from tests.vm.server import Server

DOCUMENT = REPO / "docs" / "faults.md"
VERSIONS = ("3", "4.2")
SIZE = 200_001
"""Octets of the file that is read, as in inside/fault_probe.py."""
LONGEST = 30
"""Seconds, before the guest's patience, that a program is waited for."""
_LINES = 2
"""Of the kernel's log, that the table shows of one scenario."""


@dataclass(frozen=True)
class Scenario:
    """One fault: the rule, and what a program does meanwhile. ``rules`` is by version of NFS."""

    deed: str
    rules: dict[str, str]

    def text(self, version: str) -> str | None:
        """The rule for a version, if there is one."""
        return self.rules.get(version, self.rules.get("any"))


def _any(deed: str, rule: str) -> Scenario:
    return Scenario(deed, {"any": rule})


def _error(deed: str, calls: str, three: str, four: str, how: str) -> Scenario:
    made = {}
    if three:
        made["3"] = f"calls: [{calls}], error: NFS3ERR_{three}, {how}"
    if four:
        made["4.2"] = f"calls: [{calls}], error: NFS4ERR_{four}, {how}"
    return Scenario(deed, made)


MAKES = "calls: [MKDIR, CREATE]"
SCENARIOS = (
    _any("read", "calls: [READ], delay: 3, times: 1"),
    _any("read", "calls: [READ], delay_reply: 3, times: 1"),
    _any("many", "calls: [READ], overtaken_by: 3, every: 2"),
    _any("read", "calls: [READ], read_at_most: 4096"),
    _any("read", "calls: [READ], drop: call, times: 1"),
    _any("mkdir", f"{MAKES}, drop: reply, times: 1"),
    _any("mkdir", f"{MAKES}, disconnect: before, times: 1"),
    _any("mkdir", f"{MAKES}, disconnect: after, times: 1"),
    _any("many", "credits: 1"),
    _any("many", "credits: 0"),
    _any("read", "calls: [READ], refuse: ERR_CHUNK, times: 1"),
    _any("read", "calls: [READ], refuse: ERR_VERS, times: 1"),
    _any("read", "calls: [READ], invalidate: none"),
    _any("read", "calls: [READ], invalidate: last"),
    _any("read", "calls: [READ], invalidate: wrong, times: 1"),
    _error("read", "READ", "JUKEBOX", "DELAY", "times: 2"),
    _error("read", "READ", "JUKEBOX", "DELAY", "seconds: 20"),
    _error("read", "READ", "IO", "IO", "times: 1"),
    _error("read", "READ", "STALE", "STALE", "times: 1"),
    _error("read", "READ", "", "BAD_STATEID", "times: 1"),
    _error("read", "READ", "", "EXPIRED", "times: 1"),
    _error("read", "SEQUENCE", "", "BADSESSION", "times: 1"),
    _error("write", "WRITE", "NOSPC", "NOSPC", "times: 1"),
    _error("write", "COMMIT", "IO", "IO", "times: 1"),
    _error("mkdir", "MKDIR, CREATE", "", "GRACE", "times: 1"),
    _any("write", "calls: [WRITE], new_verifier: true, every: 1, times: 3"),
    Scenario("read", {"4.2": "calls: [READ], expire: true, times: 1"}),
    Scenario("read", {"4.2": "calls: [READ], new_owner: true, disconnect: before, times: 1"}),
    Scenario("share", {"4.2": "calls: [CB_RECALL], callback: unheard"}),
    Scenario("share", {"4.2": "calls: [CB_RECALL], callback: unsent"}),
)


@dataclass(frozen=True)
class Outcome:
    """What came of one scenario."""

    scenario: Scenario
    version: str
    result: str
    """``ok``, the name of an error, or ``hangs``."""
    seconds: float
    acted: bool
    """Whether the program met the fault at all."""
    log: tuple[str, ...]
    """What the client's kernel said."""

    @property
    def key(self) -> tuple[str, str]:
        """Rule and version."""
        return self.scenario.text(self.version) or "", self.version


class Stage:
    """A misbehaving server, and a guest with the export mounted once for each version."""

    def __init__(self, server: Server, guest: Guest) -> None:
        self.server, self.guest = server, guest
        self.rules = server.directory / "rules.yaml"
        self._files = 0
        (server.export / "data").write_bytes(bytes(index * 7 & 0xFF for index in range(SIZE)))
        load_siw(guest)
        for version in VERSIONS:
            mount(guest, server, version, f"/mnt/v{version}")

    def set_rules(self, rule: str) -> None:
        """From now on there is this rule, or none."""
        self.rules.write_text(f"rules: [{{{rule}}}]" if rule else "rules: []")
        self._ask(file=str(self.rules))

    def acted(self) -> bool:
        """Whether the rule has acted."""
        return any(row["acted"] for row in self._ask()["rules"])

    def _ask(self, **fields: Any) -> dict[str, Any]:
        """What ``rdma-nfsd faults`` would say, without its start."""
        return ask(str(self.server.directory / "state"), "faults", **fields)

    def play(self, scenario: Scenario, version: str) -> Outcome:
        """Play one."""
        point = f"/mnt/v{version}"
        made = self.server.export / "made"
        if made.exists():
            made.rmdir()
        self.guest.run("dmesg -C", label="forget")
        self.set_rules(scenario.text(version) or "")
        # In the background, so that one that hangs holds up no others.
        probe = f"python3 {HERE}/inside/fault_probe.py {point} {scenario.deed}"
        try:
            if scenario.deed == "share":
                shared = self._another_file()
                probe += f" {shared.name}"
            job = self.guest.start(probe, LONGEST, f"{scenario.text(version)} by {version}")
            if scenario.deed == "share":
                job.wait_for("opened")
                _append_beside(shared)
            output = job.wait().output
            found = re.search(r"outcome (\S+) ([\d.]+)", output)
            assert found is not None, output
            result, seconds = found[1], float(found[2])
        except GuestError:
            result, seconds = "hangs", float(LONGEST)
        acted = self.acted()
        self.set_rules("")
        return Outcome(scenario, version, result, seconds, acted, tuple(complaints(self.guest)))

    def _another_file(self) -> Path:
        """One that no client has used: what was recalled is not delegated again for a while."""
        self._files += 1
        made = self.server.export / f"shared-{self._files}"
        made.write_text("first\n")
        return made

    def play_all(self, scenarios: Iterable[Scenario] = SCENARIOS) -> Iterator[Outcome]:
        """Play all, for each version."""
        for scenario in scenarios:
            for version in VERSIONS:
                if scenario.text(version) is not None:
                    yield self.play(scenario, version)

    def kernel(self) -> str:
        """The guest's, as ``uname -r`` says it."""
        return self.guest.run("uname -r").output.strip()


def _append_beside(path: Path) -> None:
    """As a local program does, which waits until the lease behind a delegation is broken."""

    def append() -> None:
        with path.open("a") as file:
            file.write("second\n")

    threading.Thread(target=append, daemon=True).start()


@contextmanager
def stage(network: Network, directory: Path) -> Iterator[Stage]:
    """A stage, for as long as it is wanted."""
    settings = {"nfs4": {"lease_time": 15, "grace_time": 0}}
    rules = directory / "none.yaml"
    rules.write_text("rules: []")
    with (
        Server(directory / "faulty", network, server=settings, arguments=["--faults", str(rules)]) as server,
        Guest("faulty", network, memory=1024, time_limit=1500) as guest,
    ):
        yield Stage(server, guest)


def table(kernel: str, outcomes: Iterable[Outcome]) -> list[str]:
    """The lines of one kernel's table."""
    lines = [
        f"### Linux {kernel}",
        "",
        "| Rule | The program | NFSv3 | NFSv4.2 | What the kernel's log says |",
        "|---|---|---|---|---|",
    ]
    rows: dict[int, dict[str, Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault(id(outcome.scenario), {})[outcome.version] = outcome
    for row in rows.values():
        one = next(iter(row.values()))
        rules = " or ".join(dict.fromkeys(f"`{outcome.key[0]}`" for outcome in row.values()))
        cells = [_cell(row.get(version)) for version in VERSIONS]
        said = dict.fromkeys(_shown(line) for outcome in row.values() for line in outcome.log)
        lines.append(
            f"| {rules} | {one.scenario.deed} | {' | '.join(cells)} | {'; '.join(list(said)[:_LINES]) or '-'} |"
        )
    return lines


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return "-"
    return f"{outcome.result}, {outcome.seconds:.1f} s" if outcome.acted else "not met"


def _shown(line: str) -> str:
    """A line of the log without its time, and without what differs from run to run."""
    text = re.sub(r"^\[[^]]*\] ", "", line)
    return "`" + re.sub(r"\b(10|192)\.\d+\.\d+\.\d+\b", "SERVER", text).replace("|", "/") + "`"


def write_table(kernel: str, lines: list[str]) -> None:
    """Put a kernel's table into the document, in place of the one that it had."""
    series = ".".join(kernel.split(".")[:2])
    begin, end = f"<!-- linux {series} -->", f"<!-- end of linux {series} -->"
    text = DOCUMENT.read_text()
    new = "\n".join([begin, *lines, end])
    if begin in text:
        text = text[: text.index(begin)] + new + text[text.index(end) + len(end) :]
    else:
        text = text.rstrip("\n") + f"\n\n{new}\n"
    DOCUMENT.write_text(text)


def main() -> int:
    """Play all, and write the table."""
    with (
        tempfile.TemporaryDirectory(prefix="rnfsd-faults-", dir="/var/tmp") as directory,
        namespace_or_slirp() as network,
        stage(network, Path(directory)) as played,
    ):
        outcomes = list(played.play_all())
        kernel = played.kernel()
    lines = table(kernel, outcomes)
    print("\n".join(lines))
    write_table(kernel, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
