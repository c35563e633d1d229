"""Names in CephFS that workers look up, make and remove. Implemented in ``directories.pyx``, for native code."""

from typing import Self

from nfsd.backends.cephfs.mounted import Mounted
from nfsd.vfs.stored_files import StoredDirectories

class Directories(StoredDirectories):
    """All names of a mount."""

    def __new__(cls, mounted: Mounted) -> Self: ...
