"""Changes of a file's data other than WRITE, in the file's turn.

Owns nothing. They take turns with its WRITEs (:mod:`nfsd.vfs.serial`).
"""

from __future__ import annotations

import errno
import os

from nfsd.vfs.attributes import attributes_of, changed_between
from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain
from nfsd.vfs.records import OpenFile
from nfsd.vfs.types import Change
from nfsd.vfs.unstable import UnstableWrites


def check_writable_open(opened: OpenFile) -> None:
    """EBADF unless the file is open for writing."""
    if not opened.writable:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def check_readable_open(opened: OpenFile) -> None:
    """EBADF unless the file is open for reading."""
    if not opened.readable:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class DataChanges:
    """Making them."""

    def __init__(self, chains: Chains, unstable: UnstableWrites) -> None:
        self._chains = chains
        self._unstable = unstable

    async def make(self, opened: OpenFile, chain: Chain, before: bytearray, after: bytearray) -> Change:
        """Run a chain that fills ``before``, changes the file's data, and fills ``after``: in the file's turn, on the
        workers. Returns the attributes around it."""
        node = opened.node
        inode = node.inode
        if not opened.unstable:
            await self._unstable.make_room(opened.node.inode)
        await inode.serial.acquire()
        try:
            try:
                await self._chains.run_in_lane(node.mount.lane, chain)
            finally:
                self._unstable.add(opened)
            chain.check()
            changed_between(inode, before, after)
            return Change(
                attributes_of(before, node.mount, inode.change),
                attributes_of(after, node.mount, inode.change, changed=True),
            )
        finally:
            inode.serial.release()
