"""Running chains of system calls, and closing descriptors.

Owns the executor, and the descriptors that are about to close. Everything here runs on the event loop's thread.

Operation. ``run`` hands a chain to the workers, or makes its calls at once on file systems that never wait. A node's
descriptor is opened with O_PATH; opening the file behind it goes through ``proc_fd`` (/proc/self/fd), where the kernel
checks the caller's permission on that very inode, whatever its name is by now.

Cancellation. A caller may be cancelled while a worker runs its chain. The chain is never interrupted, and the caller
does not go on before it is over: the worker has the caller's buffers, and the caller may have a turn that others wait
for. Descriptors the chain opened are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
from collections.abc import Callable

from nfsd.vfs import uring
from nfsd.vfs.executor import Chain, Executor, Step
from nfsd.vfs.mounts import Mount
from nfsd.vfs.nodes import NodeTable
from nfsd.vfs.syscalls import SYS_CLOSE
from nfsd.vfs.write_back import WriteBacks
from rpcrdma.firewall import contain

_CLOSES_PER_CHAIN = 16
_CLOSE_PATIENCE = 0.1
Freed = Callable[[], None]


class Chains:
    """The way to the workers."""

    def __init__(self, nodes: NodeTable, write_backs: WriteBacks, *, rings: bool) -> None:
        """``nodes``: where something is let go of when descriptors run out. ``rings``: whether READs of disks may be
        made many at a time (:mod:`nfsd.vfs.uring`)."""
        self._nodes = nodes
        self._write_backs = write_backs
        self._rings = rings
        self._why_no_rings = ""
        """What the kernel has against it."""
        self.executor: Executor
        self.proc_fd = -1
        self._running = False
        self._loop: asyncio.AbstractEventLoop
        self._closing: dict[int, list[tuple[int, Freed | None]]] = {}
        self._closes: dict[asyncio.Future[None], int] = {}
        """Closes under way, by lane."""

    def start(self, threads: int) -> None:
        """Begin to work, with so many threads."""
        self._loop = asyncio.get_running_loop()
        self.proc_fd = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if self._rings:
            self._why_no_rings = uring.hindrance()
        self.executor = Executor(self._loop, threads, self._rings and not self._why_no_rings)
        self._running = True

    def close(self) -> None:
        """Finish running chains. What is closed from now on is closed at once."""
        self._running = False
        self.executor.close()
        for descriptors in self._closing.values():
            for descriptor, _ in descriptors:
                os.close(descriptor)
        self._closing.clear()
        os.close(self.proc_fd)

    @property
    def way_of_reading(self) -> str:
        """How what is not in memory is read, in words."""
        if self.executor.rings:
            return "many at a time, by io_uring"
        return f"one by each thread ({f'io_uring: {self._why_no_rings}' if self._rings else 'io_uring: false'})"

    async def run(self, mount: Mount, chain: Chain, *opens: Step) -> None:
        """Run a chain where the mount's calls may be made. ``opens``: the steps that open descriptors, which are
        closed if nobody is left to take them."""
        if mount.inline:
            self.executor.run_inline(chain)
        else:
            await self.run_in_lane(mount.lane, chain, *opens)

    async def run_in_lane(self, lane: int, chain: Chain, *opens: Step) -> None:
        """Run a chain on the workers."""
        future = self.executor.run(chain, lane)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.shield(future)
            self.abandon(*opens)
            raise

    def check(self, chain: Chain, *opens: Step) -> None:
        """Raise if the chain was stopped, after closing what its ``opens`` opened."""
        failed = chain.failed
        if failed is None:
            return
        self.abandon(*opens)
        if failed.error in (errno.EMFILE, errno.ENFILE):
            self.spare_descriptors()
        chain.check()

    def spare_descriptors(self) -> None:
        """Descriptors have run out: let go of files that are not in use."""
        self._nodes.evict(1 + len(self._nodes) // 8)

    def abandon(self, *opens: Step) -> None:
        """Close what these steps opened."""
        for step in opens:
            if step.result >= 0:
                self.close_later(step.result)

    def close_later(self, descriptor: int, lane: int = 0, freed: Freed | None = None) -> None:
        """Close on a worker of the export's lane: the last close of a removed file waits for its blocks to be freed,
        and on a stalled disk for long. Then ``freed`` is called."""
        if not self._running or self._loop.is_closed():
            os.close(descriptor)
            return
        if not self._closing:
            self._loop.call_soon(contain, None, self._close_all)
        self._closing.setdefault(lane, []).append((descriptor, freed))

    def _close_all(self) -> None:
        closing, self._closing = self._closing, {}
        for lane, descriptors in closing.items():
            for start in range(0, len(descriptors), _CLOSES_PER_CHAIN):
                chain = Chain()
                steps = [
                    (chain.add(SYS_CLOSE, descriptor, keep_going=True), freed)
                    for descriptor, freed in descriptors[start : start + _CLOSES_PER_CHAIN]
                ]
                closed = self.executor.run(chain, lane)
                self._closes[closed] = lane
                closed.add_done_callback(functools.partial(self._closed, lane, steps))

    def _closed(self, lane: int, steps: list[tuple[Step, Freed | None]], closed: asyncio.Future[None]) -> None:
        del self._closes[closed]
        for step, freed in steps:
            if freed is not None:
                freed()
            if step.error:  # file systems over a network, or in a process, may write back in close(2)
                self._write_backs.failed_in(lane, step.error)

    def closes(self, lane: int) -> list[asyncio.Future[None]]:
        """The closes under way in a lane, those that were handed to it by now among them."""
        if lane in self._closing:
            self._close_all()
        return [future for future, one in self._closes.items() if one == lane]

    async def closed(self, lane: int) -> bool:
        """Wait a moment for descriptors on their way out; whether there were any."""
        waiting = self.closes(lane)
        if waiting:
            await asyncio.wait(waiting, timeout=_CLOSE_PATIENCE)
        return bool(waiting)
