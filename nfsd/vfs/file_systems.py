"""File systems: their space, and what names and times can be there (RFC 1813 sections 3.3.18 to 3.3.20).

Owns nothing.
"""

from __future__ import annotations

import os

from nfsd.vfs.attributes import attributes_of
from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain
from nfsd.vfs.looking import Looking
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
    SYS_IOCTL,
    SYS_OPENAT,
    TMPFS_MAGIC,
    XFS_MAGIC,
    parse_statfs,
    statfs_buffer,
)
from nfsd.vfs.types import FileSystemStatus, FileType, PathLimits, Time
from nfsd.vfs.xattrs import Xattrs

_TIME_DELTAS = {MSDOS_MAGIC: Time(2, 0), EXFAT_MAGIC: Time(0, 10_000_000)}
_FOLDING_DIRECTORIES = frozenset({EXT_MAGIC, F2FS_MAGIC, TMPFS_MAGIC})
_FOLDING = frozenset({MSDOS_MAGIC, EXFAT_MAGIC})
_LINKS = {EXT_MAGIC: 65000, BTRFS_MAGIC: 65535, XFS_MAGIC: (1 << 31) - 1, MSDOS_MAGIC: 1, EXFAT_MAGIC: 1}
_LINKS_ELSEWHERE = 32000
_CLONING = frozenset({BTRFS_MAGIC, XFS_MAGIC})
_EXT_BLOCKS = (1 << 32) - 1


class FileSystems:
    """FSSTAT and PATHCONF."""

    def __init__(self, chains: Chains, looking: Looking, xattrs: Xattrs) -> None:
        self._chains = chains
        self._looking = looking
        self._xattrs = xattrs

    async def status(self, node: Node) -> FileSystemStatus:
        """Space of the file system the node is on."""
        _, _, blocks, free, available, files, ffree, _, _, fragment = parse_statfs(await self._statfs(node))
        return FileSystemStatus(blocks * fragment, free * fragment, available * fragment, files, ffree, ffree)

    async def limits(self, node: Node) -> PathLimits:
        """What names and times can be on the file system the node is on."""
        kind, block, _, _, _, _, _, _, name_max, _ = parse_statfs(await self._statfs(node))
        delta = _TIME_DELTAS.get(kind, Time(0, 1))
        if kind == EXT_MAGIC:
            seen = attributes_of(await self._looking.look(node), node.mount, node.inode.change)
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
            xattrs=await self._xattrs.supports_xattrs(node),
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
