"""Names in CephFS that workers look up, make and remove. Implemented in ``directories.pyx``, for native code."""

from nfsd.vfs.stored_files import StoredDirectories

class Directories(StoredDirectories):
    """All names of a mount."""

    users: int
    """Jobs of workers that are under way."""
