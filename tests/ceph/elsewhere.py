"""A cluster in a network namespace, for servers and clients there, with a pool for their records."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

RECORDS: Final = "nfs-records"
"""The pool."""


@contextlib.contextmanager
def ceph(enter: Sequence[str], directory: Path, address: str) -> Iterator[Callable[..., None]]:
    """``enter``: the words that run a command in the namespace, which has the address. What it yields runs ``ceph``
    with further words, as the administrator. Clients use ``directory``/ceph.conf."""
    command = [*enter, sys.executable, "-m", "tests.ceph.cluster", str(directory), address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline().startswith("up after")

            def told(*words: str) -> None:
                environment = {**os.environ, "CEPH_CONF": str(directory / "ceph.conf")}
                subprocess.run([*enter, "ceph", *words], env=environment, check=True, capture_output=True, timeout=120)

            told("osd", "pool", "create", RECORDS, "8")
            yield told
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait()
