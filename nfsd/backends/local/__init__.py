"""Local file systems, by system calls as the caller: the kernel checks permissions."""

from __future__ import annotations

from nfsd.backends.local.acls import LocalAcls
from nfsd.backends.local.copies import LocalCopies
from nfsd.backends.local.file_systems import LocalFileSystems
from nfsd.backends.local.files import LocalFiles
from nfsd.backends.local.locks import LocalLocks
from nfsd.backends.local.quotas import LocalQuotas
from nfsd.backends.local.space import LocalSpace
from nfsd.backends.local.xattrs import LocalXattrs
from nfsd.vfs.chains import Chains


class LocalBackend:
    """All of it."""

    def __init__(self, chains: Chains) -> None:
        self.files = LocalFiles(chains)
        self.file_systems = LocalFileSystems(chains)
        self.xattrs = LocalXattrs(chains)
        self.acls = LocalAcls(chains)
        self.space = LocalSpace(chains)
        self.copies = LocalCopies(chains)
        self.locks = LocalLocks(chains)
        self.quota = LocalQuotas()
