"""File systems: what files there can have, their space, and what names and times can be.

Owns nothing.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import Final

from nfsd.backends.interface import Features
from nfsd.vfs.attributes import attributes_of
from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain
from nfsd.vfs.mounts import Mount
from nfsd.vfs.posix_acl import ACCESS_NAME
from nfsd.vfs.records import Node
from nfsd.vfs.syscalls import (
    BTRFS_MAGIC,
    EXFAT_MAGIC,
    EXT_MAGIC,
    F2FS_MAGIC,
    FS_CASEFOLD_FL,
    FS_IOC_GETFLAGS,
    MSDOS_MAGIC,
    OFFSET_MAX,
    SYS_CLOSE,
    SYS_FSTATFS,
    SYS_GETXATTR,
    SYS_IOCTL,
    SYS_OPENAT,
    SYS_QUOTACTL_FD,
    TMPFS_MAGIC,
    XATTR_PREFIX,
    XFS_MAGIC,
    descriptor_path,
    parse_statfs,
    statfs_buffer,
)
from nfsd.vfs.types import FileSystemStatus, FileType, PathLimits, Time

_TIME_DELTAS = {MSDOS_MAGIC: Time(2, 0), EXFAT_MAGIC: Time(0, 10_000_000)}
_FOLDING_DIRECTORIES = frozenset({EXT_MAGIC, F2FS_MAGIC, TMPFS_MAGIC})
_FOLDING = frozenset({MSDOS_MAGIC, EXFAT_MAGIC})
_LINKS = {EXT_MAGIC: 65000, BTRFS_MAGIC: 65535, XFS_MAGIC: (1 << 31) - 1, MSDOS_MAGIC: 1, EXFAT_MAGIC: 1}
_LINKS_ELSEWHERE = 32000
_CLONING = frozenset({BTRFS_MAGIC, XFS_MAGIC})
_EXT_BLOCKS = (1 << 32) - 1
SELINUX: Final = os.path.exists("/sys/fs/selinux/enforce")
"""Whether SELinux runs here: without it labels would be octets nobody vouches for."""
_GETSTATE: Final = 0x5808
"""Q_XGETQSTATV, which is not only for XFS any more."""
_STATE_SIZE: Final = 512
_STATE_VERSION: Final = 1
_state = struct.Struct("<2xH")
_ENFORCED: Final = {0: 1 << 1, 1: 1 << 3}


class LocalFileSystems:
    """What there is on them."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains

    async def features(self, mount: Mount) -> Features:
        """See :class:`nfsd.backends.interface.FileSystemStore`."""
        path, state = descriptor_path(mount.fd), bytearray(_STATE_SIZE)
        state[0] = _STATE_VERSION
        chain = Chain()
        # Any name will do: a file system that could have it says that it has not.
        xattr = chain.add(SYS_GETXATTR, path, XATTR_PREFIX + b"x", None, 0, keep_going=True)
        acl = chain.add(SYS_GETXATTR, path, ACCESS_NAME, None, 0, keep_going=True)
        quota = chain.add(SYS_QUOTACTL_FD, mount.fd, _GETSTATE << 8, 0, state, keep_going=True)
        await self._chains.run(mount, chain)
        flags = _state.unpack_from(state)[0] if quota.error == 0 else 0
        return Features(
            xattrs=xattr.error != errno.EOPNOTSUPP,
            acls=acl.error not in (errno.EOPNOTSUPP, errno.ENOSYS),
            labels=SELINUX,
            # Those that are merely counted bound nothing.
            quotas=tuple(kind for kind, enforced in _ENFORCED.items() if flags & enforced),
        )

    async def status(self, node: Node) -> FileSystemStatus:
        """See :class:`nfsd.backends.interface.FileSystemStore`."""
        _, _, blocks, free, available, files, ffree, _, _, fragment = parse_statfs(await self._statfs(node))
        return FileSystemStatus(blocks * fragment, free * fragment, available * fragment, files, ffree, ffree)

    async def limits(self, node: Node, look: bytearray) -> PathLimits:
        """See :class:`nfsd.backends.interface.FileSystemStore`."""
        kind, block, _, _, _, _, _, _, name_max, _ = parse_statfs(await self._statfs(node))
        delta = _TIME_DELTAS.get(kind, Time(0, 1))
        if kind == EXT_MAGIC:
            seen = attributes_of(look, node.mount, node.inode.change)
            if seen.birthtime is None:
                delta = Time(1, 0)  # small inodes have no room for births, nor for fractions of a second
        return PathLimits(
            name_max=name_max or 255,
            link_max=_LINKS.get(kind, _LINKS_ELSEWHERE),
            no_trunc=True,
            chown_restricted=True,
            case_insensitive=kind in _FOLDING or await self._folds_case(node, kind),
            case_preserving=True,
            max_file_size={EXT_MAGIC: _EXT_BLOCKS * block, MSDOS_MAGIC: 0xFFFFFFFF}.get(kind, OFFSET_MAX),
            time_delta=delta,
            clone_block=block if kind in _CLONING else 0,
            counts_changes=node.mount.fine,
        )

    async def _folds_case(self, node: Node, kind: int) -> bool:
        """Whether names in this directory may be spelt in either case (chattr +F)."""
        if kind not in _FOLDING_DIRECTORIES or node.type is not FileType.DIR:
            return False
        flags = bytearray(8)
        chain = Chain()
        opened = chain.add(
            SYS_OPENAT, self._chains.proc_fd, b"%d" % node.fd, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        )
        asked = chain.add(SYS_IOCTL, opened, FS_IOC_GETFLAGS, flags, keep_going=True)
        chain.add(SYS_CLOSE, opened, always=True)
        await self._chains.run(node.mount, chain)
        return asked.result == 0 and bool(int.from_bytes(flags[:4], "little") & FS_CASEFOLD_FL)

    async def _statfs(self, node: Node) -> bytearray:
        buffer = statfs_buffer()
        chain = Chain()
        chain.add(SYS_FSTATFS, node.fd, buffer)
        await self._chains.run(node.mount, chain)
        chain.check()
        return buffer
