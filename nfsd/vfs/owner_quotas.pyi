"""What the kernel has on one owner's quotas. Implemented in ``owner_quotas.pyx``."""

def ask(fd: int, uid: int, gid: int, kinds: tuple[int, ...]) -> list[tuple[int, bytes]]:
    """For each kind (0: the user's, 1: the group's) an errno or 0, and the ``struct if_dqblk``, on the file system that
    ``fd`` is on. May wait for the disk.

    The calling thread acts as this user and group from then on: it must do nothing else and end."""
