"""Descriptors with unstable writes: none is closed before an fsync has covered what was written through it.

Why. The kernel tells an open file of write-back that has failed since it was opened, once. A file that is opened later
is told nothing if somebody else has heard of it, or if the kernel has forgotten the file's inode meanwhile. So a
descriptor that was open before the first unstable write has to stay until COMMIT, or an fsync for another reason, has
asked it. Without that, COMMIT would find nothing amiss and vouch for data that is lost (RFC 1813 section 3.3.21, RFC
8881 section 18.3.3).

Owns the list of these descriptors (each :class:`Inode` has its own) and the queue of files that nobody writes to any
more, which are synchronised so that their descriptors can close: few at a time for each export, so that other calls get
workers. How many files may have such descriptors is not decided here (:mod:`nfsd.vfs.shares`). Files in memory have
nothing to write back and are never here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from nfsd.vfs.nodes import SWEPT_AT_ONCE
from nfsd.vfs.records import Inode, OpenFile

MOST_OF_ONE_FILE = 64
"""Descriptors of one file, under several callers or made invalid by local processes, before the writer waits."""
_PATIENCE = 0.1
_PARTING = 5.0


class _Queue:
    """The files of one lane that are to be synchronised."""

    __slots__ = ("lane", "running", "waiting")

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self.waiting: OrderedDict[Inode, OpenFile] = OrderedDict()
        """Each with a descriptor of it, which tells the export."""
        self.running: dict[Inode, asyncio.Task[None]] = {}


class UnstableWrites:
    """All of them. ``settle(opened)`` synchronises a file, or finds that nobody needs it any more; when it raises
    OSError, it has changed the write verifier."""

    def __init__(self, settle: Callable[[OpenFile], Awaitable[None]]) -> None:
        self._settle = settle
        self._all: OrderedDict[OpenFile, None] = OrderedDict()
        self._queues: dict[int, _Queue] = {}

    def __len__(self) -> int:
        return len(self._all)

    # -- what is written and what is synchronised ----------------------------------------------------------------
    def add(self, opened: OpenFile) -> None:
        """Data has been written through it, or perhaps has."""
        if not opened.unstable and not opened.node.mount.inline:
            opened.unstable = True
            opened.node.inode.unstable.append(opened)
            self._all[opened] = None

    def take(self, inode: Inode) -> list[OpenFile]:
        """An fsync of all of these begins, whose error changes the write verifier: they owe nothing any more, but for
        what is written from now on. The caller keeps them open until it is over."""
        taken = inode.unstable.copy()
        for opened in taken:
            self._absolve(opened)
        return taken

    def drop(self, inode: Inode) -> None:
        """The file has no name left: nobody will ask for what only idle descriptors remember of it."""
        for opened in inode.unstable.copy():
            if opened.count == 0:
                self._absolve(opened)
                queue = self._queues.get(opened.node.mount.lane)
                if queue is not None and queue.waiting.pop(inode, None) is not None:
                    self._go_on(queue)

    def _absolve(self, opened: OpenFile) -> None:
        opened.unstable = False
        opened.node.inode.unstable.remove(opened)
        self._all.pop(opened, None)

    # -- closing -------------------------------------------------------------------------------------------------
    def forgotten(self, opened: OpenFile) -> None:
        """One of these that nobody holds has left the cache: it closes once its file has been synchronised."""
        node = opened.node
        if node.export.late_data:  # COMMIT asks for nothing there either
            self._absolve(opened)
            return
        queue = self._queues.get(node.mount.lane)
        if queue is None:
            queue = self._queues[node.mount.lane] = _Queue(node.mount.lane)
        if node.inode not in queue.running and node.inode not in queue.waiting:
            queue.waiting[node.inode] = opened
            self._go_on(queue)

    def sweep(self) -> None:
        """Find those that were held when they left the cache, or never were in it, and that nobody holds now."""
        for _ in range(min(len(self._all), SWEPT_AT_ONCE)):
            opened = next(iter(self._all))
            self._all.move_to_end(opened)
            if opened.cached is None and opened.count == 0:
                opened.share.leaves(opened)
                self.forgotten(opened)

    async def make_room(self, inode: Inode) -> None:
        """To be called before another descriptor of the file is written through: there may be only so many."""
        if len(inode.unstable) >= MOST_OF_ONE_FILE:
            with contextlib.suppress(OSError):  # the write verifier tells
                await self._settle(inode.unstable[0])

    async def settled(self, inode: Inode, lane: int) -> bool:
        """Wait a moment for a file that is being synchronised; whether it is."""
        queue = self._queues.get(lane)
        task = None if queue is None else queue.running.get(inode)
        if task is None:
            return False
        await asyncio.wait([task], timeout=_PATIENCE)
        return True

    async def close(self) -> None:
        """Synchronise what there is, for some seconds: the next start has another write verifier, so that clients send
        again what was not committed, and a disk that has stalled must not keep the server from stopping."""
        for opened in list(self._all):
            self.forgotten(opened)
        try:
            async with asyncio.timeout(_PARTING):
                while running := [task for queue in self._queues.values() for task in queue.running.values()]:
                    await asyncio.wait(running)
        except TimeoutError:
            pass
        for queue in list(self._queues.values()):
            queue.waiting.clear()
            for task in queue.running.values():
                task.cancel()

    def _go_on(self, queue: _Queue) -> None:
        while queue.waiting:
            inode, opened = next(iter(queue.waiting.items()))
            if len(queue.running) >= max(1, opened.node.export.workers // 4):
                break
            del queue.waiting[inode]
            queue.running[inode] = asyncio.get_running_loop().create_task(self._run(queue, inode))
        if not queue.waiting and not queue.running and self._queues.get(queue.lane) is queue:
            del self._queues[queue.lane]

    async def _run(self, queue: _Queue, inode: Inode) -> None:
        try:
            if inode.unstable:  # nobody has synchronised it meanwhile
                await self._settle(inode.unstable[0])
        except OSError:
            pass  # the write verifier tells
        finally:
            del queue.running[inode]
            self._go_on(queue)
