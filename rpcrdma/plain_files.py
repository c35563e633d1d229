"""Files that somebody has named: only regular files are read, and nothing is waited for.

Owns :func:`read` and :func:`demand`; imports nothing of the project. To open a pipe is to wait until somebody writes
into it, and a device may have no end.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

_PART: Final = 1 << 20
_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class NotAFile(OSError):
    """What is there is no regular file; ``strerror`` says what it is."""

    def __init__(self, name: str, mode: int) -> None:
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        super().__init__(errno.EINVAL, f"is not a file but {kind}", name)


def demand(name: str) -> None:
    """See that a regular file is there, for what opens it itself. Raises OSError."""
    mode = os.stat(name).st_mode
    if not stat.S_ISREG(mode):
        raise NotAFile(name, mode)


def read(name: str, most: int) -> bytes:
    """The first ``most`` octets of a file. Raises OSError."""
    demand(name)  # a socket cannot be opened at all, and to open a device may do something
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise NotAFile(name, mode)
        octets = bytearray()
        while more := os.read(descriptor, min(most - len(octets), _PART)):
            octets += more
        return bytes(octets)
    finally:
        os.close(descriptor)
