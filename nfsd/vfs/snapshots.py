"""Files of snapshots: below a directory that file systems show them in, or where nothing can be changed at all.

Owns :class:`Snapshots`. A delegation of such a file is of no use: nobody can change it, and what the server
holds open for it keeps the snapshot from being removed or unmounted.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.records import Node
from nfsd.vfs.syscalls import ACCESS_WRITE, AT_EACCESS, AT_EMPTY_PATH, SYS_FACCESSAT2

_NAMES: Final = frozenset((b".snapshot", b".snapshots", b".zfs", b".snap"))
"""Of directories with snapshots: of filers and many scripts, of snapper (btrfs, XFS on LVM), of ZFS, of CephFS."""


class Snapshots:
    """Telling them."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains

    async def in_snapshot(self, node: Node) -> bool:
        """Whether a file that has just been opened is a snapshot's, as far as that can be seen: by a name on the way
        to it, as the kernel knows it now; or because its file system, mount or subvolume is read-only."""
        known = self.in_snapshot_at_once(node)
        if known is not None:
            return known
        chain, asked = _question(node)
        await self._chains.run(node.mount, chain)
        return asked.error == errno.EROFS

    def in_snapshot_at_once(self, node: Node) -> bool | None:
        """The same; None: that would have to be waited for."""
        try:
            names = os.readlink(b"/proc/self/fd/%d" % node.fd).split(b"/")
        except OSError:
            names = []
        if not _NAMES.isdisjoint(names[:-1]):
            return True
        if not node.mount.inline and not node.mount.caching:
            return None
        chain, asked = _question(node)
        self._chains.executor.run_inline(chain)  # who has opened it has had all in memory that is looked at
        return asked.error == errno.EROFS


def _question(node: Node) -> tuple[Chain, Step]:
    """As the server, whom nothing but EROFS keeps from writing."""
    chain = Chain()
    return chain, chain.add(SYS_FACCESSAT2, node.fd, b"", ACCESS_WRITE, AT_EMPTY_PATH | AT_EACCESS, keep_going=True)
