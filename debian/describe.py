"""Make man pages of the commands' --help, by help2man: ``describe.py VERSION DIRECTORY``."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from nfsd.command_line import build_parser
from nfsd.commands.arguments import CLIENT_COMMANDS

FOR_ALL = {*CLIENT_COMMANDS, "decode"}
"""Commands of section 1; the others are for administrators."""
PROGRAM = [
    sys.executable,
    "-P",
    "-c",
    "import sys; from nfsd.cli import main; sys.argv[0] = 'rdma-nfsd'; sys.exit(main())",
]


def page(directory: Path, version: str, command: str, brief: str) -> Path:
    """Write one page; the command is empty for that of the whole program."""
    name, section = "-".join(["rdma-nfsd", *command.split()]), "1" if command in FOR_ALL else "8"
    wrapper = directory / f"{name}.sh"
    words = " ".join(f"'{word}'" if '"' not in word and "'" not in word else f'"{word}"' for word in PROGRAM)
    wrapper.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    wrapper.chmod(0o755)
    others = "See also rdma\\-nfsd(8)." if command else "Each command has a page of its own: rdma\\-nfsd\\-serve(8)."
    extra = directory / "extra"
    extra.write_text(f"[see also]\n{others}\nAll of the documentation is in /usr/share/doc/rdma\\-nfsd.\n")
    target = directory / f"{name}.{section}"
    options = [
        f"--section={section}",
        f"--name={brief}",
        f"--version-string={version}",
        "--no-info",
        f"--help-option={command} --help".replace("= ", "="),
    ]
    # Lines that argparse folds at hyphens would be put together without them.
    environment = {**os.environ, "COLUMNS": "500"}
    subprocess.run(
        ["help2man", *options, f"--include={extra}", f"--output={target}", "--source=rdma-nfsd", str(wrapper)],
        env=environment,
        check=True,
    )
    # The wrapper's name is not the command's.
    target.write_text(target.read_text().replace(f"{name}.sh", name).replace(f"{name.upper()}.SH", name.upper()))
    wrapper.unlink()
    extra.unlink()
    return target


def main() -> None:
    """Entry point."""
    version, directory = sys.argv[1], Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    page(directory, version, "", "NFS server in user space, over RDMA and TCP")
    parser = build_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for choice in commands._choices_actions:
        page(directory, version, choice.dest, choice.help or choice.dest)


main()
