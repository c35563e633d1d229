"""``python -m tests.vm.call_counts``: how many calls a client sends for everyday work, to this server and to Linux's.

The client is a guest of the chosen kernel (``GUEST=newest``), and so is what knfsd runs in; ``rdma-nfsd`` runs here.
They serve over softiwarp, NFSv4.2, in turns. The client's own statistics (/proc/self/mountstats) count what it has
sent. The work is the same: unpack and build a small source tree, list it twice, ask git for its state twice, and both
again after another client has changed some of it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.vm.guest import Guest
from tests.vm.kernel_server import KernelServer
from tests.vm.mounts import load_siw, mount
from tests.vm.network import Namespace
from tests.vm.server import Server

POINT = "/mnt/counts"
PARTS, FILES = 5, 4
GIT = "HOME=/tmp git -c user.name=n -c user.email=e@x -c gc.auto=0 -c safe.directory='*'"
STEPS = (
    # name, which client, command in the tree
    ("untar", 0, "cd .. && tar xf {archive}"),
    ("build", 0, "make -s"),
    ("ls -lR", 0, "ls -lR >/dev/null"),
    ("ls -lR again", 0, "ls -lR >/dev/null"),
    ("git init, add, commit", 0, f"{GIT} init -q && {GIT} add . && {GIT} commit -qm x"),
    ("git status", 0, f"{GIT} status >/dev/null"),
    ("git status again", 0, f"{GIT} status >/dev/null"),
    (
        "another client changes some",
        1,
        "echo '/* */' >>part1/f1.c && touch part2/new && rm part3/f3.c && mkdir part4/d",
    ),
    ("ls -lR after that", 0, "ls -lR >/dev/null"),
    ("git status after that", 0, f"{GIT} status >/dev/null"),
    ("ls -lR once more", 0, "ls -lR >/dev/null"),
)
"""What is counted, in this order."""


def source_tree() -> bytes:
    """A tar archive of a program of some files in some directories."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:

        def add(name: str, text: str) -> None:
            entry = tarfile.TarInfo(f"tree/{name}")
            entry.size, entry.mtime, entry.mode = len(text), 1700000000, 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))

        add("common.h", "#include <stdio.h>\n")
        objects = []
        for part in range(PARTS):
            add(f"part{part}/part.h", f'#include "../common.h"\n#define PART {part}\n')
            for number in range(FILES):
                body = f'#include "part.h"\nint f{part}_{number}(void) {{ return PART + {number}; }}\n'
                add(f"part{part}/f{number}.c", body)
                objects.append(f"part{part}/f{number}.o")
        add("main.c", '#include "common.h"\nint main(void) { return puts("done") < 0; }\n')
        add("Makefile", f"OBJECTS = main.o {' '.join(objects)}\nprogram: $(OBJECTS)\n\t$(CC) -o $@ $^\n")
    return made.getvalue()


def sent(client: Guest) -> Counter[str]:
    """The calls that a client has sent for its mount, by operation."""
    text = client.run(f"sync -f {POINT}; cat /proc/self/mountstats", label="mountstats").output
    _, _, ours = text.partition(f"mounted on {POINT} ")
    ours = ours.partition("\ndevice ")[0].partition("per-op statistics")[2]
    return Counter({name: int(count) for name, count in re.findall(r"^\s*([A-Z0-9_]+): (\d+)", ours, re.M)})


def measure(clients: Sequence[Guest], archive: str) -> dict[str, dict[str, int]]:
    """The calls of each step, of the client that takes it."""
    found: dict[str, dict[str, int]] = {}
    for name, which, command in STEPS:
        client = clients[which]
        before = sent(client)
        place = f"{POINT}/tree" if name != "untar" else f"{POINT}"
        script = command.format(archive=archive).removeprefix("cd .. && ")
        client.run(f"cd {place} && {script}", timeout=600, label=name)
        found[name] = {op: count for op, count in sorted((sent(client) - before).items()) if count}
    return found


def table(found: dict[str, dict[str, dict[str, int]]]) -> str:
    """All steps, with the operations that differ."""
    ours, theirs = found["rdma-nfsd"], found["knfsd"]
    lines = ["| | rdma-nfsd | knfsd | of these, where they differ |", "|---|---:|---:|---|"]
    for name, *_ in STEPS:
        one, other = ours[name], theirs[name]
        differ = [
            f"{op} {one.get(op, 0)} : {other.get(op, 0)}"
            for op in sorted({*one, *other})
            if one.get(op, 0) != other.get(op, 0)
        ]
        lines.append(f"| {name} | {sum(one.values())} | {sum(other.values())} | {', '.join(differ)} |")
    lines.append(f"| all | {_all(ours)} | {_all(theirs)} | |")
    return "\n".join(lines)


def _all(steps: dict[str, dict[str, int]]) -> int:
    return sum(sum(counts.values()) for counts in steps.values())


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m tests.vm.call_counts", description=__doc__)
    parser.add_argument("--json", type=Path, help="write all counts there")
    parser.add_argument("--version", default="4.2")
    parser.add_argument("--metrics", type=Path, help="write what our server tells of itself there, after its turn")
    options = parser.parse_args()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="counts-", dir="/tmp")))
        (place / "tree.tar").write_bytes(source_tree())
        network = stack.enter_context(Namespace())
        metrics = f"{network.listen_address}:9587"
        server = stack.enter_context(Server(place / "server", network, server={"metrics": {"listen": metrics}}))
        kernel = stack.enter_context(KernelServer(network))
        clients = [
            stack.enter_context(Guest(name, network, memory=1536, shares=[place], time_limit=3600))
            for name in ("one", "two")
        ]
        found = {}
        for client in clients:
            load_siw(client)
        for name, served in (("rdma-nfsd", server), ("knfsd", kernel)):
            for client in clients:
                mount(client, served, options.version, POINT)
            found[name] = measure(clients, str(place / "tree.tar"))
            if name == "rdma-nfsd" and options.metrics:
                asking = f"import urllib.request as u; print(u.urlopen('http://{metrics}/metrics').read().decode())"
                os.system(" ".join([*network.enter, sys.executable, "-c", f'"{asking}"', ">", str(options.metrics)]))
            for client in clients:
                client.run(f"umount {POINT}", timeout=60)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
