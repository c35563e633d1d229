"""A server as a process of its own, which tests start, kill, freeze and start again. Owns the process and its files."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml


class Process:
    """``rdma-nfsd serve`` on a configuration of its own. As a context manager it runs, and ends by SIGKILL."""

    def __init__(self, directory: Path, server: dict[str, Any], *exports: dict[str, Any]) -> None:
        """``directory``: is made if need be, and has the configuration, the log and ``state_dir``."""
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.file = directory / "exports.yaml"
        self.file.write_text(yaml.safe_dump({"server": server, "exports": list(exports)}))
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin."""
        command = [sys.executable, "-m", "nfsd.cli", "serve", "--config", str(self.file)]
        with open(self.directory / "log", "ab") as log:
            self._running = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        """SIGKILL. Harmless when it has ended."""
        if self._running is not None:
            self._running.kill()
            self._running.wait()
            self._running = None

    async def stop(self) -> int:
        """SIGTERM; the status that it ends with."""
        self._send(signal.SIGTERM)
        return await self.ended()

    async def ended(self, seconds: float = 60) -> int:
        """The status that it ends with by itself."""
        assert self._running is not None
        return await asyncio.to_thread(self._running.wait, seconds)

    def freeze(self) -> None:
        """Have it hang, until :meth:`wake`."""
        self._send(signal.SIGSTOP)

    def wake(self) -> None:
        """Have it go on."""
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        assert self._running is not None
        self._running.send_signal(number)

    @property
    def log(self) -> str:
        """What it has said."""
        return (self.directory / "log").read_text()

    def check(self) -> None:
        """That it has not ended by itself."""
        assert self._running is None or self._running.poll() is None, self.log

    async def says(self, text: str, times: int = 1) -> None:
        """Wait until its log has a text so often."""
        while self.log.count(text) < times:
            self.check()
            await asyncio.sleep(0.2)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
