"""Starts servers quickly: a process that has imported everything, and is forked for each.

    python -m tests.soak.nursery

Importing takes most of the time in which the program starts, and a schedule of a thousand kills would be a schedule of
imports. Each line of its input is a JSON list of arguments and the name of a file for messages. It forks, and the child
is the program with those arguments. It prints the child's process id, and then whatever the child prints.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence

from tests.hostile.server import REPO


class Forked:
    """A server that was started so; the part of ``subprocess.Popen`` that a soak needs."""

    def __init__(self, pid: int, nursery: Nursery) -> None:
        self.pid, self._nursery = pid, nursery
        self._descriptor = os.pidfd_open(pid)
        # Not as soon as the process is gone: threads may look at it.
        weakref.finalize(self, os.close, self._descriptor)
        self._gone = False

    @property
    def stdout(self) -> Forked:
        """What it says is read from here; see :meth:`readline`."""
        return self

    def readline(self) -> str:
        """What it says; nothing, once it is gone and all is read."""
        return self._nursery.line(self._descriptor)

    def poll(self) -> int | None:
        """None while it is there. How it has ended only its parent knows."""
        if not self._gone and select.select([self._descriptor], [], [], 0)[0]:
            self._gone = True
        return 0 if self._gone else None

    def send_signal(self, number: int) -> None:
        """Unless it is gone."""
        if not self._gone:
            signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Raises TimeoutError."""
        if not self._gone:
            if not select.select([self._descriptor], [], [], timeout)[0]:
                raise TimeoutError(f"process {self.pid} is still there")
            self._gone = True
        return 0


class Nursery:
    """The process, as its user sees it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "tests.soak.nursery"], cwd=REPO, env=os.environ | dict(environment),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._read = b""

    def start(self, arguments: Sequence[str], messages: str) -> Forked:
        """The program with these arguments; what it logs is added to the file ``messages``."""
        process = self._process
        assert process.stdin is not None
        process.stdin.write(json.dumps([list(arguments), messages]).encode() + b"\n")
        process.stdin.flush()
        while not (line := self.line()).startswith("pid "):
            if not line:
                raise RuntimeError("the process that starts servers has ended")
            # What one said that was killed before anybody had listened to it.
        return Forked(int(line.split()[1]), self)

    def line(self, until: int = -1) -> str:
        """The next line, with its end; nothing if the process behind that descriptor has ended and there is none."""
        assert self._process.stdout is not None
        source = self._process.stdout.fileno()
        while b"\n" not in self._read:
            ready = select.select([source, until] if until >= 0 else [source], [], [])[0]
            if source not in ready:
                return ""
            octets = os.read(source, 4096)
            if not octets:
                return ""
            self._read += octets
        line, _, self._read = self._read.partition(b"\n")
        return line.decode() + "\n"

    def close(self) -> None:
        """No more servers."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


def main() -> int:
    """Until the end of its input; the child's status, in the child."""
    from nfsd import cli, command_line, serving  # noqa: F401 (what is to be there before the fork, and in no user of Forked)

    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they end
    # Not by sys.stdin: what it has read ahead, a child would have too.
    pending = b""
    while octets := os.read(0, 65536):
        pending += octets
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            arguments, messages = json.loads(line)
            child = os.fork()
            if child:
                continue
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, path, how in (
                (0, os.devnull, os.O_RDONLY),
                (2, messages, os.O_WRONLY | os.O_APPEND | os.O_CREAT),
            ):
                opened = os.open(path, how, 0o600)
                os.dup2(opened, number)
                os.close(opened)
            os.write(1, f"pid {os.getpid()}\n".encode())
            sys.argv = ["rdma-nfsd", *arguments]
            return cli.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
