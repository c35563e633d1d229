"""The one way to make a system call that may wait or needs the caller's credential. Implemented in ``executor.pyx``.

A :class:`Chain` is a short sequence of raw system calls under one credential. :class:`Executor` runs chains on native
threads that never take the interpreter's lock while they work; submissions and completions are batched through one
eventfd. A chain stops at its first failing step, except for steps marked otherwise.
"""

from asyncio import AbstractEventLoop, Future
from typing import Self

from nfsd.vfs.types import Credential

class Step:
    """One system call of a chain: after the run, ``result`` is its return value (or -1) and ``error`` its errno (or 0).
    A step that was not reached has ``result`` -1 and ``error`` 0."""

    result: int
    error: int

class Chain:
    """At most 16 steps. Buffers handed in are kept alive until the run is over."""

    def __new__(cls, credential: Credential | None = None) -> Self:
        """``credential`` None: as the server itself."""
    def add(
        self,
        number: int,
        *arguments: int | bytes | bytearray | memoryview | Step | None,
        keep_going: bool = False,
        always: bool = False,
        own: bool = False,
    ) -> Step:
        """Append system call ``number``. Arguments: integers (signed or unsigned 64-bit), buffers (their address; bytes
        are NUL-terminated), an earlier Step (its result), None (a null pointer).

        ``keep_going``: the chain goes on if this step fails. ``always``: the step runs even after a failure, provided
        that the steps it refers to succeeded (close). ``own``: runs as the server itself whatever the credential
        (open_by_handle_at needs CAP_DAC_READ_SEARCH). EINTR is retried."""
    failed: Step | None
    """The step that stopped the chain: it failed, or its thread could not become the caller (EACCES; ENOMEM; EIO when the
    thread is of no use any more)."""
    def check(self) -> None:
        """Raise OSError(errno) if the chain was stopped."""

class Executor:
    """A pool of native worker threads for one event loop."""

    def __new__(cls, loop: AbstractEventLoop, threads: int = 16, rings: bool = False) -> Self:
        """``rings``: workers may make READs of disks many at a time (:mod:`nfsd.vfs.uring`)."""
    rings: bool
    can_switch: bool
    """Whether this process may act as other users, which has been tried; if not, credentials are ignored."""
    hindrance: str
    """Why it may not; empty if it may."""
    @property
    def switch(self) -> object:
        """The loop's thread and whom it acts as, for native operations."""
    def run(self, chain: Chain, lane: int = 0) -> Future[None]:
        """Run on a worker. Chains of one ``lane`` (an export) take no more than its share of the threads, so a stalled
        disk starves nobody else. The future never fails: look at the chain (:meth:`Chain.check`)."""
    def run_inline(self, chain: Chain) -> None:
        """Run now, on the calling thread: only for what is known not to wait."""
    def set_lane(self, number: int, limit: int) -> None:
        """Bound the threads a lane may hold (default: half of them)."""
    def set_weight(self, number: int, host: str, weight: int) -> None:
        """Have so many jobs of a host taken in each of its turns in a lane (default: 1)."""
    def weight_of(self, number: int, host: str) -> int:
        """The jobs of a host that are taken in one of its turns in a lane."""
    def allow_threads(self, threads: int) -> None:
        """Let there be so many threads; never fewer than before."""
    def statistics(self) -> dict[str, int]:
        """threads, queued, running, completed, together (READs made with rings), wakeups, credential_switches."""
    def close(self, patience: int = 10) -> None:
        """Wait for running chains, stop the threads. A call that hangs is waited for so many seconds (0: however long it
        takes), and left behind then, with its thread and all that it uses: the process is about to end."""
