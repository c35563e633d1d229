"""The commands ls, stat, cat and cp with Linux's own server: the client library with a server of other people."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.kernel_server import KernelServer
from tests.vm.network import Namespace

BIG = 5 * 1024 * 1024 + 4321
WAYS = [pytest.param(*way, id="-".join(way)) for way in itertools.product(("rdma", "tcp"), ("3", "4.1"))]


class Commands:
    """Commands, run beside the guest, and the server they talk to."""

    def __init__(self, network: Namespace, server: KernelServer) -> None:
        self.network = network
        self.server = server

    def run(self, scheme: str, version: str, command: str, *arguments: str | Path, rc: int = 0) -> str:
        """What a command writes; its exit status must be ``rc``. ``URL/NAME`` stands for NAME in the export."""
        url = f"{scheme}://{self.server.address}{self.server.export_name(version).rstrip('/')}"
        argv = [str(argument).replace("URL", url) for argument in arguments]
        done = subprocess.run(
            [*self.network.enter, sys.executable, "-m", "nfsd.cli", command, "--nfs-version", version, *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == rc, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with Namespace() as network, KernelServer(network) as server:
        yield Commands(network, server)


@pytest.mark.parametrize(("scheme", "version"), WAYS)
def test_files_go_there_and_come_back(commands: Commands, tmp_path: Path, scheme: str, version: str) -> None:
    def run(command: str, *arguments: str | Path, rc: int = 0) -> str:
        return commands.run(scheme, version, command, *arguments, rc=rc)

    top = f"tree-{scheme}-{version}"
    tree = tmp_path / top
    (tree / "empty").mkdir(parents=True)
    (tree / "big").write_bytes(os.urandom(BIG))
    (tree / "small").write_text("a few words\n")
    (tree / "small").chmod(0o640)
    os.utime(tree / "small", (1_600_000_000, 1_600_000_000))
    (tree / "link").symlink_to("small")
    run("cp", "-rp", tree, "URL/")
    assert commands.server.sha256(f"{top}/big") == hashlib.sha256((tree / "big").read_bytes()).hexdigest()
    assert run("ls", f"URL/{top}").split() == ["big", "empty", "link", "small"]
    assert run("cat", f"URL/{top}/link") == "a few words\n"
    said = json.loads(run("stat", "--json", f"URL/{top}/small"))
    assert (said["size"], said["mode"]) == (12, 0o640), said
    run("cp", "-rp", f"URL/{top}", tmp_path / "back")
    compared = subprocess.run(["diff", "-r", "--no-dereference", tree, tmp_path / "back"], check=False)
    assert compared.returncode == 0
    status = (tmp_path / "back" / "small").stat()
    assert (status.st_mode & 0o7777, status.st_mtime) == (0o640, 1_600_000_000)
    # The kernel keeps the verifier of an exclusive CREATE or OPEN in the times: they must have been set since.
    run("cp", tree / "small", f"URL/{top}/new")
    assert json.loads(run("stat", "--json", f"URL/{top}/new"))["atime_ns"] > 1_700_000_000 * 10**9
    assert "No such file or directory" in run("cat", f"URL/{top}/nothing", rc=1)


def test_the_kernel_is_content(commands: Commands) -> None:
    commands.server.assert_running()
    assert (
        "rpcrdma" not in commands.server.guest.run("dmesg -l err,warn | grep -i 'bad\\|bug\\|rpcrdma:' || true").output
    )
