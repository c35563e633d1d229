"""One of the processes that serve together: started with what it inherits, and heard of until it ends.

A process tells its supervisor how it is as it would tell systemd (sd_notify(3)): the supervisor gives each of them a
socket for that. It inherits the listening sockets, the lock of the state directory, and a file with its portion and the
configuration. What it prints goes where the supervisor's goes. It also inherits one end of a pipe, whose other end only
the supervisor has. When the supervisor ends in whatever way, the process reads that, and ends: nobody else would take
connections for it, or start it again. (The kernel would tell of that as well, but forgets to once the loop has acted as
a caller: prctl(2), PR_SET_PDEATHSIG.)

Owns :class:`Process`, and :func:`inherit`, the other side of it. Imports the portions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Final

import nfsd
from nfsd.config import Config
from nfsd.portions import Portion, state_dir_of

_SOCKET: Final = "notify"
_LONGEST_WORD: Final = 4096


class Process:
    """A process that may be started again and again."""

    def __init__(self, index: int, count: int, state_dir: str) -> None:
        self.index = index
        self.state_dir = state_dir_of(state_dir, index, count)
        self.ready = asyncio.Event()
        """It serves."""
        self.ended = asyncio.Event()
        """There is none, or no more."""
        self.ended.set()
        self.status = ""
        """What it says that it serves."""
        self.starts = 0
        self.started = 0.0
        """When, on the loop's clock."""
        self.heard = 0.0
        """When it last gave a sign of life."""
        self.restarting = False
        """It is meant to end, and to be started again."""
        self._child: subprocess.Popen[bytes] | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._directory = -1

    def open(self) -> None:
        """Begin to hear. Its directory is there. Raises OSError."""
        self._directory = os.open(self.state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        address = f"/proc/self/fd/{self._directory}/{_SOCKET}"  # short enough for any directory
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address)
        self._socket.bind(address)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._hear)

    def close(self) -> None:
        """Hear no more."""
        if self._directory >= 0:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            os.close(self._directory)
        self._socket.close()

    @property
    def pid(self) -> int:
        """0: there is none."""
        return 0 if self._child is None else self._child.pid

    def start(self, config: Config, portion: Portion, strict: bool, inherited: tuple[int, ...]) -> None:
        """Start it. ``config``: the whole configuration; ``inherited``: descriptors that it gets besides those of its
        portion. Raises OSError."""
        with tempfile.TemporaryFile(dir=self.state_dir) as file:
            pickle.dump((config, portion, strict), file)
            file.seek(0)
            sockets = [descriptor for found in portion.sockets.values() for descriptor in found]
            # Whatever this one was started with, and from where: the same modules, and none of the working directory.
            modules = [os.path.dirname(nfsd.__path__[0]), os.environ.get("PYTHONPATH", "")]
            environment = os.environ | {
                "PYTHONPATH": os.pathsep.join(filter(None, modules)),
                "NOTIFY_SOCKET": f"/proc/self/fd/{self._directory}/{_SOCKET}",
            }
            environment.pop("WATCHDOG_PID", None)
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "nfsd.cli", "serve", "--portion", str(file.fileno())],
                env=environment,
                pass_fds=(file.fileno(), self._directory, portion.leash, *sockets, *inherited),
                process_group=0,  # a terminal's signals are for the supervisor
                stdin=subprocess.DEVNULL,
            )
        self.ready.clear()
        self.ended.clear()
        self.starts += 1
        self.started = self.heard = asyncio.get_running_loop().time()

    def look(self, on_end: Callable[[Process, int], None]) -> None:
        """See whether it has ended; with which status, or minus which signal."""
        if self._child is not None and (status := self._child.poll()) is not None:
            self._child = None
            self.ready.clear()
            self.ended.set()
            on_end(self, status)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if there is one."""
        if self._child is not None:
            self._child.send_signal(number)

    def _hear(self) -> None:
        try:
            word = self._socket.recv(_LONGEST_WORD).decode(errors="replace")
        except OSError:
            return
        self.heard = asyncio.get_running_loop().time()
        fields = dict(line.partition("=")[::2] for line in word.splitlines())
        if "READY" in fields and self._child is not None:
            self.status = fields.get("STATUS", self.status)
            self.ready.set()


def inherit(descriptor: int) -> tuple[Config, Portion, bool]:
    """What this process was started with: the whole configuration, its portion, and whether it is strict."""
    with open(descriptor, "rb") as file:
        found: tuple[Config, Portion, bool] = pickle.load(file)
    return found


def ended_how(status: int) -> str:
    """In words."""
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
