"""Many READs of disks at a time (io_uring(7)). Implemented in ``uring.pyx``."""

def hindrance() -> str:
    """Why the kernel makes no rings for this process (an errno, in words); empty if it does."""
