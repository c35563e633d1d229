"""``python -m tests.transcripts [DOCUMENT…]``: write the documents' transcripts again."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from tests.transcripts import Block, blocks, documents, programs, replace, written
from tests.transcripts.stages import put, stage

TSHARK = "4.0"
"""The version of Wireshark's dissectors whose words the documents show; others have others."""


def other_tshark() -> bool:
    """Whether the host has another version of it. Raises FileNotFoundError where it has none."""
    done = subprocess.run(["tshark", "--version"], capture_output=True, text=True, check=True)
    return f" {TSHARK}." not in done.stdout.partition("\n")[0]


def play(document: Path) -> list[tuple[Block, str]]:
    """Run the transcripts of a document: each with its new text. Those of tshark only where it is that version."""
    found = [
        block
        for block in blocks(document)
        if not (any(command.startswith("tshark ") for command, _ in block.steps) and other_tshark())
    ]
    played = []
    for name in dict.fromkeys(block.name for block in found):
        with tempfile.TemporaryDirectory(prefix="rdma-nfsd-") as base, stage(name, Path(base)) as here:
            for program, text in programs(document).items():
                put(here.home / program, text)
            played += [
                (block, written([(command, here.run(command)) for command, _ in block.steps]))
                for block in found
                if block.name == name
            ]
    return played


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.transcripts", description=__doc__)
    parser.add_argument("document", nargs="*", type=Path, default=documents(), help="these only (default: all)")
    for document in parser.parse_args().document:
        if replace(document, play(document)):
            print(f"{document}: written anew")


if __name__ == "__main__":
    main()
