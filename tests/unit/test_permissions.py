"""At the start the server says which permissions it lacks, with the remedy, and never guesses."""

import asyncio
import errno
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nfsd.protocol.nfs3 import READ3args
from nfsd.vfs.syscalls import (
    EXT_MAGIC,
    SYS_CACHESTAT,
    SYS_FANOTIFY_INIT,
    SYS_FANOTIFY_MARK,
    SYS_QUOTACTL_FD,
    XFS_MAGIC,
)
from tests.nfs3_client import Nfs3Client
from tests.support.ports import free_port

REPO = Path(__file__).parents[2]
FORBIDDEN = (SYS_FANOTIFY_INIT, SYS_FANOTIFY_MARK, SYS_QUOTACTL_FD, SYS_CACHESTAT)
KNOWN = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2]) >= (6, 5)
SERVE = """\
import sys
from tests.support.seccomp import refuse
for number in sys.argv[3:]:
    refuse(int(number), code=int(sys.argv[2]))
from nfsd.cli import main
sys.exit(main(["serve", "--config", sys.argv[1]]))
"""
CONFIG = """\
server:
  listen: ["tcp://127.0.0.1:0"]
  mountd_port: 0
  rpcbind: false
  nlm: false
  metrics: {listen: "127.0.0.1:%d"}
exports:
  - {path: ./export, pseudo: /export, squash: none}
"""


@pytest.fixture
def port() -> int:
    """One that is free now."""
    return free_port()


class Served:
    """A running server: its ports, and what it has written to its log so far."""

    def __init__(self, process: subprocess.Popen[str], log: Path, metrics: int) -> None:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("rdma-nfsd ready:"), log.read_text()
        words = ready.split()
        ports = (words[2], words[words.index("mountd") + 1])
        self.nfs, self.mountd = (int(word.rpartition(":")[2]) for word in ports)
        self._log, self._metrics = log, metrics

    def log(self) -> str:
        return self._log.read_text()

    def counter(self, pattern: str) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics}/metrics", timeout=30) as answer:
            found = re.search(rf"^rdma_nfsd_{pattern} (\S+)$", answer.read().decode(), re.MULTILINE)
        return int(float(found[1])) if found else 0

    async def read(self, name: bytes, times: int) -> None:
        async with await Nfs3Client.connect("127.0.0.1", self.mountd) as mountd:
            root = await mountd.mount("/export")
        async with await Nfs3Client.connect("127.0.0.1", self.nfs) as client:
            file = await client.lookup(root, name)
            for _ in range(times):
                result = await client.nfs("READ", READ3args(file, 0, 4096))
                assert bytes(result.resok.data) == b"x" * 4096


@contextmanager
def serving(directory: Path, port: int, error: int, *forbidden: int) -> Iterator[Served]:
    """``rdma-nfsd serve`` with these system calls forbidden."""
    (directory / "export").mkdir()
    (directory / "export" / "file").write_bytes(b"x" * 4096)
    (directory / "exports.yaml").write_text(CONFIG % port)
    log = directory / "log"
    command = [sys.executable, "-c", SERVE, str(directory / "exports.yaml"), str(error), *map(str, forbidden)]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            cwd=REPO,
            env={**os.environ, "PYTHONPATH": str(REPO)},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield Served(process, log, port)
        assert process.poll() is None, log.read_text()
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_what_a_filter_forbids_is_said_once_at_the_start(tmp_path: Path, port: int) -> None:
    with serving(tmp_path, port, errno.EPERM, *FORBIDDEN) as server:
        asyncio.run(server.read(b"file", 3))
        for what, calls in (
            ("delegations are not recalled when local processes change", "fanotify_init fanotify_mark"),
            ("clients see no quotas", "quotactl_fd"),
            ("what is in memory is not known", "cachestat"),
        ):
            lines = [line for line in server.log().splitlines() if what in line]
            assert len(lines) == 1
            assert "WARNING" in lines[0]
            assert f"Operation not permitted; add {calls} to the unit's SystemCallFilter=" in lines[0]


def test_what_an_older_kernel_lacks_is_not_blamed_on_a_filter(tmp_path: Path, port: int) -> None:
    with serving(tmp_path, port, errno.ENOSYS, SYS_CACHESTAT) as server:
        (line,) = [line for line in server.log().splitlines() if "what is in memory is not known" in line]
        assert "Function not implemented; it takes Linux 6.5" in line


def test_who_may_do_everything_is_told_nothing(tmp_path: Path, port: int) -> None:
    if os.geteuid() or not KNOWN:
        pytest.skip("this user, or this kernel, lacks something")
    with serving(tmp_path, port, 0) as server:
        assert "SystemCallFilter" not in server.log()
        assert "CAP_" not in server.log()


@pytest.mark.skipif(not KNOWN, reason="the kernel has no cachestat(2)")
@pytest.mark.parametrize("denied", [False, True])
def test_reads_are_for_the_workers_where_nobody_says_what_is_in_memory(tmp_path: Path, port: int, denied: bool) -> None:
    """A refusal was once taken for "in memory": then the loop read itself, and might have waited for a disk."""
    kind = subprocess.run(["stat", "-f", "-c", "%t", tmp_path], capture_output=True, text=True, check=True).stdout
    if int(kind, 16) not in (EXT_MAGIC, XFS_MAGIC):
        pytest.skip("the directory of the tests is not on ext4 or XFS")
    with serving(tmp_path, port, errno.EPERM, *([SYS_CACHESTAT] if denied else [])) as server:
        asyncio.run(server.read(b"file", 50))
        native = server.counter('rpc_native_total{procedure="READ",program="nfs",version="3"}')
        jobs = server.counter('workers{kind="completed"}')
        # Natively either way: on the loop at once, or when a worker has brought it.
        assert native > 0
        assert (jobs >= 50) is denied, jobs
