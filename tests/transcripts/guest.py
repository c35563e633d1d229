"""``python -m tests.transcripts.guest [NAME]``: write the transcripts anew for which guests are booted.

They are those of ``make demo``. Everything in them must be as it is shown but the numbers, which an emulated guest
makes different each time.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.transcripts import GUEST_BLOCK, REPO, Block, blocks, documents, written

JOB = re.compile(r"^```ini\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MAKE = "make demo DEMO="


def all_blocks() -> dict[str, Block]:
    """By name, those of all documents."""
    return {block.name: block for document in documents() for block in blocks(document, GUEST_BLOCK)}


def play(block: Block) -> str:
    """Run a transcript: its new text. A job file that it uses is the one that the document shows."""
    ((command, _),) = block.steps
    assert command.startswith(_MAKE), command
    (options,) = shlex.split(command.removeprefix(_MAKE))
    with tempfile.TemporaryDirectory(prefix="rdma-nfsd-") as base:
        if shown := JOB.search(block.document.read_text()):
            (Path(base) / "my.job").write_text(shown[1])
        words = [f"{base}/{word}" if word == "my.job" else word for word in shlex.split(options)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.vm.demo", *words], cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return written([(command, done.stdout)])


def essence(text: str) -> str:
    """What must be the same in every run."""
    for pattern, instead in (
        (r"[\d,.]*\d", "N"),
        (r"\((?:tcg|kvm)\)", "(ACCELERATOR)"),
        (r"-{2,}", "--"),
        (r"[ \t]+", " "),
        (r" $", ""),
    ):
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return text


def main() -> None:
    """Run from the command line."""
    found = all_blocks()
    parser = argparse.ArgumentParser(prog="python -m tests.transcripts.guest", description=__doc__)
    parser.add_argument("name", nargs="*", default=list(found), help=f"these only, of {', '.join(found)}")
    for name in parser.parse_args().name:
        block = all_blocks()[name]
        printed = play(block)
        text = block.document.read_text()
        block.document.write_text(text[: block.begin] + printed + text[block.end :])
        print(f"{block.document}: {name} written anew")


if __name__ == "__main__":
    main()
