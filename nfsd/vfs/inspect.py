"""Permissions asked, links read: ACCESS (RFC 1813 section 3.3.4) and READLINK (3.3.5); and who may COMMIT.

Owns nothing.
"""

from __future__ import annotations

import errno
import os

from nfsd.backends.interface import FileStore
from nfsd.vfs.attributes import raw_uid
from nfsd.vfs.looking import Looking
from nfsd.vfs.open_files import OpenFiles
from nfsd.vfs.records import Node
from nfsd.vfs.types import Credential, FileType

READ, LOOKUP, MODIFY, EXTEND, DELETE, EXECUTE = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
"""ACCESS3_* (RFC 1813 section 3.3.4)."""
ACCESSES_KEPT = 64


class Inspection:
    """What concerns one file but not its data or its names."""

    def __init__(self, store: FileStore, looking: Looking, open_files: OpenFiles) -> None:
        self._store = store
        self._looking = looking
        self._open_files = open_files

    async def access(self, credential: Credential, node: Node) -> int:
        """What the kernel would let this caller do: bits of ACCESS3_* (the same as ACCESS4_*), all six computed.

        DELETE of a file is a matter of its directory, which is not known: the bit is for directories' entries only.
        """
        await self._looking.look(node)
        inode = node.inode
        known = inode.accesses.get(credential)
        if known is not None and known[0] == inode.epoch:
            return known[1] & _export_mask(node)
        epoch = inode.epoch
        granted = await self._store.permissions(credential, node, os.R_OK | os.W_OK | os.X_OK)
        bits = READ if granted & os.R_OK else 0
        may_write, may_execute = granted & os.W_OK, granted & os.X_OK
        if node.type is FileType.DIR:
            if may_execute:
                bits |= LOOKUP
                if may_write:
                    bits |= MODIFY | EXTEND | DELETE
        else:
            if may_write:
                bits |= MODIFY | EXTEND
            if may_execute:
                bits |= EXECUTE
        if len(inode.accesses) >= ACCESSES_KEPT:
            inode.accesses.clear()
        inode.accesses[credential] = (epoch, bits)
        return bits & _export_mask(node)

    async def may_commit(self, credential: Credential, node: Node) -> bool:
        """Whether this caller may have the file synchronised: whoever may write it, since to keep the disk busy with
        somebody else's data is no reader's business. Nothing is opened, which could break a lease. Raises ESTALE."""
        if credential.uid == raw_uid(await self._looking.look(node)):
            return True
        for access in (2, 3):
            for helped in (False, True):
                if self._open_files.cached(node.inode, (credential, access, helped)) is not None:
                    return True
        return await self._looking.may_write(credential, node)

    async def readlink(self, credential: Credential, node: Node) -> bytes:
        """The link's text. EINVAL when it is no link."""
        if node.type is not FileType.LNK:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return await self._store.readlink(credential, node)


def _export_mask(node: Node) -> int:
    return READ | LOOKUP | EXECUTE if node.export.read_only else 0x3F
