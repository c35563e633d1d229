"""Mounted file systems inside exports: what identifies them, and what is known not to block on them.

Owns each mount's descriptor (open_by_handle_at needs one that is really open). Files reached through different mounts
of one export carry different file system octets in their handles, so that a handle is always opened on its own mount.

A file system is identified by its UUID (FS_IOC_GETFSUUID, or /dev/disk/by-uuid for XFS on kernels before 6.9, whose
statfs id is a device number), else by the statfs id, else, where it has neither, by the path of its mount point. What
part of it is mounted (a bind mount's root) is hashed in too.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from nfsd.exported import Export
from nfsd.vfs.journal_files import JournalFile
from nfsd.vfs.stored_files import StoredDirectories
from nfsd.vfs.syncing import GroupSync
from nfsd.vfs.syscalls import BTRFS_MAGIC, EXT_MAGIC, F2FS_MAGIC, RAMFS_MAGIC, TMPFS_MAGIC, XFS_MAGIC, Naming
from nfsd.vfs.types import Features
from nfsd.vfs.write_back import WriteBacks

_MEMORY = frozenset({TMPFS_MAGIC, RAMFS_MAGIC})
_CACHING = frozenset({EXT_MAGIC, XFS_MAGIC, BTRFS_MAGIC, F2FS_MAGIC})
# Not tmpfs, which gives a directory the new ctime of the file removed from it: that may be the one it had already.
_MULTIGRAIN = frozenset({EXT_MAGIC, XFS_MAGIC, BTRFS_MAGIC})


def kernel_version() -> tuple[int, int]:
    """Major and minor version of the running kernel."""
    match = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


_MULTIGRAIN_KERNEL = kernel_version() >= (6, 13)


class Mount:
    """One mounted file system in one export."""

    __slots__ = (
        "__weakref__",
        "_close",
        "by_place",
        "caching",
        "creates_whole",
        "device",
        "export",
        "fd",
        "features",
        "fine",
        "flushes_data",
        "fs_id",
        "fsid",
        "inline",
        "journal",
        "journal_file",
        "key_prefix",
        "kind",
        "lane",
        "links_with_name",
        "mnt_id",
        "mounted_on_fileid",
        "naming",
        "stored_names",
        "sync",
        "write_back",
    )

    def __init__(
        self,
        export: Export,
        lane: int,
        fd: int,
        mnt_id: int,
        device: tuple[int, int],
        kind: int,
        identity: Identity,
        mounted_on_fileid: int | None,
        close: Callable[[int, int], None],
        write_backs: WriteBacks,
        *,
        naming: int = Naming.HANDLE,
        by_place: bool = False,
    ) -> None:
        self._close = close
        self.export = export
        self.lane = lane
        self.fd = fd
        self.mnt_id = mnt_id
        self.device = device
        self.kind = kind
        """statfs's f_type."""
        self.fs_id = identity.fs_id
        self.key_prefix = identity.key_prefix
        self.write_back = write_backs.of(identity.key_prefix, lane)
        """The file system's write verifier, the same in all exports."""
        self.fsid = (export.id << 32 | int.from_bytes(identity.fs_id[:4], "big"), 0)
        self.mounted_on_fileid = mounted_on_fileid
        self.naming = naming
        """How its files are told apart (:class:`nfsd.vfs.syscalls.Naming`)."""
        self.by_place = by_place
        """Its files are not opened by handle but found where they were last seen."""
        self.inline = kind in _MEMORY
        """No call on it waits: everything is done on the loop."""
        self.caching = kind in _CACHING
        """statx of an open file, RWF_NOWAIT of what is in memory and RESOLVE_CACHED never wait."""
        self.fine = _MULTIGRAIN_KERNEL and kind in _MULTIGRAIN
        """Every change of a file gives it a new ctime (see ``change``)."""
        self.sync = GroupSync()
        """Callers that wait for what only the whole file system can be synchronised for."""
        self.journal = has_journal(device, kind)
        """Whether all changes go through one journal, in their order (see ``has_journal``)."""
        self.journal_file = JournalFile()
        """What a commit of it goes through."""
        self.flushes_data = self.journal and _one_device(device, kind, mnt_id)
        """Whether a commit of the journal flushes the cache of the disk that files' data is on: whatever has been
        written there before is on stable storage then, with what the journal says of it. In XFS it does, unless files
        may be on a device of their own (rtdev=); in ext4 if the journal is on the same device."""
        self.creates_whole = self.journal and kind == EXT_MAGIC
        """Whether creating a regular file or a directory is one transaction of the journal, with its name, its
        directory's change, the ACL that it inherits and its security label: then an fsync of the directory has all of
        it on the disk. So it is in ext4. (XFS sets ACLs and labels in transactions that follow.)"""
        self.links_with_name = self.creates_whole or kind != EXT_MAGIC
        """Whether an fsync of its directory has a new link or device on the disk, too: wherever names and files are not
        written one by one, as in ext4 without a journal."""
        self.stored_names: StoredDirectories | None = None
        """Of a store, if workers look up and change its names themselves."""
        self.features: Features | None = None
        """What its files can have; None: not yet asked."""

    def rest(self) -> None:
        """Close what only commits need, if there has been none since the last time."""
        if not self.sync.running:
            self._close_if_open(self.journal_file.rested())

    def shut(self) -> None:
        """Close the descriptors: the mount is of no more use."""
        self._close_if_open(self.journal_file.taken())
        self._close_if_open(self.fd)
        self.fd = -1

    def _close_if_open(self, descriptor: int) -> None:
        if descriptor >= 0:
            self._close(descriptor, self.lane)

    def __del__(self) -> None:
        self.shut()


@dataclass(frozen=True, slots=True)
class Identity:
    """What a file system is called, over restarts."""

    fs_id: bytes
    """6 octets: this part of it in a handle."""
    key_prefix: bytes
    """8 octets: all of it, in the keys of its inodes."""


def identify(uuid: bytes | None, kind: int, statfs_id: bytes, root: str, path: str, disk_uuid: str | None) -> Identity:
    """The identity of the file system of type ``kind`` mounted at ``path``, of which ``root`` is what is mounted."""
    if uuid:
        name = b"uuid:" + uuid
    elif disk_uuid:
        name = b"disk:" + disk_uuid.encode()
    elif any(statfs_id):
        name = b"fsid:%x:" % kind + statfs_id
    else:
        name = b"path:%x:" % kind + os.fsencode(path)
    # A btrfs subvolume has a statfs id of its own, but shares the UUID and the numbering of handles.
    part = name + b"\0" + (statfs_id if kind == BTRFS_MAGIC else b"") + b"\0" + os.fsencode(root)
    return Identity(
        hashlib.blake2s(part, digest_size=6).digest(),
        hashlib.blake2s(name, digest_size=8).digest(),
    )


def has_journal(device: tuple[int, int], kind: int) -> bool:
    """Whether the file system keeps all changes but those of data in one journal, in their order, so that an fsync of a
    change puts the earlier ones on the disk too, whatever files they are of: XFS, and ext4 unless it was made without.
    (btrfs and F2FS log single files.)"""
    if kind != EXT_MAGIC:
        return kind == XFS_MAGIC
    try:
        name = os.path.basename(os.readlink(f"/sys/dev/block/{device[0]}:{device[1]}"))
        with open(f"/sys/fs/ext4/{name}/journal_task") as file:
            return file.read().strip().isdigit()
    except OSError:
        return False


def _one_device(device: tuple[int, int], kind: int, mnt_id: int) -> bool:
    """Whether the journal and files' data are on the same device."""
    if kind == XFS_MAGIC:
        entry = mount_entry(mnt_id)
        return entry is not None and not any(option.startswith("rtdev=") for option in entry.options)
    try:
        name = os.path.basename(os.readlink(f"/sys/dev/block/{device[0]}:{device[1]}"))
    except OSError:
        return False
    return os.path.exists(f"/proc/fs/jbd2/{name}-8")  # the journal's inode; else there is the name of its own device


def disk_uuid_of(device: tuple[int, int], kind: int) -> str | None:
    """The UUID udev read from the disk of an XFS file system; None when there is none."""
    if kind != XFS_MAGIC:
        return None
    directory = "/dev/disk/by-uuid"
    try:
        names = os.listdir(directory)
    except OSError:
        return None
    for name in names:
        try:
            found = os.stat(os.path.join(directory, name)).st_rdev
        except OSError:
            continue
        if (os.major(found), os.minor(found)) == device:
            return name
    return None


@dataclass(frozen=True, slots=True)
class MountEntry:
    """A line of /proc/self/mountinfo."""

    mnt_id: int
    root: str
    path: str
    type: str = ""
    options: tuple[str, ...] = ()
    """Of the file system, as its own driver shows them."""


def read_mountinfo() -> list[MountEntry]:
    """The mounts of this process (a file the kernel makes up: reading it waits for no disk)."""
    with open("/proc/self/mountinfo", "rb") as file:
        return [parse_mount(line) for line in file]


def parse_mount(line: bytes) -> MountEntry:
    """A line of mountinfo, proc_pid_mountinfo(5)."""
    fields = line.split(b" ")
    kind, *more = map(os.fsdecode, fields[fields.index(b"-") + 1 :])
    shown = tuple(" ".join(more[1:]).strip().split(","))  # not every driver escapes its spaces
    return MountEntry(int(fields[0]), _unescape(fields[3]), _unescape(fields[4]), kind, shown)


def _unescape(field: bytes) -> str:
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field))


def mount_entry(mnt_id: int) -> MountEntry | None:
    """The mount with this id."""
    return next((entry for entry in read_mountinfo() if entry.mnt_id == mnt_id), None)


class MountLocks:
    """At most one task registers the mounts of an export at a time."""

    def __init__(self) -> None:
        self._locks: dict[int, asyncio.Lock] = {}

    def of(self, export_id: int) -> asyncio.Lock:
        """The lock of an export."""
        return self._locks.setdefault(export_id, asyncio.Lock())
