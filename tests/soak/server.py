"""The server under fire, ``rdma-nfsd serve`` on fixed ports, and its disk, whose power can be cut.

The disk is an ext4 in a file. A power cut is EXT4_IOC_SHUTDOWN without the log's flush, as xfstests make one: what the
file system had not yet given to its disk is gone, and the next mount replays the journal. Nobody but a server that
stands still is there at that moment, so nothing is acknowledged behind it. Without root, the server has a directory:
there is no power to cut then, and the disk neither stalls nor fills.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trustme

from tests.hostile.server import REPO
from tests.soak.nursery import Forked, Nursery
from tests.support.ports import free_port

HOST = "127.0.0.1"
LEASE = 10
"""Seconds; also the grace period."""
_SIZE = 192 << 20
_SHUTDOWN, _NO_LOG_FLUSH = 0x8004587D, 2
_FREEZE, _THAW = 0xC0045877, 0xC0045878
_NEW_NAMESPACE, _RECURSIVE, _PRIVATE = 0x20000, 0x4000, 0x40000
"""CLONE_NEWNS; MS_REC, MS_PRIVATE."""

CONFIG = """
server:
  listen: ["rdma://127.0.0.1:{rdma}", "tcp://127.0.0.1:{tcp}"]
  mountd_port: {mountd}
  nlm_port: {nlm}
  nsm_port: {nsm}
  rpcbind: false
  state_dir: {base}/state
  nfs4: {{lease_time: {lease}, grace_time: {lease}}}
{tls}exports:
  - {{path: {base}/export, pseudo: /soak, squash: none, clients: [127.0.0.0/8]}}
"""


def _apart() -> None:
    """A mount namespace for this process: a program elsewhere that enters one of its own would take our mount along,
    and the file system, which has lost its power, would stay. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NAMESPACE) or libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None):
        raise OSError(ctypes.get_errno(), "no mount namespace")


class Disk:
    """An ext4 of its own, mounted; or a plain directory for who is not root."""

    def __init__(self, base: Path) -> None:
        self.path = base / "disk"
        self._image = base / "image"
        self.path.mkdir(0o755)
        self.real = os.geteuid() == 0
        if self.real:
            with self._image.open("wb") as image:
                image.truncate(_SIZE)
            subprocess.run(["mkfs.ext4", "-q", "-F", str(self._image)], check=True)
            try:
                _apart()
                self._mount()
            except (OSError, subprocess.CalledProcessError):
                self.real = False  # root of a container that may not mount
        for name in ("export", "state"):
            (self.path / name).mkdir(0o755)  # whatever the umask of the tests is by now
        os.sync()

    def _mount(self) -> None:
        # Nothing reaches the disk because some seconds have passed: it must have been asked for.
        subprocess.run(
            ["mount", "-o", "loop,commit=300", str(self._image), str(self.path)], check=True, capture_output=True
        )

    def _control(self, request: int, argument: int = 0) -> None:
        directory = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(directory, request, struct.pack("I", argument))
        finally:
            os.close(directory)

    def freeze(self) -> None:
        """Let every change wait."""
        self._control(_FREEZE)

    def thaw(self) -> None:
        """Let them go on."""
        self._control(_THAW)

    def fill(self) -> None:
        """Leave no room."""
        file = os.open(self.path / "filler", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            there = os.statvfs(self.path)
            size, step = 0, there.f_bfree * there.f_frsize
            while step > 4096:
                try:
                    os.posix_fallocate(file, size, step)
                    size += step
                except OSError:
                    step //= 2
        finally:
            os.close(file)

    def clear(self) -> None:
        """Give the room back."""
        (self.path / "filler").unlink(missing_ok=True)

    def lose_power(self) -> None:
        """Nothing that is not on the disk now will be."""
        self._control(_SHUTDOWN, _NO_LOG_FLUSH)

    def back(self) -> None:
        """After a power cut, when nobody has a file open there any more."""
        self._unmount()
        self._mount()
        self.clear()

    def _unmount(self) -> None:
        for _ in range(100):  # the kernel closes the files of a process that was killed behind its end
            if subprocess.run(["umount", str(self.path)], capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.1)
        raise OSError(f"{self.path} cannot be unmounted")

    def close(self) -> None:
        """Unmount it."""
        if self.real:
            self._unmount()


@dataclass(frozen=True)
class Use:
    """What the process has at one moment."""

    at: float
    """CLOCK_MONOTONIC."""
    life: int
    """How many times the server had been started."""
    resident: int
    """Octets."""
    descriptors: int


class Server:
    """Use as a context manager."""

    def __init__(
        self, program: Sequence[str] = ("nfsd.cli",), environment: dict[str, str] | None = None, *,
        forked: bool = False, secured: trustme.CA | None = None,
    ) -> None:  # fmt: skip
        """``program``: the module that is run, and what stands before ``serve``; another one for a server with a
        seeded fault. ``forked``: it is not imported anew for each start. ``secured``: who certifies it for TLS; then
        ``roots.pem`` in ``base`` has the roots."""
        self._program = program
        self._environment = {"PYTHONPATH": str(REPO), **(environment or {})}
        self.tcp, self.rdma, self.mountd, nlm, nsm = (free_port() for _ in range(5))
        self.base = Path(tempfile.mkdtemp(prefix="soak-", dir=os.environ.get("RDMA_NFSD_TEST_DIR", "/var/tmp")))
        self.disk = Disk(self.base)
        self._config = self.base / "exports.yaml"
        self._config.write_text(
            CONFIG.format(
                base=self.disk.path, tcp=self.tcp, rdma=self.rdma, mountd=self.mountd, nlm=nlm, lease=LEASE,
                nsm=nsm, tls="" if secured is None else self._certificate(secured),
            )
        )  # fmt: skip
        self.log = self.base / "log"
        self.lives = 0
        self.process: subprocess.Popen[str] | Forked | None = None
        self._nursery = Nursery(self._environment) if forked else None

    def _certificate(self, authority: trustme.CA) -> str:
        """Write one, and the roots; what the configuration says of it."""
        made = authority.issue_cert(HOST)
        authority.cert_pem.write_to_path(str(self.base / "roots.pem"))
        made.cert_chain_pems[0].write_to_path(str(self.base / "server.pem"))
        made.private_key_pem.write_to_path(str(self.base / "server.key"))
        return f"  tls: {{certificate: {self.base}/server.pem, key: {self.base}/server.key}}\n"

    def __enter__(self) -> Server:
        self.start()
        return self

    def begin(self) -> None:
        """Start it, and wait for nothing."""
        arguments = ["serve", "--config", str(self._config)]
        if self._nursery is not None:
            self.process = self._nursery.start(arguments, str(self.log))
        else:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", *self._program, *arguments],
                    stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | self._environment,
                )  # fmt: skip
        self.lives += 1

    def start(self) -> None:
        """Returns when it serves."""
        self.begin()
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("rdma-nfsd ready"):
            raise RuntimeError(f"the server does not start: {line}{self.log.read_text()[-4000:]}")

    def signal(self, number: int) -> None:
        """Send one."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        if isinstance(self.process, subprocess.Popen):
            assert self.process.stdout is not None
            self.process.stdout.close()

    def cut_power(self) -> None:
        """Of the server and its disk."""
        self.signal(signal.SIGSTOP)
        self._stands_still()
        self.disk.lose_power()
        self.kill()
        self.disk.back()

    def _stands_still(self) -> None:
        """Wait until no thread runs any more: SIGSTOP reaches each when it comes out of the kernel."""
        assert self.process is not None
        tasks = Path("/proc") / str(self.process.pid) / "task"
        while any((task / "stat").read_text().rpartition(")")[2].split()[0] != "T" for task in tasks.iterdir()):
            time.sleep(0.001)

    def ask(self, command: str, **fields: object) -> dict[str, object]:
        """A request to the control socket; its answer."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(20)
            sock.connect(str(self.disk.path / "state" / "control"))
            sock.sendall(json.dumps({"command": command, **fields}).encode() + b"\n")
            with sock.makefile() as lines:
                found: dict[str, object] = json.loads(lines.readline() or "{}")
        return found

    @property
    def alive(self) -> bool:
        """Whether the process is there."""
        return self.process is not None and self.process.poll() is None

    def use(self) -> Use | None:
        """What it has now; None while it is not there."""
        if not self.alive:
            return None
        assert self.process is not None
        proc = Path("/proc") / str(self.process.pid)
        try:
            resident = re.search(r"VmRSS:\s+(\d+)", (proc / "status").read_text())
            descriptors = len(os.listdir(proc / "fd"))
        except OSError:
            return None
        return Use(time.monotonic(), self.lives, int(resident[1]) << 10, descriptors) if resident else None

    def __exit__(self, *_: object) -> None:
        try:
            if self.alive:
                self.signal(signal.SIGTERM)
                assert self.process is not None
                self.process.wait(60)
        finally:
            if self.process is not None:
                self.process.kill()
                self.process.wait()
            if self._nursery is not None:
                self._nursery.close()
            self.disk.close()
            shutil.rmtree(self.base, ignore_errors=True)
