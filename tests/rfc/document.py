"""docs/rfc-coverage.md: written from the results of a test run, and read back to see that it is up to date."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from nfsd.conformance.demands import ITEMS, Item

HEAD = """# What the specifications demand, and which test shows it

Written by the test suite; do not edit:

    python -m pytest tests/unit tests/rfc -m covers --rfc-coverage docs/rfc-coverage.md

Items are the demands of each specification on a responder, in the words of `nfsd/conformance/demands.py`; M, S and O
are MUST, SHOULD and what is left open. Tests send the messages themselves, octet by octet, and most run on the loopback
and the embedded iWARP provider. A test with several cases counts once here, and passes if all of them do.

The last column is Linux's own NFS server, kernel {kernel}, over siw: what its answers show of those demands that an NFS
server's answers can show. The questions are those of [`rdma-nfsd conformance`](conformance.md). `rdma-nfsd` answers
every one as demanded (`tests/unit/test_checklist.py`); `python -m tests.vm.four_servers` puts them to the kernel, in a
guest.

RPCSEC_GSS is served in version 1 (RFC 2203), which is what clients of NFS ask for. A call of version 2 (RFC 5403:
channel bindings) or 3 (RFC 7861: assertions and labels) is denied with AUTH_BADCRED, as RFC 2203 section 5.3.3.3 has
it for a version that a server does not know: a client that speaks both goes on with version 1.
"""

FACTS = Path(__file__).with_name("servers.json")
"""What ``python -m tests.vm.four_servers`` has found: answers, by the servers' names."""

_TEST = re.compile(r"`([\w./]+::\w+)`")


@dataclass(slots=True)
class Outcome:
    """The cases of one test function."""

    cases: int = 0
    failed: int = 0


def linux() -> tuple[str, dict[str, str]]:
    """The kernel's series, and by item how its server differs over RDMA; empty where it does not. Of what it lacks,
    nothing is said."""
    facts = json.loads(FACTS.read_text())
    (name,) = (name for name in facts if name.startswith("Linux ") and name.endswith(", RDMA"))
    answers = {answer["demand"]: answer["differs"] for answer in facts[name] if not answer["absent"]}
    return name.split()[1].rstrip(","), {item: answers[item] for item in ITEMS if item in answers}


def render(outcomes: Mapping[str, Mapping[str, Outcome]]) -> str:
    """The document."""
    proven = sum(1 for name in ITEMS if outcomes.get(name) and not _failed(outcomes[name]))
    explained = sum(1 for name, item in ITEMS.items() if item.explanation and not outcomes.get(name))
    still_open = len(ITEMS) - proven - explained
    kernel, differs = linux()
    lines = [
        HEAD.format(kernel=kernel),
        f"{len(ITEMS)} items: {proven} shown, {explained} explained, {still_open} open.",
    ]
    same = sum(not how for how in differs.values())
    lines[-1] += f" Linux has been asked about {len(differs)}, and does {same} of them as demanded."
    for document, items in groupby(ITEMS.values(), key=lambda item: item.document):
        lines += [
            "",
            f"## {document}",
            "",
            "| Section | | Demand | Shown by | Result | Linux |",
            "|---|---|---|---|---|---|",
        ]
        for item in items:
            tests = outcomes.get(item.name, {})
            shown = ", ".join(f"`{test.removeprefix('tests/')}`" for test in sorted(tests)) or item.explanation
            result = "explained" if item.explanation else "open"
            if tests:
                result = "failed" if _failed(tests) else "passed"
            lines.append(
                f"| {item.section} | {item.level} | {item.text} | {shown} | {result} | {_linux(differs, item)} |"
            )
    return "\n".join(lines) + "\n"


def _linux(differs: Mapping[str, str], item: Item) -> str:
    if item.name not in differs:
        return ""
    return f"differs: {differs[item.name]}" if differs[item.name] else "as demanded"


def _failed(tests: Mapping[str, Outcome]) -> bool:
    return any(outcome.failed for outcome in tests.values())


def rows(text: str) -> dict[tuple[str, str], tuple[set[str], str]]:
    """Tests and result in the document, by (document, demand)."""
    found = {}
    document = ""
    for line in text.splitlines():
        if line.startswith("## "):
            document = line[3:]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if document and line.startswith("| ") and len(cells) == 6 and cells[0] != "Section":
            found[document, cells[2]] = (set(_TEST.findall(cells[3])), cells[4])
    return found
