"""The way from an export's root to a directory below it, by symbolic links as well.

Owns :func:`walk`; imports the file service and the matching of paths. Linux's mountd resolves a path as a local process
would (realpath(3)). So does this, as the server, but it never leaves the export: an absolute link counts as long as
it leads to the export's own directory, and ``..`` as long as it stays below the root. The kernel follows no link here.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from typing import Final

from nfsd.exports import Export
from nfsd.mount.paths import below_directory, split
from nfsd.vfs.service import FileService, Node
from nfsd.vfs.types import Credential, FileType

_SERVER: Final = Credential(0, 0)
_MOST_LINKS: Final = 40
"""As many as Linux follows on one way (path_resolution(7))."""
_MOST_NAMES: Final = 1024
"""That links put on one way. Forty links of a PATH_MAX each would be 30 000 look-ups, for one call of 100 octets."""


class LeadsOut(Exception):
    """A link on the way leads out of the export."""

    def __init__(self) -> None:
        super().__init__("a symbolic link on the way leads out of the export")


async def walk(service: FileService, export: Export, names: list[bytes]) -> Node:
    """The directory that these names lead to from the export's root. Raises OSError, CrossingRefused and LeadsOut."""
    way = [await service.root(export)]
    ahead = deque(names)
    links = added = 0
    while ahead:
        name = ahead.popleft()
        if name == b"..":
            if len(way) == 1:
                raise LeadsOut
            way.pop()
            continue
        node, attributes = await service.lookup(_SERVER, way[-1], name)
        if attributes.type == FileType.DIR:
            way.append(node)
            continue
        if attributes.type != FileType.LNK:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = await service.readlink(_SERVER, node)
        if target.startswith(b"/"):
            below = below_directory(target, (os.fsencode(export.path), service.directory_of(way[0])))
            if below is None:
                raise LeadsOut
            del way[1:]
        else:
            below = split(target)
        added += len(below)
        if added > _MOST_NAMES:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        ahead.extendleft(reversed(below))
    return way[-1]
