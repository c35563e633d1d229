"""The server under test: ``rdma-nfsd serve`` as a process of its own, on a guest network.

Owns its configuration file, its state directory and its log; can be stopped (SIGTERM), killed (SIGKILL) and started
again on the same state. The process dies with the test run.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.vm.build import REPO
from tests.vm.network import Network

RDMA_PORT = 20049
TCP_PORT = 2049
MOUNTD_PORT = 20048


class ServerError(AssertionError):
    """The server did not start, or ended when it should not have."""


def command() -> list[str]:
    """How to run ``rdma-nfsd`` with the interpreter that runs the tests."""
    script = Path(sys.executable).with_name("rdma-nfsd")
    if script.exists():
        return [str(script)]
    return [sys.executable, "-c", "import sys; from nfsd.cli import main; sys.exit(main())"]


def environment() -> dict[str, str]:
    """The environment for ``command()``: this clone comes first on the module path."""
    return {**os.environ, "PYTHONPATH": str(REPO), "PYTHONUNBUFFERED": "1"}


class Server:
    """``rdma-nfsd`` serving ``directory/export`` as /export; use as a context manager.

    ``server`` adds to the ``server:`` mapping of the configuration, ``export`` to the entry of the export, ``more``
    to the exports; with a ``backend`` the export is no directory. ``address`` is another one of the host's than the
    network's; ``arguments`` are further ones of the command. Every name under ``directory`` is the caller's to look at:
    export/, state/, server.log, exports.yaml.
    """

    def __init__(
        self,
        directory: Path,
        network: Network,
        *,
        server: Mapping[str, Any] | None = None,
        export: Mapping[str, Any] | None = None,
        more: Sequence[Mapping[str, Any]] = (),
        address: str | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        self.arguments = arguments
        self.directory = directory
        self.export = directory / "export"
        self.log = directory / "server.log"
        self.config = directory / "exports.yaml"
        self.network = network
        self.address = address or network.server_address
        self.ready_line = ""
        self._process: subprocess.Popen[bytes] | None = None
        self.export.mkdir(parents=True, exist_ok=True)
        listen = address or network.listen_address
        document = {
            "server": {
                "listen": [f"rdma://{listen}:{RDMA_PORT}", f"tcp://{listen}:{TCP_PORT}"],
                "mountd_port": MOUNTD_PORT,
                "state_dir": str(directory / "state"),
                **(server or {}),
            },
            "exports": [
                {
                    **({} if "backend" in (export or {}) else {"path": str(self.export)}),
                    "pseudo": "/export",
                    "access": "rw",
                    "squash": "none",
                    "clients": ["*"],
                    **(export or {}),
                },
                *map(dict, more),
            ],
        }
        self.config.write_text(yaml.safe_dump(document, sort_keys=False))

    def start(self, timeout: float = 30) -> None:
        """Start, and wait for the ready line. Raises ServerError with the log when it does not come."""
        assert self._process is None
        prefix = [*self.network.enter, "setpriv", "--pdeathsig", "KILL"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*prefix, *command(), "serve", "--config", str(self.config), *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.directory,
                env=environment(),
            )
        self.ready_line = self._wait_ready(timeout)

    def _wait_ready(self, timeout: float) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        stdout = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout
        seen = b""
        while time.monotonic() < deadline:
            if select.select([stdout], [], [], 0.1)[0]:
                data = os.read(stdout, 4096)
                seen += data
                for line in seen.decode(errors="replace").splitlines():
                    if line.startswith("rdma-nfsd ready:"):
                        return line
                if not data:
                    break
        self.kill()
        raise ServerError(f"no ready line; standard output {seen!r}; log:\n{self.log_tail()}")

    @property
    def pid(self) -> int:
        """The process id. Raises ServerError when it is not running."""
        if self._process is None:
            raise ServerError("the server is not running")
        return self._process.pid

    def cpu_seconds(self) -> float:
        """User and system time the server has used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def export_name(self, version: str) -> str:
        """The export's name for clients, the same for every NFS version."""
        return "/export"

    def sha256(self, name: str) -> str:
        """The SHA-256 of a file of the export, as the server's own file system has it."""
        with (self.export / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def local_lock_is_free(self, name: str) -> bool:
        """Could a process on the server's own machine lock bytes 0 to 99 of a file of the export?"""
        with (self.export / name).open("rb+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 0)
            except BlockingIOError:
                return False
            return True

    @contextmanager
    def local_lock(self, name: str) -> Iterator[None]:
        """A process on the server's own machine holds bytes 0 to 99 of a file of the export."""
        with (self.export / name).open("rb+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 0)
            yield

    def assert_running(self) -> None:
        """Raises ServerError when the process has ended by itself."""
        if self._process is None or self._process.poll() is not None:
            status = self._process.poll() if self._process else None
            raise ServerError(f"the server ended by itself, status {status}; log:\n{self.log_tail()}")

    def stop(self, timeout: float = 30) -> int:
        """SIGTERM; return the exit status. Raises ServerError when it does not end in time."""
        return self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL, 10)

    def _end(self, number: signal.Signals, timeout: float) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ServerError(f"no end {timeout:.0f} s after {number.name}; log:\n{self.log_tail()}") from None
        finally:
            if process.stdout:
                process.stdout.close()

    def log_tail(self, lines: int = 40) -> str:
        """The end of the server's log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None and self._process.poll() is not None:
            print(f"server ended by itself, status {self._process.poll()}")
        self.kill()
        if exc[0] is not None:
            print(f"--- server log\n{self.log_tail(80)}")
