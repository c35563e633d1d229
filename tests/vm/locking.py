"""Byte-range locks in guests, held by a process that the test commands (inside/locker.py)."""

from __future__ import annotations

from tests.vm.build import HERE
from tests.vm.guest import Guest, Job

LOCKER = HERE / "inside" / "locker.py"


class LockHolder:
    """A process in a guest that has ``path`` open and bytes 0 to 99 of it locked."""

    def __init__(self, guest: Guest, path: str, timeout: float = 300) -> None:
        self._guest = guest
        self._fifo = f"/tmp/locker-{path.replace('/', '-')}"
        self._checks = 0
        guest.run(f"rm -f {self._fifo}; mkfifo {self._fifo}")
        self._job: Job = guest.start(f"python3 {LOCKER} hold {path} {self._fifo}", timeout, f"lock {path}")
        self._job.wait_for("locked\n", 60)

    def check(self, timeout: float = 90) -> None:
        """The process writes and reads through its open file. Raises GuestError when that fails."""
        self._checks += 1
        self._guest.run(f"echo check >{self._fifo}")
        self._job.wait_for(f"alive {self._checks}\n", timeout)

    def unlock(self) -> None:
        """Release the lock, keep the file open."""
        self._guest.run(f"echo unlock >{self._fifo}")
        self._job.wait_for("unlocked\n", 60)

    def quit(self) -> None:
        """End the process."""
        self._guest.run(f"echo quit >{self._fifo}")
        self._job.wait()

    def kill(self) -> None:
        """End the process where it no longer does what it is told."""
        self._guest.run(f"pkill -KILL -f {LOCKER}", check=False)
        self._job.wait(check=False)


def try_lock(guest: Guest, path: str, start: int = 0, length: int = 100) -> bool:
    """Could a process in ``guest`` lock these bytes (and let go of them at once)?"""
    words = guest.run(
        f"python3 {LOCKER} try {path} {start} {length}", timeout=90, label=f"try lock {path}"
    ).output.split()
    assert words in (["got"], ["busy"]), words
    return words == ["got"]
