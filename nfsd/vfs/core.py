"""What every part of the file service stands on: running chains, finding files by handle, bounding descriptors.

Owns the executor, the node table, the mounts and the timer that lets unused descriptors go. Everything here runs on the
event loop's thread.

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
import itertools
import os
from collections.abc import Callable, Iterable
from weakref import WeakValueDictionary

from nfsd.exports import Export, ExportTable
from nfsd.shown import path_shown
from nfsd.vfs.attributes import (
    raw_device,
    raw_mount,
    raw_nlink,
    raw_type,
    statx_buffer,
)
from nfsd.vfs.executor import Chain, Executor, Step
from nfsd.vfs.handles import HandleCodec, load_key
from nfsd.vfs.mounts import Mount, MountLocks, disk_uuid_of, identify, mount_entry, read_mountinfo
from nfsd.vfs.nodes import NodeTable
from nfsd.vfs.places import Places
from nfsd.vfs.records import Node
from nfsd.vfs.resources import FileLimits, raise_descriptor_limit, threads_for
from nfsd.vfs.syscalls import (
    AT_EMPTY_PATH,
    AT_FDCWD,
    FS_IOC_GETFSUUID,
    O_PATH,
    OPEN_HOW_SIZE,
    RESOLVE_COMPONENT,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    STATX_MASK,
    SYS_CLOSE,
    SYS_FSTATFS,
    SYS_GETDENTS64,
    SYS_IOCTL,
    SYS_NAME_TO_HANDLE_AT,
    SYS_OPEN_BY_HANDLE_AT,
    SYS_OPENAT,
    SYS_OPENAT2,
    SYS_STATX,
    handle_buffer,
    open_how,
    pack_handle,
    parse_dirents,
    parse_handle,
    parse_statfs,
    statfs_buffer,
)
from nfsd.vfs.types import BadHandle, CrossingRefused, FileType
from rpcrdma.firewall import Ticker, contain
from rpcrdma.log_limits import limited_logger

SWEEP_SECONDS = 4.0
_CLOSES_PER_CHAIN = 16
_CLOSE_PATIENCE = 0.1
_DIRENTS = 32768
_PATH_MAX = 4096
_log = limited_logger(__name__)

Freed = Callable[[], None]


class Core:
    """Chains, nodes, mounts."""

    write_verifier: bytes
    """8 octets, new at each start of the server and after each failure of write-back (RFC 1813 section 3.3.7)."""

    def __init__(self, exports: ExportTable, state_dir: str, limits: FileLimits | None = None) -> None:
        self.exports = exports
        self.file_limits = limits or FileLimits.of(raise_descriptor_limit())
        self.state_dir = state_dir
        self.write_verifier = os.urandom(8)
        self.losses = 0
        """Failures of write-back so far."""
        self.executor: Executor
        self.codec: HandleCodec
        self.loop: asyncio.AbstractEventLoop
        self.nodes = NodeTable(self.file_limits.nodes, self.file_limits.inodes)
        self.nodes.files = self.file_limits.files
        self.proc_fd = -1
        self.places: Places | None = None
        """Where files are, if they cannot be opened by handle."""
        self._roots: dict[int, Node] = {}
        self._mounts: WeakValueDictionary[tuple[int, int], Mount] = WeakValueDictionary()
        self._mounts_by_fs: WeakValueDictionary[tuple[int, bytes], Mount] = WeakValueDictionary()
        self._mount_locks = MountLocks()
        self._closing: dict[int, list[tuple[int, Freed | None]]] = {}
        self._closes: dict[asyncio.Future[None], int] = {}
        """Closes under way, by lane."""
        self._running = False
        self._umask = 0
        self._sweeper: Ticker | None = None
        self._lanes = itertools.count(1)

    # -- starting and stopping -----------------------------------------------------------------------------------
    async def start(self) -> None:
        """Open the export roots and the handle key in ``state_dir``. Raises OSError naming the path."""
        self.loop = asyncio.get_running_loop()
        # Creating with the client's mode, whatever the daemon's umask: default ACLs take effect as in local creation.
        self._umask = os.umask(0)
        self.codec = HandleCodec(load_key(self.state_dir))
        self.proc_fd = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.executor = Executor(self.loop, threads_for(self.exports.exports))
        self._running = True
        try:
            self._roots = await self.open_roots(self.exports.exports)
        except OSError:
            await self.close()
            raise
        self._sweeper = Ticker(self.loop, SWEEP_SECONDS, self.sweep)

    async def close(self) -> None:
        """Finish running jobs, close every descriptor."""
        if not self._running:
            return
        self._running = False
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._roots.clear()
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

    async def open_roots(self, exports: Iterable[Export]) -> dict[int, Node]:
        """The root directories of the exports, by export id; of those that have one already too, whose directory may
        be another now. Raises OSError naming the path."""
        roots = {}
        for export in exports:
            before = self._roots.get(export.id)
            lane = next(self._lanes) if before is None else before.mount.lane
            if before is None:
                self.executor.set_lane(lane, export.workers)
            try:
                roots[export.id] = await self._open_root(export, lane)
            except OSError as error:
                raise OSError(error.errno, error.strerror, export.path) from error
        return roots

    async def _open_root(self, export: Export, lane: int) -> Node:
        chain = Chain()
        status = statx_buffer()
        kernel = handle_buffer()
        opened = chain.add(SYS_OPENAT, AT_FDCWD, os.fsencode(export.path), O_PATH & ~os.O_NOFOLLOW | os.O_DIRECTORY)
        self.add_look(chain, opened, status, kernel)
        await self.run_in_lane(lane, chain, opened)
        self.check(chain, opened)
        mount = self.known_mount(export.id, raw_mount(status))
        if mount is None:
            try:
                mount = await self._register_mount(export, lane, opened.result, status, is_root=True)
            except CrossingRefused:
                self.abandon(opened)
                raise OSError(errno.EOPNOTSUPP, "its file system has no file handles") from None
            except BaseException:
                self.abandon(opened)
                raise
        node = self.adopt(mount, opened.result, status, kernel)
        if self.places is None and not await self._can_open_by_handle(node, kernel):
            _log.warning("this server may not open files by handle; it remembers their places in %s", self.state_dir)
            places = Places(self.state_dir)
            await places.open()
            self.places = places
        return node

    async def _can_open_by_handle(self, node: Node, kernel: bytearray) -> bool:
        chain = Chain()
        opened = chain.add(SYS_OPEN_BY_HANDLE_AT, node.mount.fd, pack_handle(*parse_handle(kernel)), O_PATH)
        chain.add(SYS_CLOSE, opened)
        await self.run(node.mount, chain)
        if opened.error == errno.EPERM:
            return False
        chain.check()
        return True

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

    async def closed(self, lane: int) -> bool:
        """Wait a moment for descriptors on their way out; whether there were any."""
        if lane in self._closing:
            await asyncio.sleep(0)  # whatever was put there has been handed to the workers then
        waiting = [future for future, one in self._closes.items() if one == lane]
        if waiting:
            await asyncio.wait(waiting, timeout=_CLOSE_PATIENCE)
        return bool(waiting)

    def sweep(self) -> None:
        """Let go of what has not been used for some seconds."""
        self.nodes.sweep()

    # -- nodes ---------------------------------------------------------------------------------------------------
    def add_look(self, chain: Chain, opened: Step | int, status: bytearray, kernel: bytearray) -> None:
        """Append the two calls that tell what a descriptor names."""
        chain.add(SYS_STATX, opened, b"", AT_EMPTY_PATH, STATX_MASK, status)
        chain.add(SYS_NAME_TO_HANDLE_AT, opened, b"", kernel, bytearray(8), AT_EMPTY_PATH)

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
        kind, octets = parse_handle(kernel)
        try:
            handle = self.codec.encode(mount.export.id, mount.fs_id, kind, octets)
        except OSError:
            self.close_later(descriptor)
            raise
        if directory is not None:
            self.found_at(handle, directory, name)
        return self.adopt_handle(mount, handle, kind, octets, descriptor, raw_type(status))

    def found_at(self, handle: bytes, directory: Node, name: bytes) -> None:
        """A file was found in a directory: to be remembered where handles alone do not lead to files."""
        if self.places is not None and name not in (b".", b".."):
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

    async def root(self, export: Export) -> Node:
        """The export's root directory."""
        node = self._roots.get(export.id)
        if node is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return node

    async def resolve(self, handle: bytes) -> Node:
        """The file of a handle. Raises BadHandle; OSError(ESTALE) when the file or its export is gone."""
        node = self.nodes.find(handle)
        if node is not None:
            return node
        export_id, fs_id, kind, octets = self.codec.decode(handle)
        root = self._roots.get(export_id)
        if root is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        if self.places is not None:
            return await self._resolve_by_place(self.places, root, bytes(handle))
        mount = self._mounts_by_fs.get((export_id, fs_id)) or await self._find_mount(root, fs_id)
        chain = Chain()
        status = statx_buffer()
        opened = chain.add(SYS_OPEN_BY_HANDLE_AT, mount.fd, pack_handle(kind, octets), O_PATH)
        chain.add(SYS_STATX, opened, b"", AT_EMPTY_PATH, STATX_MASK, status)
        await self.run(mount, chain, opened)
        try:
            self.check(chain, opened)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINVAL, errno.ESTALE):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from None
            raise
        if raw_nlink(status) == 0:
            self.abandon(opened)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return self.adopt_handle(mount, bytes(handle), kind, octets, opened.result, raw_type(status))

    def in_memory(self, handle: bytes) -> tuple[Mount, int, bytes] | None:
        """What to open the file of a handle by, if it is on a file system in memory: its mount, the kernel handle's
        type and octets. None: something else has to be done about the handle."""
        claimed = self.codec.claimed(handle)
        mount = self._mounts_by_fs.get(claimed) if claimed is not None and self.places is None else None
        if mount is None or not mount.inline or mount.export.id not in self._roots:
            return None
        try:
            _, _, kind, octets = self.codec.decode(handle)
        except BadHandle:
            return None
        return mount, kind, octets

    async def _resolve_by_place(self, places: Places, root: Node, handle: bytes) -> Node:
        """Walk to where the file was last seen; it must still be the same one."""
        way = await places.way(handle, root.handle)
        if way is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        status, kernel = statx_buffer(), handle_buffer()
        chain = Chain()
        last: Step | int = root.fd
        opened = []
        resolve = RESOLVE_COMPONENT if root.export.cross_mounts else RESOLVE_COMPONENT | RESOLVE_NO_XDEV
        for part in _join(way):
            last = chain.add(SYS_OPENAT2, last, part, open_how(O_PATH, 0, resolve), OPEN_HOW_SIZE)
            opened.append(last)
        self.add_look(chain, opened[-1], status, kernel)
        await self.run_in_lane(root.mount.lane, chain, *opened)
        self.abandon(*opened[:-1])
        if chain.failed is not None:
            self.abandon(opened[-1])
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        try:
            mount = await self.mount_of(root.mount, opened[-1].result, status)
        except BaseException:
            self.abandon(opened[-1])
            raise
        node = self.adopt(mount, opened[-1].result, status, kernel)
        if node.handle != handle:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return node

    # -- mounts --------------------------------------------------------------------------------------------------
    def is_root(self, node: Node) -> bool:
        """Whether the node is its export's root."""
        return node is self._roots.get(node.export.id)

    def known_mount(self, export_id: int, mnt_id: int) -> Mount | None:
        """The mount with this kernel id, if it has been met."""
        return self._mounts.get((export_id, mnt_id))

    async def mount_of(self, beside: Mount, descriptor: int, status: bytearray) -> Mount:
        """The mount a descriptor was found on, coming from ``beside``. Raises CrossingRefused by the export's policy
        and for file systems that have no handles; the descriptor stays the caller's."""
        mnt_id = raw_mount(status)
        if mnt_id == beside.mnt_id:
            return beside
        export = beside.export
        if not export.cross_mounts:
            raise CrossingRefused
        async with self._mount_locks.of(export.id):
            known = self.known_mount(export.id, mnt_id)
            if known is not None:
                return known
            return await self._register_mount(export, beside.lane, descriptor, status)

    async def _find_mount(self, root: Node, fs_id: bytes) -> Mount:
        """The mount inside the export a handle belongs to (after a restart, or when it was unused for a while)."""
        export = root.export
        base = os.readlink(f"/proc/self/fd/{root.fd}").rstrip("/") + "/"
        async with self._mount_locks.of(export.id):
            for entry in read_mountinfo() if export.cross_mounts else ():
                known = self._mounts_by_fs.get((export.id, fs_id))
                if known is not None:
                    return known
                if not entry.path.startswith(base):
                    continue
                chain = Chain()
                status = statx_buffer()
                how = open_how(O_PATH, 0, RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)
                opened = chain.add(SYS_OPENAT2, AT_FDCWD, os.fsencode(entry.path), how, OPEN_HOW_SIZE)
                chain.add(SYS_STATX, opened, b"", AT_EMPTY_PATH, STATX_MASK, status)
                await self.run_in_lane(root.mount.lane, chain, opened)
                try:
                    if chain.failed is not None or raw_mount(status) != entry.mnt_id:
                        continue  # covered by another mount, or gone meanwhile
                    mount = await self._register_mount(export, root.mount.lane, opened.result, status)
                    if mount.fs_id == fs_id:
                        return mount
                except (OSError, CrossingRefused):
                    continue  # that mount cannot be served; the one looked for may still come
                finally:
                    self.abandon(opened)
        # Its file system is not mounted in the export (any more).
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    async def _register_mount(
        self, export: Export, lane: int, descriptor: int, status: bytearray, *, is_root: bool = False
    ) -> Mount:
        """Identify the mount a descriptor is on; ``is_root``: the export's root directory is on it."""
        if raw_type(status) not in (FileType.DIR, FileType.REG):
            raise CrossingRefused
        mnt_id = raw_mount(status)
        chain = Chain()
        statfs = statfs_buffer()
        uuid = bytearray(17)
        opened = chain.add(SYS_OPENAT, self.proc_fd, b"%d" % descriptor, os.O_RDONLY | os.O_CLOEXEC)
        chain.add(SYS_FSTATFS, opened, statfs)
        kernel = handle_buffer()
        named = chain.add(SYS_NAME_TO_HANDLE_AT, opened, b"", kernel, bytearray(8), AT_EMPTY_PATH)
        has_uuid = chain.add(SYS_IOCTL, opened, FS_IOC_GETFSUUID, uuid, keep_going=True)
        await self.run_in_lane(lane, chain, opened)
        if named.error in (errno.EOPNOTSUPP, errno.EOVERFLOW):
            self.abandon(opened)
            raise CrossingRefused
        self.check(chain, opened)
        kind, _, _, _, _, _, _, statfs_id, _, _ = parse_statfs(statfs)
        device = raw_device(status)
        entry = mount_entry(mnt_id)
        root, path = (entry.root, entry.path) if entry else ("", "")
        octets = bytes(uuid[1 : 1 + min(uuid[0], 16)]) if has_uuid.error == 0 else None
        identity = identify(octets, kind, statfs_id, root, path, disk_uuid_of(device, kind))
        covered = None if is_root or not path else await self._covered_fileid(lane, path)
        mount = Mount(export, lane, opened.result, mnt_id, device, kind, identity, covered, self.close_later)
        twin = self._mounts_by_fs.get((export.id, mount.fs_id))
        if twin is not None and twin.mnt_id != mnt_id:
            # The same part of the same file system mounted twice in one export: one handle cannot mean both.
            # Both lead to the same files, so the first one serves for both.
            self._mounts[(export.id, mnt_id)] = twin
            return twin
        self._mounts[(export.id, mnt_id)] = mount
        self._mounts_by_fs[(export.id, mount.fs_id)] = mount
        return mount

    async def _covered_fileid(self, lane: int, path: str) -> int | None:
        """The inode number of the directory a mount covers: only its parent's entries still tell."""
        parent, name = os.path.split(path)
        chain = Chain()
        opened = chain.add(
            SYS_OPENAT, AT_FDCWD, os.fsencode(parent), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
        await self.run_in_lane(lane, chain, opened)
        if opened.result < 0:
            return None
        try:
            wanted = os.fsencode(name)
            while True:
                chain = Chain()
                buffer = bytearray(_DIRENTS)
                got = chain.add(SYS_GETDENTS64, opened.result, buffer, _DIRENTS)
                await self.run_in_lane(lane, chain)
                if got.result <= 0:
                    return None
                for entry, ino, _ in parse_dirents(memoryview(buffer), got.result):
                    if entry == wanted:
                        return ino
        finally:
            self.abandon(opened)


def _join(way: list[bytes]) -> list[bytes]:
    """Names as relative paths, each short enough for the kernel. The file system's root itself is ``.``."""
    paths = [b"."]
    for name in way:
        if len(paths[-1]) + 1 + len(name) >= _PATH_MAX:
            paths.append(name)
        else:
            paths[-1] += b"/" + name
    return paths
