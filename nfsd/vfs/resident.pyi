"""Whether data is in the page cache. Implemented in ``resident.pyx``."""

def resident(fd: int, offset: int, size: int) -> bool:
    """Whether a read of this now would start no I/O, as far as the kernel tells (cachestat(2), from Linux 6.5 on, of files
    that the caller may write); otherwise True."""
