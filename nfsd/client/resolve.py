"""From a path to a file: names looked up one after another, symbolic links followed. Owns :class:`Resolver`.

The client follows links, as everywhere in NFS. A relative link begins at its directory. An absolute link names
something in the client's own tree. A client that mounts nothing has no tree, so that is an error. ``..`` is
the directory that the path came through. Neither leads above the root.

The resolver remembers directories for some seconds, so that it does not walk a tree from its root for each file.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat as modes
from collections import deque
from collections.abc import Sequence
from typing import Final

from nfsd.client.types import Backend, Found
from nfsd.client.url import components

MOST_LINKS: Final = 40
"""As in Linux (path_resolution(7))."""
REMEMBERED: Final = 3.0
"""Seconds that a directory's handle is used without asking: what Linux's client does at least (acregmin)."""
_MOST_REMEMBERED: Final = 4096


class Resolver:
    """The paths below one directory."""

    def __init__(self, backend: Backend, root: Found) -> None:
        self._backend = backend
        self.root = root
        self._directories: dict[tuple[bytes, bytes], tuple[Found, float]] = {}

    def forget(self) -> None:
        """Directories may have other names now."""
        self._directories.clear()

    async def find(self, path: str | os.PathLike[str], *, follow: bool = True) -> Found:
        """What a path names; ``follow``: a symbolic link at its end is followed too. Raises OSError."""
        return (await self._walk(components(path), follow))[-1]

    async def parent(self, path: str | os.PathLike[str]) -> tuple[bytes, bytes]:
        """The handle of the directory that a path's last name is in, and that name. Raises OSError."""
        names = components(path)
        if not names or names[-1] == b"..":
            raise OSError(errno.EINVAL, "the path ends with no name of a file")
        directory = (await self._walk(names[:-1], True))[-1]
        if not modes.S_ISDIR(directory.stat.st_mode):
            raise _error(errno.ENOTDIR)
        return directory.handle, names[-1]

    async def _walk(self, names: Sequence[bytes], follow: bool) -> list[Found]:
        if len(names) > 1 and b".." not in names and not self._remembers(names[0]):
            found = await self._at_once(names)
            if found is not None and not (follow and modes.S_ISLNK(found.stat.st_mode)):
                return [found]
        stack = [self.root]
        left = deque(names)
        links = 0
        while left:
            name = left.popleft()
            if name == b"..":
                if len(stack) == 1:
                    raise OSError(errno.EXDEV, "the path leads above the directory that is connected to")
                stack.pop()
                continue
            here = stack[-1]
            if not modes.S_ISDIR(here.stat.st_mode):
                raise _error(errno.ENOTDIR)
            found = await self._lookup(here.handle, name)
            if not modes.S_ISLNK(found.stat.st_mode) or not (left or follow):
                stack.append(found)
                continue
            links += 1
            if links > MOST_LINKS:
                raise _error(errno.ELOOP)
            text = await self._backend.readlink(found.handle)
            if text.startswith(b"/"):
                raise OSError(
                    errno.EXDEV,
                    f"the symbolic link {os.fsdecode(name)} leads to {os.fsdecode(text)}, on the client's side",
                )
            left.extendleft(reversed(components(os.fsdecode(text))))
        return stack

    async def _at_once(self, names: Sequence[bytes]) -> Found | None:
        walk = getattr(self._backend, "walk", None)
        found: Found | None = None if walk is None else await walk(self.root.handle, names)
        return found

    def _remembers(self, name: bytes) -> bool:
        known = self._directories.get((self.root.handle, name))
        return known is not None and known[1] > asyncio.get_running_loop().time()

    async def _lookup(self, directory: bytes, name: bytes) -> Found:
        now = asyncio.get_running_loop().time()
        known = self._directories.get((directory, name))
        if known is not None and known[1] > now:
            return known[0]
        found = await self._backend.lookup(directory, name)
        if modes.S_ISDIR(found.stat.st_mode):
            if len(self._directories) >= _MOST_REMEMBERED:
                self._directories.clear()
            self._directories[directory, name] = found, now + REMEMBERED
        return found


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
