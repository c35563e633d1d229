"""Running chains of system calls, and closing descriptors.

Owns the executor. Everything here runs on the event loop's thread.

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
import os

from nfsd.vfs import uring
from nfsd.vfs.closing import Closing
from nfsd.vfs.executor import Chain, Executor, Step
from nfsd.vfs.mounts import Mount
from nfsd.vfs.nodes import NodeTable
from nfsd.vfs.write_back import WriteBacks

_CLOSE_PATIENCE = 0.1


class Chains:
    """The way to the workers."""

    def __init__(self, nodes: NodeTable, write_backs: WriteBacks, *, rings: bool) -> None:
        """``nodes``: where something is let go of when descriptors run out. ``rings``: whether READs of disks may be
        made many at a time (:mod:`nfsd.vfs.uring`)."""
        self._nodes = nodes
        self._rings = rings
        self._why_no_rings = ""
        """What the kernel has against it."""
        self.executor: Executor
        self.proc_fd = -1
        self._closing = Closing(write_backs.failed_in)
        self.close_later = self._closing.later

    def start(self, threads: int) -> None:
        """Begin to work, with so many threads."""
        self.proc_fd = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if self._rings:
            self._why_no_rings = uring.hindrance()
        loop = asyncio.get_running_loop()
        self.executor = Executor(loop, threads, self._rings and not self._why_no_rings)
        self._closing.start(loop, self.executor)

    def close(self) -> None:
        """Finish running chains. What is closed from now on is closed at once."""
        self._closing.stop()
        self.executor.close()
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

    def closes(self, lane: int) -> list[asyncio.Future[None]]:
        """The closes under way in a lane, those that were handed to it by now among them."""
        return self._closing.under_way_in(lane)

    async def closed(self, lane: int) -> bool:
        """Wait a moment for descriptors on their way out; whether there were any."""
        waiting = self.closes(lane)
        if waiting:
            await asyncio.wait(waiting, timeout=_CLOSE_PATIENCE)
        return bool(waiting)
