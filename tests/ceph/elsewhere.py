"""A cluster in a network namespace, for servers and clients there, with a pool for their records."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.ceph.cluster import RESTARTS

RECORDS: Final = "nfs-records"
"""The pool."""


class Ceph:
    """One that runs in another process."""

    def __init__(self, enter: Sequence[str], directory: Path, running: subprocess.Popen[str]) -> None:
        self._enter, self._running = enter, running
        self._environment = {**os.environ, "CEPH_CONF": str(directory / "ceph.conf")}
        self._hear("up after")

    def _hear(self, beginning: str) -> None:
        assert self._running.stdout is not None
        line = self._running.stdout.readline()
        assert line.startswith(beginning), line

    def command(self, *words: str) -> None:
        """Run ``ceph`` with these words, as the administrator."""
        whole = [*self._enter, "ceph", *words]
        subprocess.run(whole, env=self._environment, check=True, capture_output=True, timeout=120)

    def restart(self, kind: str) -> None:
        """Kill the ``osd`` or the ``mds``, start it again, and wait until it serves."""
        (number,) = (number for number, one in RESTARTS.items() if one == kind)
        self._running.send_signal(number)
        self._hear(f"{kind} restarted")


@contextlib.contextmanager
def ceph(enter: Sequence[str], directory: Path, address: str) -> Iterator[Ceph]:
    """``enter``: the words that run a command in the namespace, which has the address. Clients use
    ``directory``/ceph.conf."""
    command = [*enter, sys.executable, "-m", "tests.ceph.cluster", str(directory), address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            made = Ceph(enter, directory, running)
            made.command("osd", "pool", "create", RECORDS, "8")
            yield made
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait()
