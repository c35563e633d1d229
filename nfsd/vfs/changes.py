"""What all changes of files have in common: checks before them, and the attributes around them.

Owns nothing.
"""

from __future__ import annotations

import errno
import os

from nfsd.vfs.attributes import attributes_of, changed_between
from nfsd.vfs.records import Node, OpenFile
from nfsd.vfs.types import Change


def check_writable(node: Node) -> None:
    """EROFS on a read-only export."""
    if node.export.read_only:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def check_writable_open(opened: OpenFile) -> None:
    """EBADF unless the file is open for writing."""
    if not opened.writable:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def check_readable_open(opened: OpenFile) -> None:
    """EBADF unless the file is open for reading."""
    if not opened.readable:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def change_of(node: Node, before: bytearray, after: bytearray, *, happened: bool = True) -> Change:
    """A change of ours, by the looks around it, under the file's turn; some succeed and do nothing."""
    inode = node.inode
    first = attributes_of(before, node.mount, inode.change)
    changed_between(inode, before, after)
    return Change(first, attributes_of(after, node.mount, inode.change, changed=happened))
