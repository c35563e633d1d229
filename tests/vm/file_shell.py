"""A process in a guest that does with files what a test tells it, one system call at a time (inside/file_shell.py)."""

from __future__ import annotations

import itertools
import re
import shlex

from tests.vm.build import HERE
from tests.vm.guest import Guest, Job

_SCRIPT = HERE / "inside" / "file_shell.py"
_numbers = itertools.count(1)


class Pending:
    """A command whose answer may take a while."""

    def __init__(self, job: Job, number: int, command: str) -> None:
        self._job = job
        self._pattern = re.compile(rf"^<{number}> (ok|error)(.*) <([\d.]+)>\r?$", re.MULTILINE)
        self.command = command
        self.seconds = 0.0
        """How long the system call took, by the guest's clock; once there is an answer."""

    def done(self) -> bool:
        """Is there an answer?"""
        return self._pattern.search(self._job.output()) is not None

    def answer(self, timeout: float = 60) -> str:
        """``ok``, ``ok TEXT`` or ``error NAME``. Raises GuestError when it does not come in time."""
        self._job.wait_until(lambda output: self._pattern.search(output) is not None, self.command, timeout)
        found = self._pattern.search(self._job.output())
        assert found is not None
        self.seconds = float(found[3])
        return found[1] + found[2]


class FileShell:
    """One such process; ``uid`` is whose, if not root's."""

    def __init__(self, guest: Guest, timeout: float = 600, uid: int = 0) -> None:
        self.guest = guest
        self._last: Pending | None = None
        self._fifo = f"/tmp/file-shell-{next(_numbers)}"
        self._sent = 0
        guest.run(f"rm -f {self._fifo}; mkfifo -m 666 {self._fifo}")
        user = f"exec setpriv --reuid {uid} --regid {uid} --clear-groups " if uid else ""
        self._job = guest.start(f"{user}python3 {_SCRIPT} {self._fifo}", timeout, "file shell")
        self._job.wait_for("ready\n", 60)

    def begin(self, command: str) -> Pending:
        """Start a command and do not wait for its answer."""
        self._sent += 1
        self.guest.run(f"echo {shlex.quote(command)} >{self._fifo}", label=f"# {command}")
        self._last = Pending(self._job, self._sent, command)
        return self._last

    def do(self, command: str, timeout: float = 60) -> str:
        """Run a command; its answer, as of ``Pending.answer``."""
        return self.begin(command).answer(timeout)

    def must(self, *commands: str) -> None:
        """Run commands that have to succeed. Raises AssertionError."""
        for command in commands:
            answer = self.do(command)
            assert answer.startswith("ok"), f"{command}: {answer}"

    def end(self) -> None:
        """SIGKILL: what it waits for, holds and has open is gone."""
        self.guest.run(f"pkill -KILL -f '^python3 {_SCRIPT} {self._fifo}$'")
        self._job.wait(check=False)

    @property
    def idle(self) -> bool:
        """Has everything been answered?"""
        return not self._job.done() and (self._last is None or self._last.done())
