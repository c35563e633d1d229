"""Whether data is in the page cache. Implemented in ``resident.pyx``."""

def resident(fd: int, offset: int, size: int) -> bool:
    """Whether a read of this now would start no I/O, by cachestat(2). Where the kernel has it (from Linux 6.5 on) and does
    not tell, False; where it has not, True."""
