"""Access control lists of files, as the kernel keeps and enforces them (acl(5)), and security labels, as SELinux does.

Owns nothing. Reading an ACL needs no permission, as with getfacl(1). Both are set with the other attributes
(:class:`nfsd.vfs.setting.Setting`), and in creations. What may be set is the kernel's to say.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from nfsd.vfs import posix_acl
from nfsd.vfs.attributes import attributes_of, statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.posix_acl import ACCESS_NAME, DEFAULT_NAME, Acls, PosixAcl
from nfsd.vfs.records import Node
from nfsd.vfs.syscalls import (
    AT_EMPTY_PATH,
    LABEL_MAX,
    LABEL_NAME,
    STATX_MASK,
    SYS_GETXATTR,
    SYS_STATX,
    XATTR_SIZE_MAX,
    descriptor_path,
)
from nfsd.vfs.types import FileType

_USUAL_SIZE: Final = 1024
_NONE = (errno.ENODATA, errno.EOPNOTSUPP)


class LocalAcls:
    """Reading ACLs and labels."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains

    async def acls(self, node: Node) -> Acls:
        """See :class:`nfsd.backends.interface.AclStore`."""
        buffers = bytearray(_USUAL_SIZE), bytearray(_USUAL_SIZE)
        status = statx_buffer()
        chain = Chain()
        chain.add(SYS_STATX, node.fd, b"", AT_EMPTY_PATH, STATX_MASK, status)
        path = descriptor_path(node.fd)
        steps = [chain.add(SYS_GETXATTR, path, ACCESS_NAME, buffers[0], _USUAL_SIZE, keep_going=True)]
        if node.type is FileType.DIR:
            steps.append(chain.add(SYS_GETXATTR, path, DEFAULT_NAME, buffers[1], _USUAL_SIZE, keep_going=True))
        await self._chains.run(node.mount, chain)
        chain.check()
        access = await self._found(node, steps[0], ACCESS_NAME, buffers[0])
        default = await self._found(node, steps[1], DEFAULT_NAME, buffers[1]) if len(steps) > 1 else None
        mode = attributes_of(status, node.mount, node.inode.change).mode
        return Acls(access or posix_acl.from_mode(mode), default)

    async def label(self, node: Node) -> bytes:
        """See :class:`nfsd.backends.interface.AclStore`."""
        buffer = bytearray(LABEL_MAX)
        chain = Chain()
        step = chain.add(SYS_GETXATTR, descriptor_path(node.fd), LABEL_NAME, buffer, len(buffer))
        await self._chains.run(node.mount, chain)
        if step.error in (errno.ENODATA, errno.EOPNOTSUPP):
            return b""
        chain.check()
        return bytes(memoryview(buffer)[: step.result]).rstrip(b"\0")

    async def _found(self, node: Node, step: Step, name: bytes, buffer: bytearray) -> PosixAcl | None:
        if step.error == errno.ERANGE:
            buffer = bytearray(XATTR_SIZE_MAX)
            chain = Chain()
            step = chain.add(SYS_GETXATTR, descriptor_path(node.fd), name, buffer, len(buffer), keep_going=True)
            await self._chains.run(node.mount, chain)
        if step.error in _NONE:
            return None
        if step.error:
            raise OSError(step.error, os.strerror(step.error))
        try:
            return posix_acl.decode(bytes(memoryview(buffer)[: step.result])) or None
        except ValueError:
            raise OSError(errno.EIO, os.strerror(errno.EIO)) from None
