"""``python -m tests.transcripts.guest [NAME]``: write the transcripts anew for which guests are booted.

They are those of ``make demo``, commands in a guest that has software RDMA devices, and commands of a server's
administrator, who has a Linux client at hand: ``client COMMAND`` runs one in a guest. Everything in them must be as it
is shown but numbers and addresses, which a guest makes different each time.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.transcripts import GUEST_BLOCK, REPO, Block, blocks, documents, written
from tests.vm.guest import Guest
from tests.vm.guest_server import load_devices
from tests.vm.mounts import load_siw
from tests.vm.network import namespace_or_slirp
from tests.vm.server import Server, environment
from tests.vm.server import command as command_here

JOB = re.compile(r"^```ini\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MAKE = "make demo DEMO="
_CLIENT = "client "
_OTHERS = """\
server:
  listen: ['rdma://{address}:20049', 'tcp://{address}:2049']
  mountd_port: 20048
  state_dir: state
exports:
  - path: export
    pseudo: /data
    clients: [192.0.2.0/24]
"""


def all_blocks() -> dict[str, Block]:
    """By name, those of all documents."""
    return {block.name: block for document in documents() for block in blocks(document, GUEST_BLOCK)}


def play(block: Block) -> str:
    """Run a transcript: its new text."""
    commands = [command for command, _ in block.steps]
    if commands[0].startswith(_CLIENT):
        return with_client(commands)
    if not commands[0].startswith(_MAKE):
        return with_devices(commands)
    ((command, _),) = block.steps
    return demonstrate(block, command)


def with_devices(commands: Sequence[str]) -> str:
    """Run commands in a guest that has siw0 on eth0 and rxe0 on eth1."""
    shell = f"cd /; export PYTHONPATH={shlex.quote(str(REPO))}; ulimit -l unlimited; "
    shell += f'rdma-nfsd() {{ {shlex.join(command_here())} "$@"; }}; '
    done = []
    with namespace_or_slirp() as network, Guest("devices", network, memory=1024, interfaces=2, quiet=True) as guest:
        load_devices(guest)
        for command in commands:
            printed = guest.run(shell + command, timeout=120, check=False, label=command).output
            done.append((command, printed.rstrip() + "\n"))
    return written(done)


def with_client(commands: Sequence[str]) -> str:
    """Run commands beside a server whose only export is for others, and on a client that has a software RDMA device."""
    shell = f'rdma-nfsd() {{ {shlex.join(command_here())} "$@"; }}; '
    done = []
    with tempfile.TemporaryDirectory(prefix="rdma-nfsd-", dir="/var/tmp") as base, namespace_or_slirp() as network:
        server = Server(Path(base), network)
        (server.export / "hello.txt").write_text("Hello over RDMA.\n")
        server.config.write_text(_OTHERS.format(address=network.listen_address))
        (Path(base) / "log").symlink_to(server.log)
        with server, Guest("refused", network, quiet=True) as guest:
            load_siw(guest)
            for command in commands:
                if command.startswith(_CLIENT):
                    found = guest.run(command.removeprefix(_CLIENT), timeout=120, check=False, label=command)
                    status, printed = found.rc, found.output
                else:
                    here = subprocess.run(
                        ["bash", "-c", shell + command], cwd=base, env=environment(), stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT, text=True, check=False,
                    )  # fmt: skip
                    status, printed = here.returncode, here.stdout.replace(f"{base}/", "")
                end = f"[exit status {status}]\n" if status else ""
                done.append((command, (printed.rstrip() + "\n" if printed.strip() else "") + end))
    return written(done)


def demonstrate(block: Block, command: str) -> str:
    """Run the demonstration. A job file that it uses is the one that the document shows."""
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
        (r"\b[0-9a-f]{1,4}(?::{1,2}[0-9a-f]{1,4}){2,}\b", "ADDRESS"),
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
