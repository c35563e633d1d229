"""The mounts inside exports: which file system a descriptor or a handle is on.

Owns the tables of mounts. A mount is registered when it is met first, one at a time for each export. Where the kernel
will not open files by handle, the table of places (:mod:`nfsd.vfs.places`) leads to them: where the server lacks
CAP_DAC_READ_SEARCH, and on file systems without handles (overlayfs, most of FUSE). Those of FUSE have handles in name
only: the kernel forgets what they mean as soon as it needs the memory. There, files are told apart by inode number.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from nfsd.exported import Export
from nfsd.vfs.attributes import raw_device, raw_mount, raw_type, statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.known_files import KnownFiles
from nfsd.vfs.mounts import Mount, MountEntry, MountLocks, disk_uuid_of, identify, mount_entry, read_mountinfo
from nfsd.vfs.places import LIMITS
from nfsd.vfs.records import Node
from nfsd.vfs.syscalls import (
    AT_EMPTY_PATH,
    AT_FDCWD,
    FS_IOC_GETFSUUID,
    FUSE_MAGIC,
    O_PATH,
    OPEN_HOW_SIZE,
    OVERLAY_MAGIC,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
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
from nfsd.vfs.types import CrossingRefused, FileType
from nfsd.vfs.write_back import WriteBacks
from rpcrdma.log_limits import limited_logger

_DIRENTS = 32768
_NOT_HERE: Final = (errno.EOPNOTSUPP, errno.EOVERFLOW, errno.EINVAL)
"""What name_to_handle_at says where there are no such handles, or none that it knows of."""
_FILEID_INO64_GEN: Final = 0x81
_MADE_UP: Final = frozenset({0x9FA0, 0x62656572, 0x63677270, 0x27E0EB, 0x1CD1, 0x64626720, 0x74726163, 0x73636673})
"""proc, sysfs, cgroups, devpts, debugfs, tracefs, securityfs: nobody's files."""
_log = limited_logger(__name__)


class MountTable:
    """Mounts by their kernel ids, and by what handles call their file systems."""

    def __init__(self, chains: Chains, known: KnownFiles, write_backs: WriteBacks) -> None:
        self._chains = chains
        self._known = known
        self._write_backs = write_backs
        self._by_id: WeakValueDictionary[tuple[int, int], Mount] = WeakValueDictionary()
        self._by_fs: WeakValueDictionary[tuple[int, bytes], Mount] = WeakValueDictionary()
        self._locks = MountLocks()
        self._said: set[str] = set()

    def known(self, export_id: int, mnt_id: int) -> Mount | None:
        """The mount with this kernel id, if it has been met."""
        return self._by_id.get((export_id, mnt_id))

    def claimed(self, claimed: tuple[int, bytes] | None) -> Mount | None:
        """The mount of what a handle claims (export id, file system), if it has been met."""
        return None if claimed is None else self._by_fs.get(claimed)

    def of_export(self, export: Export) -> list[Mount]:
        """Those that have been met in an export."""
        return [mount for mount in self._by_id.values() if mount.export.id == export.id]

    def serve(self, export_of: Callable[[Mount], Export | None]) -> None:
        """Every mount is of the export that it has now; those that have none are forgotten."""
        for key, mount in list(self._by_id.items()):
            export = export_of(mount)
            if export is not None:
                mount.export = export
            else:
                del self._by_id[key]
                self._by_fs.pop((mount.export.id, mount.fs_id), None)

    def sweep(self) -> None:
        """Let go of what has not been used for some seconds."""
        for mount in set(self._by_id.values()):  # one may serve for several
            mount.rest()

    def shut(self) -> None:
        """Close the descriptors of all."""
        for mount in list(self._by_id.values()):
            mount.shut()

    async def name(self, mount: Mount, descriptor: int, kernel: bytearray) -> None:
        """Have the kernel tell the file of a descriptor from others, in the manner of its mount. Raises OSError."""
        if mount.naming:
            chain = Chain()
            kernel[:] = handle_buffer()
            chain.add(SYS_NAME_TO_HANDLE_AT, descriptor, b"", kernel, bytearray(8), mount.naming)
            await self._chains.run(mount, chain)
            chain.check()

    async def across(
        self, beside: Mount, opened: Step, status: bytearray, kernel: bytearray, *, failed: Step | None
    ) -> Mount:
        """The mount of what was ``opened`` and looked at in the manner of ``beside``, with ``kernel`` in its own. The
        descriptor stays the caller's if this raises CrossingRefused or OSError; ``failed`` stopped that look."""
        mount = await self.mount_of(beside, opened.result, status)
        if mount.naming != beside.naming:
            await self.name(mount, opened.result, kernel)
        elif failed is not None:
            raise OSError(failed.error, os.strerror(failed.error))
        return mount

    async def mount_of(self, beside: Mount, descriptor: int, status: bytearray) -> Mount:
        """The mount a descriptor was found on, coming from ``beside``. Raises CrossingRefused by the export's policy
        and for file systems that have no handles; the descriptor stays the caller's."""
        mnt_id = raw_mount(status)
        if mnt_id == beside.mnt_id:
            return beside
        export = beside.export
        if not export.cross_mounts:
            raise CrossingRefused
        async with self._locks.of(export.id):
            known = self.known(export.id, mnt_id)
            if known is not None:
                return known
            return await self.register(export, beside.lane, descriptor, status)

    async def find(self, root: Node, fs_id: bytes) -> Mount:
        """The mount inside the export a handle belongs to (after a restart, or when it was unused for a while)."""
        export = root.export
        base = os.readlink(f"/proc/self/fd/{root.fd}").rstrip("/") + "/"
        async with self._locks.of(export.id):
            for entry in read_mountinfo() if export.cross_mounts else ():
                known = self._by_fs.get((export.id, fs_id))
                if known is not None:
                    return known
                if not entry.path.startswith(base):
                    continue
                chain = Chain()
                status = statx_buffer()
                how = open_how(O_PATH, 0, RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)
                opened = chain.add(SYS_OPENAT2, AT_FDCWD, os.fsencode(entry.path), how, OPEN_HOW_SIZE)
                chain.add(SYS_STATX, opened, b"", AT_EMPTY_PATH, STATX_MASK, status)
                await self._chains.run_in_lane(root.mount.lane, chain, opened)
                try:
                    if chain.failed is not None or raw_mount(status) != entry.mnt_id:
                        continue  # covered by another mount, or gone meanwhile
                    mount = await self.register(export, root.mount.lane, opened.result, status)
                    if mount.fs_id == fs_id:
                        return mount
                except (OSError, CrossingRefused):
                    continue  # that mount cannot be served; the one looked for may still come
                finally:
                    self._chains.abandon(opened)
        # Its file system is not mounted in the export (any more).
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    async def register(
        self, export: Export, lane: int, descriptor: int, status: bytearray, *, is_root: bool = False
    ) -> Mount:
        """Identify the mount a descriptor is on; ``is_root``: the export's root directory is on it."""
        if raw_type(status) not in (FileType.DIR, FileType.REG):
            raise CrossingRefused
        mnt_id = raw_mount(status)
        chain = Chain()
        statfs, kernel, fid = statfs_buffer(), handle_buffer(), handle_buffer()
        uuid = bytearray(17)
        opened = chain.add(SYS_OPENAT, self._chains.proc_fd, b"%d" % descriptor, os.O_RDONLY | os.O_CLOEXEC)
        chain.add(SYS_FSTATFS, opened, statfs)
        named = chain.add(SYS_NAME_TO_HANDLE_AT, opened, b"", kernel, bytearray(8), Naming.HANDLE, keep_going=True)
        told = chain.add(SYS_NAME_TO_HANDLE_AT, opened, b"", fid, bytearray(8), Naming.FID, keep_going=True)
        has_uuid = chain.add(SYS_IOCTL, opened, FS_IOC_GETFSUUID, uuid, keep_going=True)
        await self._chains.run_in_lane(lane, chain, opened)
        self._chains.check(chain, opened)
        kind, _, _, _, _, _, _, statfs_id, _, _ = parse_statfs(statfs)
        entry = mount_entry(mnt_id)
        try:
            naming = _naming(kind, named, told, fid, is_root=is_root)
            by_place = await self._go_by_place(lane, opened.result, kernel, naming, entry)
        except BaseException:
            self._chains.abandon(opened)
            raise
        device = raw_device(status)
        root, path = (entry.root, entry.path) if entry else ("", "")
        octets = bytes(uuid[1 : 1 + min(uuid[0], 16)]) if has_uuid.error == 0 else None
        if naming != Naming.HANDLE:
            statfs_id = bytes(8)  # overlays have that of the file system their upper layers are on, all the same
        identity = identify(octets, kind, statfs_id, root, path, disk_uuid_of(device, kind))
        covered = None if is_root or not path else await self._covered_fileid(lane, path)
        mount = Mount(
            export, lane, opened.result, mnt_id, device, kind, identity, covered, self._chains.close_later,
            self._write_backs, naming=naming, by_place=by_place,
        )  # fmt: skip
        twin = self._by_fs.get((export.id, mount.fs_id))
        if twin is not None and twin.mnt_id != mnt_id:
            # The same part of the same file system mounted twice in one export: one handle cannot mean both.
            # Both lead to the same files, so the first one serves for both.
            self._by_id[(export.id, mnt_id)] = twin
            return twin
        self._by_id[(export.id, mnt_id)] = mount
        self._by_fs[(export.id, mount.fs_id)] = mount
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
            await self._chains.run_in_lane(lane, chain)
            if opened.error == errno.EPERM:
                why = "this server may not open files by handle (no CAP_DAC_READ_SEARCH)"
            elif opened.error not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ESTALE):
                chain.check()
                return False
        directory = await self._known.use_places()
        if why not in self._said:
            self._said.add(why)
            _log.warning("%s: it is remembered in %s where files are; %s", why, directory, LIMITS)
        return True

    async def _covered_fileid(self, lane: int, path: str) -> int | None:
        """The inode number of the directory a mount covers: only its parent's entries still tell."""
        parent, name = os.path.split(path)
        chain = Chain()
        opened = chain.add(
            SYS_OPENAT, AT_FDCWD, os.fsencode(parent), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
        await self._chains.run_in_lane(lane, chain, opened)
        if opened.result < 0:
            return None
        try:
            wanted = os.fsencode(name)
            while True:
                chain = Chain()
                buffer = bytearray(_DIRENTS)
                got = chain.add(SYS_GETDENTS64, opened.result, buffer, _DIRENTS)
                await self._chains.run_in_lane(lane, chain)
                if got.result <= 0:
                    return None
                for entry, ino, _ in parse_dirents(memoryview(buffer), got.result):
                    if entry == wanted:
                        return ino
        finally:
            self._chains.abandon(opened)


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
