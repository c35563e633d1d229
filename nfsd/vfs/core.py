"""What every part of the file service stands on: running chains, making nodes of descriptors, closing them.

Owns the executor, the node table and the timer that lets unused descriptors go. Everything here runs on the event
loop's thread. Files are found by :mod:`nfsd.vfs.finding`.

Operation. ``run`` hands a chain to the workers, or makes its calls at once on file systems that never wait. A node's
descriptor is opened with O_PATH; opening the file behind it goes through /proc/self/fd, where the kernel checks the
caller's permission on that very inode, whatever its name is by now.

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
from weakref import WeakValueDictionary

from nfsd.exported import Exports
from nfsd.shown import path_shown
from nfsd.vfs import uring
from nfsd.vfs.attributes import (
    raw_device,
    raw_fileid,
    raw_type,
)
from nfsd.vfs.executor import Chain, Executor, Step
from nfsd.vfs.handles import MAX_KERNEL_HANDLE, HandleCodec, load_key
from nfsd.vfs.mounts import Mount
from nfsd.vfs.nodes import NodeTable
from nfsd.vfs.places import Places
from nfsd.vfs.records import Node
from nfsd.vfs.resources import FileLimits, raise_descriptor_limit, threads_for
from nfsd.vfs.syscalls import (
    AT_EMPTY_PATH,
    STATX_MASK,
    SYS_CLOSE,
    SYS_NAME_TO_HANDLE_AT,
    SYS_STATX,
    Naming,
    numbered,
    parse_handle,
)
from nfsd.vfs.types import FileType
from rpcrdma.firewall import Ticker, contain
from rpcrdma.log_limits import limited_logger

SWEEP_SECONDS = 4.0
_CLOSES_PER_CHAIN = 16
_CLOSE_PATIENCE = 0.1
_log = limited_logger(__name__)

Freed = Callable[[], None]


class Core:
    """Chains and nodes."""

    write_verifier: bytes
    """8 octets, new at each start of the server and after each failure of write-back (RFC 1813 section 3.3.7)."""

    def __init__(self, exports: Exports, state_dir: str, limits: FileLimits | None = None) -> None:
        self.exports = exports
        self.file_limits = limits or FileLimits.of(raise_descriptor_limit())
        self.state_dir = state_dir
        self.write_verifier = os.urandom(8)
        self.losses = 0
        """Failures of write-back so far."""
        self.rings = True
        """Whether READs of disks may be made many at a time."""
        self.why_no_rings = ""
        """What keeps them from that (see :mod:`nfsd.vfs.uring`)."""
        self.executor: Executor
        self.codec: HandleCodec
        self.loop: asyncio.AbstractEventLoop
        self.nodes = NodeTable(self.file_limits.nodes, self.file_limits.inodes)
        self.nodes.files = self.file_limits.files
        self.proc_fd = -1
        self.places: Places | None = None
        """Where files are that cannot be opened by handle; None as long as there are none."""
        self._mounts: WeakValueDictionary[tuple[int, int], Mount] = WeakValueDictionary()
        self._mounts_by_fs: WeakValueDictionary[tuple[int, bytes], Mount] = WeakValueDictionary()
        self._closing: dict[int, list[tuple[int, Freed | None]]] = {}
        self._closes: dict[asyncio.Future[None], int] = {}
        """Closes under way, by lane."""
        self._running = False
        self._umask = 0
        self._sweeper: Ticker | None = None

    # -- starting and stopping -----------------------------------------------------------------------------------
    async def start(self) -> None:
        """Open the handle key in ``state_dir``, and begin to work. Raises OSError naming the path."""
        self.loop = asyncio.get_running_loop()
        # Creating with the client's mode, whatever the daemon's umask: default ACLs take effect as in local creation.
        self._umask = os.umask(0)
        self.codec = HandleCodec(load_key(self.state_dir))
        self.proc_fd = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if self.rings:
            self.why_no_rings = uring.hindrance()
        self.executor = Executor(self.loop, threads_for(self.exports.exports), self.rings and not self.why_no_rings)
        self._running = True
        self._sweeper = Ticker(self.loop, SWEEP_SECONDS, self.sweep)

    @property
    def way_of_reading(self) -> str:
        """How what is not in memory is read, in words."""
        if self.executor.rings:
            return "many at a time, by io_uring"
        return f"one by each thread ({f'io_uring: {self.why_no_rings}' if self.rings else 'io_uring: false'})"

    async def close(self) -> None:
        """Finish running jobs, close every descriptor."""
        if not self._running:
            return
        self._running = False
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self.places is not None:
            await self.places.close()
        self.executor.close()
        # Even if somebody still holds them: no descriptor outlives the service.
        for node in self.nodes.clear():
            node.shut()
        for mount in list(self._mounts.values()):
            mount.shut()
        for descriptors in self._closing.values():
            for descriptor, _ in descriptors:
                os.close(descriptor)
        self._closing.clear()
        os.close(self.proc_fd)
        os.umask(self._umask)

    # -- running chains ------------------------------------------------------------------------------------------
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
            self.nodes.evict(1 + len(self.nodes) // 8)
        chain.check()

    def abandon(self, *opens: Step) -> None:
        """Close what these steps opened."""
        for step in opens:
            if step.result >= 0:
                self.close_later(step.result)

    def close_later(self, descriptor: int, lane: int = 0, freed: Freed | None = None) -> None:
        """Close on a worker of the export's lane: the last close of a removed file waits for its blocks to be freed,
        and on a stalled disk for long. Then ``freed`` is called."""
        if not self._running or self.loop.is_closed():
            os.close(descriptor)
            return
        if not self._closing:
            self.loop.call_soon(contain, None, self._close_all)
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
                closed.add_done_callback(functools.partial(self._closed, steps))

    def _closed(self, steps: list[tuple[Step, Freed | None]], closed: asyncio.Future[None]) -> None:
        del self._closes[closed]
        for step, freed in steps:
            if freed is not None:
                freed()
            if step.error:  # file systems over a network, or in a process, may write back in close(2)
                self.lost_writes(step.error)

    def lost_writes(self, error: int, descriptor: int = -1) -> None:
        """Write-back has failed, of this file if known. Clients must send unstable writes again (RFC 1813, 3.3.21)."""
        self.write_verifier = os.urandom(8)
        self.losses += 1
        what = "a file"
        with contextlib.suppress(OSError):
            what = path_shown(os.readlink(f"/proc/self/fd/{descriptor}"))
        _log.error("data written to %s is lost: %s (%d failures so far)", what, os.strerror(error), self.losses)

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

    def sweep(self) -> None:
        """Let go of what has not been used for some seconds."""
        self.nodes.sweep()

    # -- nodes ---------------------------------------------------------------------------------------------------
    def add_look(
        self, chain: Chain, opened: Step | int, status: bytearray, kernel: bytearray, naming: int = Naming.HANDLE
    ) -> None:
        """Append the two calls that tell what a descriptor names, or the one where files go by their numbers."""
        chain.add(SYS_STATX, opened, b"", AT_EMPTY_PATH, STATX_MASK, status)
        if naming:
            chain.add(SYS_NAME_TO_HANDLE_AT, opened, b"", kernel, bytearray(8), naming)

    @staticmethod
    def identity(mount: Mount, status: bytearray, kernel: bytearray) -> tuple[int, bytes]:
        """What a file is called on its mount, from the buffers of a look that went as its ``naming`` says."""
        if mount.naming:
            kind, octets = parse_handle(kernel)
            if mount.naming == Naming.HANDLE or len(octets) <= MAX_KERNEL_HANDLE:
                return kind, octets
        return numbered(raw_fileid(status), raw_device(status), mount.device)

    def adopt(
        self,
        mount: Mount,
        descriptor: int,
        status: bytearray,
        kernel: bytearray,
        directory: Node | None = None,
        name: bytes = b".",
    ) -> Node:
        """The node of an O_PATH descriptor, which is taken over (or closed, if the node is known already). It was found
        as ``name`` in ``directory``, if that is known."""
        kind, octets = self.identity(mount, status, kernel)
        try:
            handle = self.codec.encode(mount.export.id, mount.fs_id, kind, octets)
        except OSError:
            self.close_later(descriptor)
            raise
        if directory is not None:
            self.found_at(mount, handle, directory, name)
        return self.adopt_handle(mount, handle, kind, octets, descriptor, raw_type(status))

    def found_at(self, mount: Mount, handle: bytes, directory: Node, name: bytes) -> None:
        """A file was found in a directory: to be remembered where handles alone do not lead to files."""
        if mount.by_place and self.places is not None and name not in (b".", b".."):
            self.places.saw(handle, directory.handle, name)

    def adopt_handle(
        self, mount: Mount, handle: bytes, kind: int, octets: bytes, descriptor: int, file_type: FileType
    ) -> Node:
        """As ``adopt``, where the handle is known."""
        node = self.nodes.find(handle)
        if node is not None:
            # The node's own descriptor keeps the inode: this is not the last close, and waits for nothing.
            os.close(descriptor)
            return node
        inode = self.nodes.inode(self.key_of(mount, kind, octets))
        node = Node(handle, inode, mount, descriptor, file_type, self.close_later)
        self.nodes.add(node)
        return node

    def key_of(self, mount: Mount, kind: int, octets: bytes) -> bytes:
        """The key of a file, from its kernel handle."""
        return mount.key_prefix + bytes((kind & 0xFF,)) + octets
