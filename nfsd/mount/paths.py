"""From the path a client mounts to an export and a way below it.

Owns the matching of paths; imports the exports only. Clients name an export by its pseudo path (``/export``), or by
the directory's own path on the server, as users of Linux's server are used to; either may be followed by directories
below it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from nfsd.exports import Export


def components(path: bytes) -> list[bytes] | None:
    """The names of an absolute path; None for a path that is not absolute, has a NUL, or climbs with ``..``."""
    if not path.startswith(b"/") or b"\0" in path:
        return None
    names = split(path)
    return None if b".." in names else names


def split(path: bytes) -> list[bytes]:
    """The names of a path, those that lead nowhere left out."""
    return [name for name in path.split(b"/") if name not in (b"", b".")]


def below_directory(path: bytes, directories: Iterable[bytes]) -> list[bytes] | None:
    """The names of an absolute path below one of these directories; None: it begins with none of them."""
    names = split(path)
    for directory in directories:
        prefix = split(directory)
        if directory and names[: len(prefix)] == prefix:
            return names[len(prefix) :]
    return None


def matches(exports: Iterable[Export], names: list[bytes]) -> list[tuple[Export, list[bytes]]]:
    """The exports that may hold a path, each with the names below its root, the likeliest first; at most two.

    First the longest pseudo path that begins the path: what a client sees in the NFSv4 name space and in EXPORT is
    never hidden by the layout of the server's disks. Then the longest of the exports' own directories."""
    exports = tuple(exports)
    found = []
    for name_of in (_pseudo, _directory):
        best: tuple[Export, list[bytes]] | None = None
        longest = -1
        for export in exports:
            prefix = components(name_of(export))
            if prefix is None:
                continue  # a backend's files are in no directory
            if len(prefix) > longest and names[: len(prefix)] == prefix:
                best, longest = (export, names[len(prefix) :]), len(prefix)
        if best is not None:
            found.append(best)
    return found


def _pseudo(export: Export) -> bytes:
    return os.fsencode(export.pseudo)


def _directory(export: Export) -> bytes:
    return os.fsencode(export.path)
