"""``rdma-nfsd conformance`` put to this server, to Linux's in a guest, to both over RDMA devices, and to NFS-Ganesha,
for docs/conformance.md:

    python -m tests.vm.four_servers [--ganesha-root DIR] [--only NAME]
    python -m tests.vm.four_servers --other NAME URL

Ganesha is the one that is installed here (nfs-ganesha, nfs-ganesha-vfs), and the one in a Debian of its own
(bench/ganesha.py). ``--other`` asks one that runs already, with MOUNT at its usual port. Whoever is not asked keeps
what was found before. What they answer is in tests/rfc/servers.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.ganesha import Ganesha, in_root, packaged
from tests.peer.version_two_session import server
from tests.vm.build import REPO
from tests.vm.guest import Guest
from tests.vm.kernels import series

FACTS = Path(REPO) / "tests/rfc/servers.json"
DOCUMENT = Path(REPO) / "docs/conformance.md"
BEGIN, END = "<!-- servers asked -->\n", "<!-- end of servers asked -->\n"
_LOOPBACK = 'mount -t tmpfs none /run && ip link set lo up && exec "$@"'
Found = list[dict[str, Any]]
"""Answers, as the command's JSON has them."""


def ask(url: str, mountd: int, *more: str, inside: Sequence[str] = ()) -> Found:
    """Put all questions."""
    argv = [sys.executable, "-m", "nfsd.cli", "conformance", url, "--json", "--mount-port", str(mountd), *more]
    done = subprocess.run([*inside, *argv], cwd=REPO, capture_output=True, text=True, check=False, timeout=1800)
    if done.returncode == 2:
        raise SystemExit(f"{url}: {done.stderr}")
    answers: Found = json.loads(done.stdout)["answers"]
    return answers


def ours() -> dict[str, Found]:
    """This server."""
    with tempfile.TemporaryDirectory() as directory, server(Path(directory)) as ports:
        urls = {"RDMA": f"rdma://127.0.0.1:{ports['two']}/export", "TCP": f"tcp://127.0.0.1:{ports['tcp']}/export"}
        return {f"rdma-nfsd, {way}": ask(url, ports["mountd"]) for way, url in urls.items()}


def _linux_of(guest: Guest) -> str:
    """The name of Linux's server: by the kernel's series, so that the facts of one that Debian has mended since take
    the place of the old ones."""
    return f"Linux {series(guest.run('uname -r', label='uname').output)}"


def linux() -> dict[str, Found]:
    """Linux's, in a guest, over siw and TCP."""
    from tests.vm.kernel_server import KernelServer
    from tests.vm.network import Namespace
    from tests.vm.server import MOUNTD_PORT, RDMA_PORT

    with Namespace() as network, KernelServer(network) as guest:
        name = _linux_of(guest.guest)
        found = {}
        for way, port in (("RDMA", RDMA_PORT), ("TCP", 2049)):
            url = f"{way.lower()}://{guest.address}:{port}/export"
            found[f"{name}, {way}"] = ask(url, MOUNTD_PORT, "--v4-path", "/", inside=network.enter)
        guest.assert_running()
        return found


def on_devices() -> dict[str, Found]:
    """This server and Linux's over RDMA devices: both, and who asks them, are in one guest."""
    from tests.vm.guest_server import DEVICES, GuestServer, address_over
    from tests.vm.kernel_server import START
    from tests.vm.network import Namespace
    from tests.vm.server import MOUNTD_PORT, RDMA_PORT
    from tests.vm.two_servers import KNFSD_MOUNTD_PORT, KNFSD_RDMA_PORT

    listen = [{"url": f"rdma://0.0.0.0:{RDMA_PORT}", "provider": "verbs"}]
    with Namespace() as network, GuestServer(network, listen=listen, server={"mountd_port": MOUNTD_PORT}) as server:
        guest, found = server.guest, {}
        guest.run(START.format(options="sync", mountd=KNFSD_MOUNTD_PORT, rdma=KNFSD_RDMA_PORT), timeout=120)
        theirs = _linux_of(guest)
        for kind in DEVICES:
            address = address_over(guest, kind)
            ways = {
                "rdma-nfsd": (RDMA_PORT, MOUNTD_PORT, ""),
                theirs: (KNFSD_RDMA_PORT, KNFSD_MOUNTD_PORT, "--v4-path /"),
            }
            for name, (port, mountd, more) in ways.items():
                script = (
                    f"cd {REPO} && ulimit -l unlimited && {sys.executable} -m nfsd.cli conformance --provider verbs "
                    f"--json rdma://{address}:{port}/export --mount-port {mountd} {more}; [ $? -lt 2 ]"
                )
                done = guest.run(script, timeout=900, label=f"conformance of {name} over {kind}")
                found[f"{name}, {kind} device"] = json.loads(done.output[done.output.index("{") :])["answers"]
        server.assert_running()
        return found


def ganesha(root: Path | None) -> dict[str, Found]:
    """NFS-Ganesha, over TCP, where the network is loopback alone."""
    inside = ["unshare", "--net", "--mount", "sh", "-c", _LOOPBACK, "sh"]
    argv = [sys.executable, "-m", "tests.vm.four_servers", "--inside", *([str(root)] if root else [])]
    done = subprocess.run([*inside, *argv], cwd=REPO, stdout=subprocess.PIPE, text=True, check=True, timeout=1800)
    return {f"NFS-Ganesha {packaged(root)}, TCP": json.loads(done.stdout)}


def inside_namespace(root: Path | None) -> Found:
    """The same, from there."""
    with tempfile.TemporaryDirectory(prefix="ganesha-", dir="/var/tmp") as directory:
        running = (in_root(root) if root else Ganesha)(Path(directory))
        try:
            running.export.chmod(0o777)
            return ask(f"tcp://127.0.0.1:{running.tcp}/export", running.mountd)
        finally:
            running.stop()


def asked(only: str | None, ganesha_root: Path | None) -> dict[str, Found]:
    """What the servers answer that are started here, or ``only`` some of them."""
    facts: dict[str, Found] = {}
    for name, found in (("ours", ours), ("linux", linux), ("devices", on_devices)):
        if only in (None, name):
            facts |= found()
    if only in (None, "ganesha"):
        for root in dict.fromkeys([None, ganesha_root]):
            facts |= ganesha(root)
    return facts


def table(facts: dict[str, Found]) -> str:
    """For the document: counts, and each server's departures."""
    lines = [
        "| Server | demands | as demanded | not (MUST) | not (SHOULD, MAY) | about what it lacks |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, answers in facts.items():
        wrong = [answer for answer in answers if answer["differs"]]
        must = sum(answer["level"] == "MUST" for answer in wrong)
        absent = sum(bool(answer["absent"]) for answer in answers)
        right = len(answers) - len(wrong) - absent
        lines.append(f"| {name} | {len(answers)} | {right} | {must} | {len(wrong) - must} | {absent} |")
    for name, answers in facts.items():
        wrong = [answer for answer in answers if answer["differs"]]
        if wrong:
            lines += ["", f"### What {name} does otherwise", "", "| Demand | | What it does |", "|---|---|---|"]
        told = set()
        for answer in wrong:
            how = "the same" if answer["question"] in told else _cell(answer["differs"])
            told.add(answer["question"])
            lines.append(f"| {answer['demand']}: {_cell(answer['text'])} | {answer['level']} | {how} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def written(document: str, facts: dict[str, Found]) -> str:
    """The document with these tables."""
    before, _, rest = document.partition(BEGIN)
    _, _, behind = rest.partition(END)
    return f"{before}{BEGIN}{table(facts)}{END}{behind}"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.vm.four_servers", description=__doc__)
    parser.add_argument("--ganesha-root", type=Path, help="a Debian with another Ganesha (python -m bench.ganesha)")
    parser.add_argument("--only", choices=["ours", "linux", "devices", "ganesha"], help="ask this one")
    parser.add_argument("--other", nargs=2, metavar=("NAME", "URL"), help="ask only this server, which runs already")
    parser.add_argument("--inside", nargs="?", const="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        print(json.dumps(inside_namespace(Path(options.inside) if options.inside else None)))
        return
    facts: dict[str, Found] = json.loads(FACTS.read_text()) if FACTS.exists() else {}
    if options.other:
        name, url = options.other
        facts[name] = ask(url, 20048)
    else:
        facts |= asked(options.only, options.ganesha_root)
    for answers in facts.values():
        for answer in answers:
            answer.pop("seconds", None)
            answer.pop("capture", None)
    FACTS.write_text(json.dumps(facts, indent=1) + "\n")
    DOCUMENT.write_text(written(DOCUMENT.read_text(), facts))


if __name__ == "__main__":
    main()
