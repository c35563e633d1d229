"""Where the commands of transcripts run: a directory with what they expect, a server if it is to be there already.

The documents' commands use the usual ports, which others may use here. So they run in a network namespace of the
stage's own, in which there is a loopback interface and nobody else. Making one takes root.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from nfsd.protocol.nfs3 import nfs_fh3
from rpcrdma.memory import Pool
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp.provider import SoftIwarp
from tests.nfs3_client import Nfs3Client
from tests.peer.version_two_session import server as server_of_both
from tests.support import kdc
from tests.support.captures import capturing
from tests.support.installed import REPO, environment, own_command
from tests.support.nfs_work import work_over_rdma, work_over_tcp

PATIENCE = 120.0


class Impossible(Exception):
    """Something that a stage is made of is not to be had here: a network namespace, a KDC."""


@contextmanager
def namespace(mounts: str = "true") -> Iterator[list[str]]:
    """A network and mounts of its own, which the shell script ``mounts`` may change; gives the words that run a command
    there. Raises :class:`Impossible`."""
    script = f"{mounts} && ip link set lo up && echo up && exec sleep infinity"
    try:
        holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError as error:
        raise Impossible(f"a network namespace takes root: {error}") from None
    try:
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != "up\n":
            raise Impossible(f"a network namespace takes root: {holder.stderr.read().strip()}")
        yield ["nsenter", f"--target={holder.pid}", "--net", "--mount", "--wd=.", "--"]
    finally:
        _end(holder)


class Stage:
    """A directory in which commands run, and the servers that they reach."""

    def __init__(self, base: Path, ends: ExitStack, *, mounts: str = "true", **more: str) -> None:
        """``mounts``: as :func:`namespace` has it. ``more``: variables of the commands' environment."""
        self.home = base / "home"
        self.home.mkdir()
        self.ends = ends
        self.inside = ends.enter_context(namespace(mounts))
        """Words that run a command where those of transcripts run."""
        own_command(base)
        put(base / "python", f'#!/bin/sh\nPYTHONPATH={REPO} exec {sys.executable} "$@"\n')
        (base / "python").chmod(0o755)
        path = f"{base}:{environment()['PATH']}"
        fixed = {"PATH": path, "COLUMNS": "100", "TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
        self.environment = {**environment(), **fixed, **more}

    def run(self, command: str) -> str:
        """Run one command of a transcript; what it prints. ``rdma-nfsd serve`` goes on until the stage ends: it has
        printed its first line then."""
        if re.match(r"rdma-nfsd serve\b", command):
            return self.serve(command)
        done = subprocess.run(
            [*self.inside, "bash", "-c", command], cwd=self.home, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
        return done.stdout + (f"[exit status {done.returncode}]\n" if done.returncode else "")

    def begin(self, command: str) -> None:
        """Start a command that goes on until the stage ends; what it prints is lost."""
        begun = subprocess.Popen(
            [*self.inside, "bash", "-c", f"exec {command}"], cwd=self.home, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.ends.callback(_end, begun)
        self.ends.callback(begun.kill)  # it would wait for the server once more

    def serve(self, command: str) -> str:
        """Start a server; its ready line. Its log is ``log`` above the directory."""
        if "--config" not in command:
            command += " --state-dir ../state"  # by default it is the host's
        log = (self.home.parent / "log").open("ab")
        server = subprocess.Popen(
            [*self.inside, "bash", "-c", f"exec {command}"], cwd=self.home, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        self.ends.callback(_end, server)
        assert server.stdout is not None
        ready = server.stdout.readline()
        assert ready.startswith("rdma-nfsd ready: "), (self.home.parent / "log").read_text()
        return ready


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def put(path: Path, data: str | bytes, when: int | None = None) -> None:
    """Make a file, and the directories above it; ``when`` in seconds since the epoch."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    path.chmod(0o644)
    if when is not None:
        os.utime(path, (when, when))


def hello(stage: Stage) -> None:
    """A directory ``data`` with a file, and no server yet."""
    put(stage.home / "data/hello.txt", "Hello over NFS.\n")


def files(stage: Stage) -> None:
    """A server of some files, and a directory beside it for copies of them."""
    data = stage.home.parent / "data"
    put(data / "results/monday", "17 42 4711\n", 1740787200)
    put(data / "results/tuesday", "3 1\n")
    put(data / "disk.img", bytes(range(256)) * (20 << 12))
    (data / "latest").symlink_to("results/tuesday")
    stage.serve("rdma-nfsd serve ../data --squash none")


CONFIGURATION = """\
server:
  listen: ["rdma://127.0.0.1:20049", "tcp://127.0.0.1:2049"]
  state_dir: state
exports:
"""


def configured(stage: Stage) -> None:
    """A server of three exports by its configuration; the file has changed since."""
    for name in ("data", "old", "projects"):
        (stage.home / name).mkdir()
    file = stage.home / "exports.yaml"
    before = "  - {path: data, pseudo: /data}\n  - {path: old, pseudo: /old}\n"
    after = "  - {path: data, pseudo: /data, access: ro}\n  - {path: projects, pseudo: /projects}\n"
    file.write_text(CONFIGURATION + before)
    stage.serve("rdma-nfsd serve --config exports.yaml")
    file.write_text(CONFIGURATION.replace("state_dir", "mountd_port: 20050\n  state_dir") + after)


def refusing(stage: Stage) -> None:
    """A server whose only export is for others, with its log at hand."""
    put(stage.home / "data/hello.txt", "Hello over NFS.\n")
    (stage.home / "exports.yaml").write_text(
        CONFIGURATION + "  - path: data\n    pseudo: /data\n    clients: [192.0.2.0/24]\n"
    )
    (stage.home / "log").symlink_to(stage.home.parent / "log")
    stage.serve("rdma-nfsd serve --config exports.yaml")


def slowed(stage: Stage) -> None:
    """A server with a rate and a weight, and a client that is held back."""
    put(stage.home.parent / "data/disk.img", bytes(8 << 20))
    (stage.home / "exports.yaml").write_text(
        CONFIGURATION + "  - path: ../data\n    squash: none\n    clients:\n"
        "      - {host: 127.0.0.1, rate: {octets: 4KiB}, weight: 4}\n"
    )
    stage.serve("rdma-nfsd serve --config exports.yaml")
    stage.begin("rdma-nfsd cat rdma://127.0.0.1/data/disk.img")
    deadline = time.monotonic() + PATIENCE
    while "faster than their rates" not in stage.run("rdma-nfsd stats --config exports.yaml"):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def captured(stage: Stage) -> None:
    """Captures of NFSv3 and NFSv4.1: ``trouble.pcapng`` over RDMA (version One) and TCP, ``two.pcapng`` over RDMA in
    version Two."""

    async def mounted(port: int) -> nfs_fh3:
        async with await Nfs3Client.connect("127.0.0.1", port) as mountd:
            return await mountd.mount("/export")

    async def work(ports: dict[str, int], root: nfs_fh3, version: int) -> None:
        pool = Pool(256 << 20)
        provider = SoftIwarp(pool)
        await work_over_rdma(provider, pool, ListenAddress("127.0.0.1", ports["two"]), root, version)
        if version == 1:
            await work_over_tcp("127.0.0.1", ports["tcp"], root)
        await provider.close()

    for version, name in ((1, "trouble"), (2, "two")):
        base = stage.home.parent / name
        base.mkdir()
        with server_of_both(base) as ports:
            root = asyncio.run(mounted(ports["mountd"]))
            with capturing(base, stage.home / f"{name}.pcapng"):
                asyncio.run(work(ports, root, version))


def several(stage: Stage) -> None:
    """A server of three processes, all of which serve."""
    (stage.home / "data").mkdir()
    text = CONFIGURATION.replace("state_dir", "processes: 3\n  state_dir") + "  - {path: data, pseudo: /data}\n"
    (stage.home / "exports.yaml").write_text(text)
    stage.serve("rdma-nfsd serve --config exports.yaml")


def tls(stage: Stage) -> None:
    """Two directories, and nothing of TLS yet."""
    for name in ("data", "laptops"):
        put(stage.home / f"{name}/hello.txt", f"Hello over TLS, from {name}.\n")


KNOWN = {
    "hosts": "127.0.0.1 localhost files.example.org\n",
    "passwd": "alice:x:4242:4242::/:/bin/sh\n",
    "group": "alice:x:4242:\n",
}
"""What files of this name below /etc have besides."""


def kerberos(stage: Stage) -> None:
    """A KDC of EXAMPLE.ORG with no service yet, the host ``files.example.org``, and alice, who has an account and a
    directory; only she may read it."""
    if not kdc.PRESENT:
        raise Impossible(kdc.WITHOUT_KDC)
    base = stage.home.parent
    for name, more in KNOWN.items():
        put(base / name, more + Path("/etc", name).read_text())
        stage.run(f"mount --bind ../{name} /etc/{name}")
    realm = stage.ends.enter_context(kdc.realm(base / "realm", port=88, enter=stage.inside))
    realm.add("alice")
    stage.environment |= realm.environment | {"KRB5CCNAME": "FILE:tickets"}
    put(stage.home / "data/hello.txt", "Hello over NFS, Alice.\n")
    for path, mode in ((stage.home / "data", 0o700), (stage.home / "data/hello.txt", 0o600)):
        os.chown(path, 4242, 4242)
        path.chmod(mode)


STAGES: dict[str, Callable[[Stage], None]] = {
    "hello": hello,
    "files": files,
    "configured": configured,
    "refusing": refusing,
    "slowed": slowed,
    "captured": captured,
    "several": several,
    "tls": tls,
    "kerberos": kerberos,
}


@contextmanager
def stage(name: str, base: Path) -> Iterator[Stage]:
    """A stage in an empty directory; its servers end with it."""
    with ExitStack() as ends:
        made = Stage(base, ends)
        STAGES[name](made)
        yield made
