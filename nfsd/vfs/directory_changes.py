"""What every change of a directory has: checks before it, its turn, and the attributes around it.

Owns nothing.
"""

from __future__ import annotations

import errno
import os

from nfsd.vfs.attributes import statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.changes import check_writable
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.looking import Looking
from nfsd.vfs.lookups import check_name
from nfsd.vfs.records import Node
from nfsd.vfs.syscalls import AT_EMPTY_PATH, STATX_MASK, SYS_STATX
from nfsd.vfs.types import FileType


def check_directory(directory: Node, name: bytes, dots: int) -> None:
    """A directory that may be changed, and a name for it; ``dots``: the error for ``.`` and ``..``."""
    check_name(name)
    if directory.type is not FileType.DIR:
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if name in (b".", b".."):
        raise OSError(dots, os.strerror(dots))
    check_writable(directory)


def add_stat(chain: Chain, descriptor: int | Step) -> bytearray:
    """Append a look at a descriptor, which fills what is returned."""
    status = statx_buffer()
    chain.add(SYS_STATX, descriptor, b"", AT_EMPTY_PATH, STATX_MASK, status)
    return status


class DirectoryChanges:
    """Running them."""

    def __init__(self, chains: Chains, looking: Looking) -> None:
        self._chains = chains
        self._looking = looking

    async def run(self, directory: Node, chain: Chain, *opens: Step) -> None:
        """Run a chain that changes a directory. ESTALE when it is gone."""
        await self._chains.run(directory.mount, chain, *opens)
        failed = chain.failed
        if failed is not None and failed.error == errno.ENOENT:
            try:
                await self._looking.look(directory)  # ESTALE when it is the directory that is gone
            except OSError:
                self._chains.abandon(*opens)
                raise
