"""Access control lists of files, as the kernel keeps and enforces them (acl(5)).

Owns nothing. Reading an ACL needs no permission, as with getfacl(1); setting one is the owner's, as the kernel sees to.
Setting is part of :meth:`nfsd.vfs.setting.Setting.set_attributes` and of the creations, so that mode, owner and ACL
change in the order that counts (RFC 8881 section 6.4.1.3).
"""

from __future__ import annotations

import errno
import os

from nfsd.vfs import posix_acl
from nfsd.vfs.attributes import attributes_of, statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.posix_acl import ACCESS_NAME, DEFAULT_NAME, Acls, PosixAcl
from nfsd.vfs.records import Node
from nfsd.vfs.syscalls import AT_EMPTY_PATH, STATX_MASK, SYS_GETXATTR, SYS_STATX, XATTR_SIZE_MAX
from nfsd.vfs.types import FileType

_USUAL_SIZE = 1024
_NONE = (errno.ENODATA, errno.EOPNOTSUPP)


def descriptor_path(descriptor: int) -> bytes:
    """The name of a descriptor for calls that take only names; a symbolic link's is the link's own."""
    return b"/proc/self/fd/%d" % descriptor


class AclReading:
    """Reading ACLs."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains

    async def supports_acls(self, node: Node) -> bool:
        """Whether the file system the node is on keeps POSIX ACLs (if not for its symbolic links)."""
        mount = node.mount
        if mount.acls is None:
            chain = Chain()
            step = chain.add(SYS_GETXATTR, descriptor_path(mount.fd), ACCESS_NAME, None, 0)
            await self._chains.run(mount, chain)
            mount.acls = step.error not in (errno.EOPNOTSUPP, errno.ENOSYS)
        return mount.acls

    async def acls(self, node: Node) -> Acls:
        """A file's ACLs; what stands in the mode alone is an ACL too."""
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
