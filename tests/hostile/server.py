"""The server under attack: ``rdma-nfsd serve``, exporting a directory in memory and one on a disk."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from unittest import mock

import trustme

from tests.support import kdc
from tests.support.ports import free_port

REPO = Path(__file__).parents[2]
HONEST = "127.0.0.1"
MEMORY = 512 << 20
"""Octets: the default of ``limits.memory``."""
_READY = re.compile(r" rdma://127\.0\.0\.1:(\d+) .* tcp://127\.0\.0\.1:(\d+)\b.* mountd tcp://127\.0\.0\.1:(\d+)")

CONFIG = """
server:
  listen: ["rdma://127.0.0.1:0", "tcp://127.0.0.1:0"]
  mountd_port: 0
  nlm_port: {nlm}
  nsm_port: {nsm}
  rpcbind: false
  state_dir: {base}/state
  nfs4: {{grace_time: 0, limits: {{{limits}}}}}
  tls: {{certificate: {base}/server.pem, key: {base}/server.pem}}
  metrics: {{listen: "127.0.0.1:{metrics}"}}
{kerberos}exports:
  - {{path: {memory}, pseudo: /memory, clients: [127.0.0.0/16]{sec}}}
  - {{path: {base}/disk, pseudo: /disk, clients: [127.0.0.0/16]{sec}}}
  - {{path: {memory}/../private, pseudo: /private, squash: none, clients: [127.0.0.1]}}
"""
"""Attackers from 127.0.0.0/16 are users of exported hosts; those from elsewhere are strangers."""
KERBEROS = """\
  kerberos:
    keytab: {keytab}
    users: {{honest@{realm}: daemon, mallory@{realm}: bin}}
"""


@contextmanager
def realm() -> Iterator[kdc.Realm | None]:
    """A realm with keys of a server, and users; this process has the ticket of one who attacks. None: no KDC here."""
    if not kdc.PRESENT:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="hostile-realm-") as directory, kdc.realm(Path(directory)) as made:
        made.keytab("nfs/localhost")
        made.add("honest")
        made.add("mallory")
        with mock.patch.dict(os.environ, made.ticket("mallory")):
            yield made


@dataclass
class Doors:
    """Where the server is to be found."""

    tcp: tuple[str, int] = ("", 0)
    rdma: tuple[str, int] = ("", 0)
    mountd: tuple[str, int] = ("", 0)
    metrics: tuple[str, int] = ("", 0)
    nlm: tuple[str, int] = ("", 0)
    nsm: tuple[str, int] = ("", 0)
    control: str = ""
    """The path of the control socket."""


@dataclass
class Server:
    """Use as a context manager. ``memory``, ``disk`` and ``private`` are the exported directories."""

    limits: str = ""
    """What ``nfs4.limits`` has, in YAML; the rest are defaults."""
    realm: kdc.Realm | None = None
    """Whose users it knows."""
    doors: Doors = field(default_factory=Doors)

    def __enter__(self) -> Server:
        self.base = Path(tempfile.mkdtemp(prefix="hostile-", dir=os.environ.get("RDMA_NFSD_TEST_DIR", "/var/tmp")))
        self._fast = Path(tempfile.mkdtemp(prefix="hostile-", dir="/dev/shm"))
        self.disk, self.memory, self.private = self.base / "disk", self._fast / "memory", self._fast / "private"
        for directory in (self.disk, self.memory, self.private):
            directory.mkdir()
            directory.chmod(0o1777)
        # What uid 0 keeps from everybody else, to be looked at by those who would like to be uid 0.
        for directory in (self.disk, self.memory):
            (directory / "secret").write_bytes(b"root's secret")
            (directory / "secret").chmod(0o600)
            (directory / "closed").mkdir(mode=0o700)
        self._fast.chmod(0o755)
        self.base.chmod(0o755)
        self.log = self.base / "log"
        self._start()
        return self

    def _start(self) -> None:
        nsm, nlm, metrics = free_port(), free_port(), free_port()
        config = self.base / "exports.yaml"
        trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(self.base / "server.pem"))
        kerberos = sec = ""
        if self.realm is not None:
            kerberos = KERBEROS.format(keytab=self.realm.directory / "keytab", realm=self.realm.name)
            sec = ", sec: [krb5p, krb5i, krb5, sys]"
        config.write_text(
            CONFIG.format(
                base=self.base, memory=self.memory, nsm=nsm, nlm=nlm, metrics=metrics, limits=self.limits,
                kerberos=kerberos, sec=sec,
            )
        )  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nfsd.cli", "serve", "--config", str(config)],
            stdout=subprocess.PIPE,
            stderr=self.log.open("ab"),
            text=True,
            env=os.environ | {"PYTHONPATH": str(REPO)},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = _READY.search(line)
        assert found is not None, line + self.log.read_text()
        rdma, tcp, mountd = (("127.0.0.1", int(port)) for port in found.groups())
        control = str(self.base / "state" / "control")
        here = "127.0.0.1"
        self.doors = Doors(tcp, rdma, mountd, (here, metrics), (here, nlm), (here, nsm), control)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.process.send_signal(signal.SIGTERM)
            self.status = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.status = -1
        finally:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            shutil.rmtree(self.base, ignore_errors=True)
            shutil.rmtree(self._fast, ignore_errors=True)
        if kind is None:
            assert self.status == 0, f"the server ended with status {self.status}"
