"""Run attacks and print their table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.hostile.attack import Attack
from tests.hostile.attacks import ATTACKS
from tests.hostile.attacks.gss import GSS
from tests.hostile.run import HEADINGS, Outcome, Stage
from tests.hostile.server import realm
from tests.support.kdc import WITHOUT_KDC, Realm


def table(outcomes: list[Outcome]) -> str:
    """In Markdown."""
    rows = [HEADINGS, ["---"] * len(HEADINGS), *(outcome.row for outcome in outcomes)]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in row) + " |" for row in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each attack")
    parser.add_argument("--only", nargs="*", metavar="NAME", default=[], help=f"some of {', '.join(ATTACKS)}")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table there, behind its last heading")
    parser.add_argument("--together", action="store_true", help="one server for all attacks, not one for each")
    options = parser.parse_args()
    unknown = set(options.only) - set(ATTACKS)
    if unknown:
        parser.error(f"there is no attack {', '.join(sorted(unknown))}")
    chosen = [attack for name, attack in ATTACKS.items() if not options.only or name in options.only]
    with realm() as users:
        if users is None:
            print(f"left out: the attacks on RPCSEC_GSS; {WITHOUT_KDC}", file=sys.stderr)
            chosen = [attack for attack in chosen if attack.layer != GSS]
        outcomes = attacked(chosen, options.seconds, users, together=options.together)
    text = table(outcomes)
    print(text)
    if options.write:
        head, _, _ = options.write.read_text().partition("\n| layer |")
        options.write.write_text(f"{head}\n{text}\n")
    return 1 if any(outcome.faults() for outcome in outcomes) else 0


def attacked(chosen: list[Attack], seconds: float, users: Realm | None, *, together: bool) -> list[Outcome]:
    """What comes of attacks, one after the other; they are told as they are made."""
    outcomes: list[Outcome] = []
    stage: Stage | None = None
    try:
        for number, attack in enumerate(chosen, 1):
            print(f"[{number}/{len(chosen)}] {attack.layer}: {attack.description}", file=sys.stderr, flush=True)
            stage = stage or Stage(users).__enter__()
            outcomes.append(stage.run(attack, seconds))
            outcome = outcomes[-1]
            print("    ", ", ".join(outcome.row[2:10]), outcome.made or "", file=sys.stderr, flush=True)
            for fault in outcome.faults():
                print("    FAULT", fault, file=sys.stderr, flush=True)
            if not together or outcomes[-1].faults() or attack.bound:
                stage, ended = None, stage
                try:
                    ended.__exit__(None, None, None)
                except AssertionError as error:
                    outcomes[-1].found.append(str(error))
    finally:
        if stage is not None:
            stage.__exit__(None, None, None)
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
