"""Extended attributes: the kernel's ``user`` name space without its prefix.

Owns nothing. Other name spaces (security, system, trusted) mean something to the kernel, and are not the client's.
"""

from __future__ import annotations

import errno
import os

from nfsd.backends.interface import Made
from nfsd.vfs.attributes import statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain
from nfsd.vfs.records import Credential, Node
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
    XATTR_LIST_MAX,
    XATTR_NAME_MAX,
    XATTR_PREFIX,
    XATTR_SIZE_MAX,
    descriptor_path,
)


def full_name(name: bytes) -> bytes:
    """The kernel's name of an attribute. ENAMETOOLONG for what can be none."""
    if len(XATTR_PREFIX) + len(name) > XATTR_NAME_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return XATTR_PREFIX + name


class LocalXattrs:
    """Reading and changing them."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains

    async def get_xattr(self, credential: Credential, node: Node, name: bytes) -> bytes:
        """See :class:`nfsd.backends.interface.XattrStore`."""
        buffer = bytearray(XATTR_SIZE_MAX)
        chain = Chain(credential)
        step = chain.add(SYS_GETXATTR, descriptor_path(node.fd), full_name(name), buffer, len(buffer))
        await self._chains.run(node.mount, chain)
        chain.check()
        return bytes(memoryview(buffer)[: step.result])

    async def list_xattrs(self, credential: Credential, node: Node) -> list[bytes]:
        """See :class:`nfsd.backends.interface.XattrStore`."""
        buffer = bytearray(XATTR_LIST_MAX)
        chain = Chain(credential)
        # listxattr(2) asks for no permission; NFS does, as knfsd has it.
        chain.add(SYS_FACCESSAT2, node.fd, b"", ACCESS_READ, AT_EMPTY_PATH | AT_EACCESS)
        step = chain.add(SYS_LISTXATTR, descriptor_path(node.fd), buffer, len(buffer))
        await self._chains.run(node.mount, chain)
        chain.check()
        names = bytes(memoryview(buffer)[: step.result]).split(b"\0")
        return [name[len(XATTR_PREFIX) :] for name in names if name.startswith(XATTR_PREFIX)]

    async def set_xattr(self, credential: Credential, node: Node, name: bytes, value: bytes, flags: int) -> Made:
        """See :class:`nfsd.backends.interface.XattrStore`."""
        return await self._change(credential, node, SYS_SETXATTR, full_name(name), value, len(value), flags)

    async def remove_xattr(self, credential: Credential, node: Node, name: bytes) -> Made:
        """See :class:`nfsd.backends.interface.XattrStore`."""
        return await self._change(credential, node, SYS_REMOVEXATTR, full_name(name))

    async def _change(self, credential: Credential, node: Node, number: int, *arguments: int | bytes) -> Made:
        before, after = statx_buffer(), statx_buffer()
        chain = Chain(credential)
        chain.add(SYS_STATX, node.fd, b"", AT_EMPTY_PATH, STATX_MASK, before)
        chain.add(number, descriptor_path(node.fd), *arguments)
        chain.add(SYS_STATX, node.fd, b"", AT_EMPTY_PATH, STATX_MASK, after)
        await self._chains.run(node.mount, chain)
        chain.check()
        return Made(before, after)
