"""Security labels, as SELinux keeps them in the extended attribute ``security.selinux`` (RFC 7862 section 9).

Owns nothing. There are labels where SELinux runs on this host, for exports that pass them on: without SELinux the
attribute would be octets nobody vouches for. What may be set is the kernel's to say.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from nfsd.vfs.acls import descriptor_path
from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain
from nfsd.vfs.records import Node
from nfsd.vfs.setting import LABEL_NAME
from nfsd.vfs.syscalls import SYS_GETXATTR

LABEL_MAX: Final = 2048
"""Octets of a label; as long as Linux clients take (NFS4_MAXLABELLEN)."""


class Labels:
    """Reading labels; they are set with the other attributes."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains

    selinux: bool = os.path.exists("/sys/fs/selinux/enforce")
    """Whether SELinux runs here."""

    def supports_labels(self, node: Node) -> bool:
        """Whether files of the node's export have labels for clients."""
        return self.selinux and node.export.security_labels

    async def label(self, node: Node) -> bytes:
        """A file's label, empty if it has none."""
        buffer = bytearray(LABEL_MAX)
        chain = Chain()
        step = chain.add(SYS_GETXATTR, descriptor_path(node.fd), LABEL_NAME, buffer, len(buffer))
        await self._chains.run(node.mount, chain)
        if step.error in (errno.ENODATA, errno.EOPNOTSUPP):
            return b""
        chain.check()
        return bytes(memoryview(buffer)[: step.result]).rstrip(b"\0")
