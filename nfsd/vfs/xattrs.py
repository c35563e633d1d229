"""Extended attributes of regular files and directories (RFC 8276): the kernel's ``user`` name space without its prefix.

Owns nothing. Other name spaces (security, system, trusted) mean something to the kernel, and are not the client's.
Whatever has no such attributes (links, devices…) has none, and takes none, as with local processes (xattr(7)).
"""

from __future__ import annotations

import errno
import os

from nfsd.vfs.attributes import attributes_of, changed_between, statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.directory_changes import check_writable
from nfsd.vfs.executor import Chain
from nfsd.vfs.inspect import MODIFY
from nfsd.vfs.looking import Looking
from nfsd.vfs.records import Node
from nfsd.vfs.stable import StableStorage
from nfsd.vfs.syscalls import (
    ACCESS_READ,
    AT_EACCESS,
    AT_EMPTY_PATH,
    STATX_MASK,
    SYS_FACCESSAT2,
    SYS_GETXATTR,
    SYS_LISTXATTR,
    SYS_REMOVEXATTR,
    SYS_SETXATTR,
    SYS_STATX,
    XATTR_CREATE,
    XATTR_LIST_MAX,
    XATTR_NAME_MAX,
    XATTR_REPLACE,
    XATTR_SIZE_MAX,
)
from nfsd.vfs.types import Change, Credential, FileType

_PREFIX = b"user."
_BEARERS = (FileType.REG, FileType.DIR)


def full_name(name: bytes) -> bytes:
    """The kernel's name of an attribute. EINVAL, ENAMETOOLONG for what can be none."""
    if not name or b"\0" in name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    if len(_PREFIX) + len(name) > XATTR_NAME_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return _PREFIX + name


def _path(descriptor: int) -> bytes:
    # The calls on descriptors refuse those that only name a file (O_PATH).
    return b"/proc/self/fd/%d" % descriptor


class Xattrs:
    """Reading, listing, setting and removing extended attributes."""

    def __init__(self, chains: Chains, looking: Looking, stable: StableStorage) -> None:
        self._chains = chains
        self._looking = looking
        self._stable = stable

    async def supports_xattrs(self, node: Node) -> bool:
        """Whether the file system the node is on keeps extended attributes for users."""
        mount = node.mount
        if mount.xattrs is None:
            chain = Chain()
            # Any name will do: a file system that could have it says that it has not.
            step = chain.add(SYS_GETXATTR, _path(mount.fd), _PREFIX + b"x", None, 0)
            await self._chains.run(mount, chain)
            mount.xattrs = step.error != errno.EOPNOTSUPP
        return mount.xattrs

    async def _check_supported(self, node: Node) -> None:
        if not await self.supports_xattrs(node):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    async def may_write_xattrs(self, credential: Credential, node: Node, allowed: int) -> bool:
        """Whether who may do so much with a file (ACCESS4_*) may set its extended attributes."""
        if node.type not in _BEARERS or node.export.read_only:
            return False
        # A directory's entries need execute permission too, its attributes do not.
        return bool(allowed & MODIFY) or (node.type is FileType.DIR and await self._looking.may_write(credential, node))

    async def get_xattr(self, credential: Credential, node: Node, name: bytes) -> bytes:
        """An attribute's value. ENODATA when there is none of that name."""
        wanted = full_name(name)
        await self._check_supported(node)
        if node.type not in _BEARERS:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        buffer = bytearray(XATTR_SIZE_MAX)
        chain = Chain(credential)
        step = chain.add(SYS_GETXATTR, _path(node.fd), wanted, buffer, len(buffer))
        await self._chains.run(node.mount, chain)
        chain.check()
        return bytes(memoryview(buffer)[: step.result])

    async def list_xattrs(self, credential: Credential, node: Node) -> list[bytes]:
        """The names of all attributes, in no order. EACCES for who may not read the file."""
        await self._check_supported(node)
        if node.type not in _BEARERS:
            return []
        buffer = bytearray(XATTR_LIST_MAX)
        chain = Chain(credential)
        # listxattr(2) asks for no permission; NFS does, as knfsd has it.
        chain.add(SYS_FACCESSAT2, node.fd, b"", ACCESS_READ, AT_EMPTY_PATH | AT_EACCESS)
        step = chain.add(SYS_LISTXATTR, _path(node.fd), buffer, len(buffer))
        await self._chains.run(node.mount, chain)
        chain.check()
        names = bytes(memoryview(buffer)[: step.result]).split(b"\0")
        return [name[len(_PREFIX) :] for name in names if name.startswith(_PREFIX)]

    async def set_xattr(
        self,
        credential: Credential,
        node: Node,
        name: bytes,
        value: bytes,
        *,
        create: bool = False,
        replace: bool = False,
    ) -> Change:
        """Set an attribute, durably. EEXIST if it is there and ``create`` says it must not be; ENODATA if it is not and
        ``replace`` says it must. E2BIG, ENOSPC for values the file system does not take."""
        flags = (XATTR_CREATE if create else 0) | (XATTR_REPLACE if replace else 0)
        arguments = (full_name(name), value, len(value), flags)
        return await self._change_xattr(credential, node, SYS_SETXATTR, *arguments)

    async def remove_xattr(self, credential: Credential, node: Node, name: bytes) -> Change:
        """Remove an attribute, durably. ENODATA when there is none of that name."""
        return await self._change_xattr(credential, node, SYS_REMOVEXATTR, full_name(name))

    async def _change_xattr(self, credential: Credential, node: Node, number: int, *arguments: int | bytes) -> Change:
        check_writable(node)
        await self._check_supported(node)
        if node.type not in _BEARERS:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        before, after = statx_buffer(), statx_buffer()
        inode = node.inode
        chain = Chain(credential)
        chain.add(SYS_STATX, node.fd, b"", AT_EMPTY_PATH, STATX_MASK, before)
        chain.add(number, _path(node.fd), *arguments)
        chain.add(SYS_STATX, node.fd, b"", AT_EMPTY_PATH, STATX_MASK, after)
        await inode.serial.acquire()
        try:
            await self._chains.run(node.mount, chain)
            chain.check()
            changed_between(inode, before, after)
            change = Change(
                attributes_of(before, node.mount, inode.change),
                attributes_of(after, node.mount, inode.change, changed=True),
            )
        finally:
            inode.serial.release()
        await self._stable.sync(node, credential)
        return change
