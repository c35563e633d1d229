"""Whether data is in the page cache. Implemented in ``resident.pyx``."""

def resident(fd: int, offset: int, size: int, file: int = 0) -> bool:
    """Whether a read of this now would start no I/O, as far as the kernel tells. ``file``: any number of its own."""

def remember(file: int, offset: int, size: int, waited: bool) -> None:
    """A read of this has been made, by a worker or not (``waited``)."""
