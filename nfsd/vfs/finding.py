"""Finding files by their handles, and the mounts they are on.

Owns the export roots and the tables of mounts. The kernel opens a handle wherever it can and we may have it do that;
elsewhere the table of places (:mod:`nfsd.vfs.places`) leads to the file: where the server lacks CAP_DAC_READ_SEARCH,
and on file systems without handles (overlayfs, most of FUSE). Those of FUSE have handles in name only: the kernel
forgets what they mean as soon as it needs the memory. There, files are told apart by inode number.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import Iterable
from typing import Final

from nfsd.exported import Export, Exports
from nfsd.reach import silent
from nfsd.vfs.absent import Absent, check_mounted
from nfsd.vfs.attributes import raw_device, raw_mount, raw_nlink, raw_type, statx_buffer
from nfsd.vfs.core import Core
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.mounts import Mount, MountEntry, MountLocks, disk_uuid_of, identify, mount_entry, read_mountinfo
from nfsd.vfs.places import Places
from nfsd.vfs.records import Node
from nfsd.vfs.resources import FileLimits
from nfsd.vfs.syscalls import (
    AT_EMPTY_PATH,
    AT_FDCWD,
    FS_IOC_GETFSUUID,
    FUSE_MAGIC,
    O_PATH,
    OPEN_HOW_SIZE,
    OVERLAY_MAGIC,
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
    Naming,
    handle_buffer,
    open_how,
    pack_handle,
    parse_dirents,
    parse_handle,
    parse_statfs,
    statfs_buffer,
)
from nfsd.vfs.types import BadHandle, CrossingRefused, FileType
from rpcrdma.log_limits import limited_logger

_DIRENTS = 32768
_PATH_MAX = 4096
_DEEPEST = 4096
_PATHS = 8
"""Opened by one chain: a way of many long names has more of them than a chain may have steps."""
_NOT_HERE: Final = (errno.EOPNOTSUPP, errno.EOVERFLOW, errno.EINVAL)
"""What name_to_handle_at says where there are no such handles, or none that it knows of."""
LIMITS: Final = (
    "a file that a local process renames or moves is stale to clients until they look it up again, and of several hard "
    "links the one seen last counts"
)
_FILEID_INO64_GEN: Final = 0x81
_MADE_UP: Final = frozenset({0x9FA0, 0x62656572, 0x63677270, 0x27E0EB, 0x1CD1, 0x64626720, 0x74726163, 0x73636673})
"""proc, sysfs, cgroups, devpts, debugfs, tracefs, securityfs: nobody's files."""
_log = limited_logger(__name__)


class FindingOperations(Core):
    """Export roots, handles, mounts."""

    def __init__(self, exports: Exports, state_dir: str, limits: FileLimits | None = None) -> None:
        super().__init__(exports, state_dir, limits)
        self.absent: dict[int, Absent] = {}
        """Exports that cannot be served as things are, by id."""
        self._roots: dict[int, Node] = {}
        self._mount_locks = MountLocks()
        self._lanes = itertools.count(1)
        self._said: set[str] = set()

    async def start(self) -> None:
        """Begin to work, and open the export roots; those that cannot be opened are ``absent`` from ``exports``. Raises
        OSError naming the path, of what is in the state directory."""
        await super().start()
        wanted = (*self.exports.exports, *self.exports.referrals)
        self._roots, self.absent = await self.open_roots(self.exports.exports)
        if self.absent:
            self.exports.replace(export for export in wanted if export.id not in self.absent)

    async def close(self) -> None:
        """Finish running jobs, close every descriptor."""
        self._roots.clear()
        await super().close()

    # -- the roots -----------------------------------------------------------------------------------------------
    async def open_roots(self, exports: Iterable[Export]) -> tuple[dict[int, Node], dict[int, Absent]]:
        """The root directories of the exports, by export id; of those that have one already too, whose directory may
        be another now. And those that cannot be opened. What hangs is not opened, and holds up no other: what is
        served from there stays as it is, and anything else is absent."""
        roots, absent = {}, {}
        wanted = tuple(exports)
        hanging = await asyncio.to_thread(silent, [export.path for export in wanted])
        for export in wanted:
            before, missed = self._roots.get(export.id), self.absent.get(export.id)
            lane = before.mount.lane if before else missed.lane if missed else next(self._lanes)
            if before is None:
                self.executor.set_lane(lane, export.workers)
            if export.path in hanging:
                if before is not None:
                    roots[export.id] = before
                else:
                    absent[export.id] = Absent(export, OSError(errno.ETIMEDOUT, "does not answer"), lane)
                continue
            try:
                roots[export.id] = await self._open_root(export, lane)
            except OSError as error:
                absent[export.id] = Absent(export, error, lane)
        return roots, absent

    def weigh(self, export_id: int, host: str, weight: int) -> None:
        """Have so many jobs of a host (:func:`rpcrdma.addresses.host_of`) done in each of its turns on an export."""
        root = self._roots.get(export_id)
        if root is not None:
            self.executor.set_weight(root.mount.lane, host, weight)

    async def can_come_back(self) -> bool:
        """Whether an export that is absent could be served by now."""
        roots, still = await self.open_roots([one.export for one in self.absent.values()])
        self.absent.update((id_, one) for id_, one in still.items() if id_ in self.absent)
        return bool(roots)

    async def _open_root(self, export: Export, lane: int) -> Node:
        chain = Chain()
        status = statx_buffer()
        kernel = handle_buffer()
        opened = chain.add(SYS_OPENAT, AT_FDCWD, os.fsencode(export.path), O_PATH & ~os.O_NOFOLLOW | os.O_DIRECTORY)
        chain.add(SYS_STATX, opened, b"", AT_EMPTY_PATH, STATX_MASK, status)
        await self.run_in_lane(lane, chain, opened)
        self.check(chain, opened)
        try:
            mount = self.known_mount(export.id, raw_mount(status))
            if mount is None:
                mount = await self._register_mount(export, lane, opened.result, status, is_root=True)
            if export.mountpoint:
                entry = mount_entry(raw_mount(status))
                await asyncio.to_thread(check_mounted, export, opened.result, entry.path if entry else "")
            await self._name(mount, opened.result, kernel)
        except CrossingRefused:
            self.abandon(opened)
            raise OSError(errno.EOPNOTSUPP, "what is mounted there is made up by the kernel") from None
        except BaseException:
            self.abandon(opened)
            raise
        return self.adopt(mount, opened.result, status, kernel)

    async def _name(self, mount: Mount, descriptor: int, kernel: bytearray) -> None:
        """Have the kernel tell the file of a descriptor from others, in the manner of its mount. Raises OSError."""
        if mount.naming:
            chain = Chain()
            kernel[:] = handle_buffer()
            chain.add(SYS_NAME_TO_HANDLE_AT, descriptor, b"", kernel, bytearray(8), mount.naming)
            await self.run(mount, chain)
            chain.check()

    async def across(
        self, beside: Mount, opened: Step, status: bytearray, kernel: bytearray, *, failed: Step | None
    ) -> Mount:
        """The mount of what was ``opened`` and looked at in the manner of ``beside``, with ``kernel`` in its own. The
        descriptor stays the caller's if this raises CrossingRefused or OSError; ``failed`` stopped that look."""
        mount = await self.mount_of(beside, opened.result, status)
        if mount.naming != beside.naming:
            await self._name(mount, opened.result, kernel)
        elif failed is not None:
            raise OSError(failed.error, os.strerror(failed.error))
        return mount

    # -- handles -------------------------------------------------------------------------------------------------
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
        mount = self._mounts_by_fs.get((export_id, fs_id)) or await self._find_mount(root, fs_id)
        if mount.by_place:
            return await self._resolve_by_place(root, bytes(handle))
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
        mount = self._mounts_by_fs.get(claimed) if claimed is not None else None
        if mount is None or not mount.inline or mount.by_place or mount.export.id not in self._roots:
            return None
        try:
            _, _, kind, octets = self.codec.decode(handle)
        except BadHandle:
            return None
        return mount, kind, octets

    async def _resolve_by_place(self, root: Node, handle: bytes) -> Node:
        """Walk to where the file was last seen; it must still be the same one."""
        base, way = await self._way(root, handle)
        status, kernel = statx_buffer(), handle_buffer()
        opened = await self._walk(root, base.fd, _join(way), status)
        try:
            mount = await self.mount_of(base.mount, opened.result, status)
            await self._name(mount, opened.result, kernel)
        except CrossingRefused:
            self.abandon(opened)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from None
        except BaseException:
            self.abandon(opened)
            raise
        node = self.adopt(mount, opened.result, status, kernel)
        if node.handle != handle:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return node

    async def _walk(self, root: Node, start: int, paths: list[bytes], status: bytearray) -> Step:
        """Open what relative paths, one behind the other, lead to, and look at it. Raises OSError (ESTALE)."""
        resolve = RESOLVE_COMPONENT if root.export.cross_mounts else RESOLVE_COMPONENT | RESOLVE_NO_XDEV
        before: list[Step] = []
        while True:
            now, paths = paths[:_PATHS], paths[_PATHS:]
            chain = Chain()
            last: Step | int = before[-1].result if before else start
            opened = []
            for path in now:
                last = chain.add(SYS_OPENAT2, last, path, open_how(O_PATH, 0, resolve), OPEN_HOW_SIZE)
                opened.append(last)
            chain.add(SYS_STATX, last, b"", AT_EMPTY_PATH, STATX_MASK, status)
            try:
                await self.run_in_lane(root.mount.lane, chain, *opened)
            finally:
                self.abandon(*before)
            self.abandon(*opened[:-1])
            before = opened[-1:]
            if chain.failed is not None:
                self.abandon(*before)
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            if not paths:
                return before[0]

    async def _way(self, root: Node, handle: bytes) -> tuple[Node, list[bytes]]:
        """A directory that can be found without the table, and the names from there down to a file, as last seen.
        Raises OSError (ESTALE) when they are not known."""
        names: list[bytes] = []
        while handle != root.handle and len(names) < _DEEPEST and self.places is not None:
            mount = self._mounts_by_fs.get(self.codec.claimed(handle) or (0, b""))
            if names and mount is not None and not mount.by_place:
                names.reverse()
                return await self.resolve(handle), names
            place = await self.places.of(handle)
            if place is None:
                break
            handle, name = place
            names.append(name)
        if handle != root.handle:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        names.reverse()
        return root, names

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
        statfs, kernel, fid = statfs_buffer(), handle_buffer(), handle_buffer()
        uuid = bytearray(17)
        opened = chain.add(SYS_OPENAT, self.proc_fd, b"%d" % descriptor, os.O_RDONLY | os.O_CLOEXEC)
        chain.add(SYS_FSTATFS, opened, statfs)
        named = chain.add(SYS_NAME_TO_HANDLE_AT, opened, b"", kernel, bytearray(8), Naming.HANDLE, keep_going=True)
        told = chain.add(SYS_NAME_TO_HANDLE_AT, opened, b"", fid, bytearray(8), Naming.FID, keep_going=True)
        has_uuid = chain.add(SYS_IOCTL, opened, FS_IOC_GETFSUUID, uuid, keep_going=True)
        await self.run_in_lane(lane, chain, opened)
        self.check(chain, opened)
        kind, _, _, _, _, _, _, statfs_id, _, _ = parse_statfs(statfs)
        entry = mount_entry(mnt_id)
        try:
            naming = _naming(kind, named, told, fid, is_root=is_root)
            by_place = await self._go_by_place(lane, opened.result, kernel, naming, entry)
        except BaseException:
            self.abandon(opened)
            raise
        device = raw_device(status)
        root, path = (entry.root, entry.path) if entry else ("", "")
        octets = bytes(uuid[1 : 1 + min(uuid[0], 16)]) if has_uuid.error == 0 else None
        if naming != Naming.HANDLE:
            statfs_id = bytes(8)  # overlays have that of the file system their upper layers are on, all the same
        identity = identify(octets, kind, statfs_id, root, path, disk_uuid_of(device, kind))
        covered = None if is_root or not path else await self._covered_fileid(lane, path)
        mount = Mount(
            export, lane, opened.result, mnt_id, device, kind, identity, covered, self.close_later,
            naming=naming, by_place=by_place,
        )  # fmt: skip
        twin = self._mounts_by_fs.get((export.id, mount.fs_id))
        if twin is not None and twin.mnt_id != mnt_id:
            # The same part of the same file system mounted twice in one export: one handle cannot mean both.
            # Both lead to the same files, so the first one serves for both.
            self._mounts[(export.id, mnt_id)] = twin
            return twin
        self._mounts[(export.id, mnt_id)] = mount
        self._mounts_by_fs[(export.id, mount.fs_id)] = mount
        return mount

    async def _go_by_place(
        self, lane: int, descriptor: int, kernel: bytearray, naming: int, entry: MountEntry | None
    ) -> bool:
        """Whether files are found by their places on the mount of a descriptor; then there is a table of these. The log
        tells of it once. Raises OSError."""
        why = f"the file system of {entry.path} ({entry.type}) has no file handles" if entry else "no file handles"
        if naming == Naming.HANDLE:
            chain = Chain()
            opened = chain.add(SYS_OPEN_BY_HANDLE_AT, descriptor, pack_handle(*parse_handle(kernel)), O_PATH)
            chain.add(SYS_CLOSE, opened)
            await self.run_in_lane(lane, chain)
            if opened.error == errno.EPERM:
                why = "this server may not open files by handle (no CAP_DAC_READ_SEARCH)"
            elif opened.error not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ESTALE):
                chain.check()
                return False
        async with self._mount_locks.of(0):
            if self.places is None:
                places = Places(self.state_dir)
                await places.open()
                self.places = places
        if why not in self._said:
            self._said.add(why)
            _log.warning("%s: it is remembered in %s where files are; %s", why, self.state_dir, LIMITS)
        return True

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


def _naming(kind: int, named: Step, told: Step, fid: bytearray, *, is_root: bool) -> int:
    """How the files of a file system of type ``kind`` are told apart, of which a directory was ``named`` by its handle
    and ``told`` from others by ``fid``. Raises CrossingRefused, OSError."""
    if kind in _MADE_UP:
        raise CrossingRefused
    if kind == FUSE_MAGIC:
        return Naming.NUMBER
    if named.error == 0:
        return Naming.HANDLE
    if named.error not in _NOT_HERE:
        raise OSError(named.error, os.strerror(named.error))
    if not is_root and kind != OVERLAY_MAGIC:
        raise CrossingRefused  # who has more than one file system exported means those that hold files
    # Of an overlay that says no more than their numbers, the layers may have the same ones.
    if told.error or (kind == OVERLAY_MAGIC and parse_handle(fid)[0] == _FILEID_INO64_GEN):
        return Naming.NUMBER
    return Naming.FID


def _join(way: list[bytes]) -> list[bytes]:
    """Names as relative paths, each short enough for the kernel. The file system's root itself is ``.``."""
    paths = [b"."]
    for name in way:
        if len(paths[-1]) + 1 + len(name) >= _PATH_MAX:
            paths.append(name)
        else:
            paths[-1] += b"/" + name
    return paths
