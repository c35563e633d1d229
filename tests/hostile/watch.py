"""Watches what the server uses, in /proc, and what it writes to its log."""

from __future__ import annotations

import contextlib
import os
import re
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Use:
    """At one moment."""

    resident: int
    """Octets."""
    peak: int
    """Octets, the most since :meth:`Watch.begin`."""
    sockets: int
    log: int
    """Octets of the log."""


def remembered(address: tuple[str, int]) -> dict[str, int]:
    """The server's metric ``rdma_nfsd_state``, by kind."""
    with urllib.request.urlopen("http://{}:{}/metrics".format(*address), timeout=30) as answer:
        text = answer.read().decode()
    return {
        kind: int(float(value)) for kind, value in re.findall(r'^rdma_nfsd_state\{kind="(\w+)"\} (\S+)', text, re.M)
    }


class Watch:
    """One process and its log."""

    def __init__(self, pid: int, log: Path) -> None:
        self._proc = Path("/proc") / str(pid)
        self._log = log

    def begin(self) -> Use:
        """Forget the peak so far (proc(5), clear_refs)."""
        (self._proc / "clear_refs").write_text("5")
        return self.now()

    def now(self) -> Use:
        """Of a process that has ended, nothing but its log."""
        status, sockets = "", 0
        with contextlib.suppress(OSError):
            status, sockets = (self._proc / "status").read_text(), self.sockets()
        resident, peak = (
            int(found[1]) << 10 if (found := re.search(rf"{name}:\s+(\d+) kB", status)) else 0
            for name in ("VmRSS", "VmHWM")
        )
        return Use(resident, peak, sockets, self._log.stat().st_size)

    def sockets(self) -> int:
        """How many it has open."""
        links = []
        for name in os.listdir(self._proc / "fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                links.append(os.readlink(self._proc / "fd" / name))
        return sum(link.startswith("socket:") for link in links)

    def cpu(self) -> float:
        """Seconds of processor time."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def until_idle(self, sockets: int, patience: float) -> bool:
        """Wait until the process uses less than a fifth of a processor and has at most so many sockets; whether it came
        to that."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            began, before = time.monotonic(), self.cpu()
            time.sleep(0.2)
            if self.cpu() - before <= (time.monotonic() - began) / 5 and self.sockets() <= sockets:
                return True
        return False

    def until_given_back(self, resident: int, patience: float) -> None:
        """Wait until the process has at most so many octets resident: it keeps for some time what it may need again."""
        end = time.monotonic() + patience
        while self.now().resident > resident and time.monotonic() < end:
            time.sleep(0.2)

    def log_since(self, use: Use) -> bytes:
        """What was written to the log since."""
        with self._log.open("rb") as log:
            log.seek(use.log)
            return log.read()
