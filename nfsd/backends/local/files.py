"""Files: attributes, permissions, links; and which are a snapshot's.

Owns nothing. A file is a snapshot's below a directory that file systems show snapshots in, or where nothing can be
changed at all. A delegation of such a file is of no use: nobody can change it, and what the server holds open for it
keeps the snapshot from being removed or unmounted.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from nfsd.vfs.attributes import statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.records import Credential, Node
from nfsd.vfs.syscalls import (
    ACCESS_EXECUTE,
    ACCESS_READ,
    ACCESS_WRITE,
    AT_EACCESS,
    AT_EMPTY_PATH,
    STATX_MASK,
    SYS_FACCESSAT2,
    SYS_READLINKAT,
    SYS_STATX,
)

_REFUSED: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY)
_LINK_MAX: Final = 4096
_SNAPSHOTS: Final = frozenset((b".snapshot", b".snapshots", b".zfs", b".snap"))
"""Of directories with snapshots: of filers and many scripts, of snapper (btrfs, XFS on LVM), of ZFS, of CephFS."""


class LocalFiles:
    """Looks and questions."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains

    async def look(self, node: Node) -> bytearray:
        """See :class:`nfsd.backends.interface.FileStore`."""
        status = statx_buffer()
        chain = Chain()
        chain.add(SYS_STATX, node.fd, b"", AT_EMPTY_PATH, STATX_MASK, status)
        if node.mount.inline or node.mount.caching:
            self._chains.executor.run_inline(chain)
        else:
            await self._chains.run_in_lane(node.mount.lane, chain)
        chain.check()
        return status

    async def permissions(self, credential: Credential | None, node: Node, asked: int) -> int:
        """See :class:`nfsd.backends.interface.FileStore`."""
        chain = Chain(credential)
        steps = [
            (bit, chain.add(SYS_FACCESSAT2, node.fd, b"", bit, AT_EMPTY_PATH | AT_EACCESS, keep_going=True))
            for bit in (ACCESS_READ, ACCESS_WRITE, ACCESS_EXECUTE)
            if bit & asked
        ]
        await self._chains.run(node.mount, chain)
        found = 0
        for bit, step in steps:
            if step.result == 0:
                found |= bit
            elif step.error not in _REFUSED:
                # Without an errno it was not reached, as the thread could not become the caller.
                number = step.error or (chain.failed.error if chain.failed is not None else errno.EIO)
                raise OSError(number, os.strerror(number))
        return found

    async def readlink(self, credential: Credential, node: Node) -> bytes:
        """See :class:`nfsd.backends.interface.FileStore`."""
        buffer = bytearray(_LINK_MAX)
        chain = Chain(credential)
        step = chain.add(SYS_READLINKAT, node.fd, b"", buffer, _LINK_MAX)
        await self._chains.run(node.mount, chain)
        chain.check()
        return bytes(buffer[: step.result])

    async def in_snapshot(self, node: Node) -> bool:
        """As far as that can be seen: by a name on the way to the file, as the kernel knows it now; or because its file
        system, mount or subvolume is read-only."""
        known = self.in_snapshot_at_once(node)
        if known is not None:
            return known
        chain, asked = _question(node)
        await self._chains.run(node.mount, chain)
        return asked.error == errno.EROFS

    def in_snapshot_at_once(self, node: Node) -> bool | None:
        """The same; None: that would have to be waited for."""
        try:
            path = os.readlink(b"%d" % node.fd, dir_fd=self._chains.proc_fd)
        except OSError:
            path = b""
        if b"/." in path and not _SNAPSHOTS.isdisjoint(path.split(b"/")[:-1]):
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
