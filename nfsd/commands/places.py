"""The two kinds of places that ``cp`` copies between: this host's files and a server's. Owns :class:`Local`,
:class:`Remote` and what they have in common, :class:`Place`; imports the client.

A place is one path. Files are written under a temporary name beside it and renamed when they are complete. A copy that
may be continued has a name that is made of what is copied: it is found again as long as the source has not changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat as modes
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from nfsd.client import Changes, FileSystem

TEMPORARY = ".rdma-nfsd-"
"""What the temporary names begin with."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a copy needs to know of a file."""

    mode: int
    size: int
    atime_ns: int | None
    mtime_ns: int | None
    """None: the server does not tell."""
    identity: tuple[Any, ...]
    """Equal for the same file."""


class Place(Protocol):
    """A path, here or there."""

    text: str
    """As the command line has it."""

    def child(self, name: str) -> Place:
        """A name in this directory."""

    @property
    def name(self) -> str:
        """The last name of the path."""

    async def facts(self, *, follow: bool) -> Facts | None:
        """What is there; None for nothing."""

    def names(self) -> AsyncIterator[str]:
        """The names in this directory."""

    async def readlink(self) -> str:
        """A symbolic link's text."""

    async def mkdir(self, mode: int) -> None:
        """Make a directory here."""

    async def symlink(self, text: str) -> None:
        """Make a symbolic link here, in place of what is no directory."""

    async def set(self, facts: Facts) -> None:
        """Give the file permissions and times."""

    async def chmod(self, mode: int) -> None:
        """Give the file permissions."""


@contextlib.contextmanager
def about(*places: Place) -> Iterator[None]:
    """Have an OSError of this block name the place that it is about, as the command line has it: a path on the server
    or a temporary name tells the user nothing. With two places, either may be at fault."""
    try:
        yield
    except OSError as error:
        error.filename = " -> ".join(place.text for place in places)
        raise


def temporary() -> str:
    """A name that nothing has."""
    return TEMPORARY + secrets.token_hex(8)


def set_times(path: str | int, atime_ns: int | None, mtime_ns: int | None) -> None:
    """Set the times of a file of this host, as far as they are known."""
    there = os.stat(path)
    os.utime(
        path,
        ns=(
            there.st_atime_ns if atime_ns is None else atime_ns,
            there.st_mtime_ns if mtime_ns is None else mtime_ns,
        ),
    )


def unfinished(name: str, facts: Facts) -> str:
    """The name under which an incomplete copy of such a file, to be called ``name``, is found again."""
    what = f"{facts.size} {facts.mtime_ns} {name}".encode("utf-8", "surrogateescape")
    return f"{TEMPORARY}{hashlib.sha256(what).hexdigest()[:24]}.part"


class Local:
    """A path of this host."""

    def __init__(self, path: str, text: str | None = None) -> None:
        self.path = path
        self.text = path if text is None else text

    def child(self, name: str) -> Local:
        """A name in this directory."""
        return Local(os.path.join(self.path, name), os.path.join(self.text, name))

    @property
    def name(self) -> str:
        """The last name of the path; that of the directory itself for ``.`` and the like."""
        last = os.path.basename(self.path.rstrip("/"))
        return os.path.basename(os.path.realpath(self.path)) if last in ("", ".", "..") else last

    def resolved(self) -> Local:
        """Where the symbolic links of the path lead."""
        return Local(os.path.realpath(self.path), self.text)

    async def facts(self, *, follow: bool) -> Facts | None:
        """What is there; None for nothing."""
        try:
            found = os.stat(self.path) if follow else os.lstat(self.path)
        except FileNotFoundError:
            return None
        identity = ("local", found.st_dev, found.st_ino)
        return Facts(found.st_mode, found.st_size, found.st_atime_ns, found.st_mtime_ns, identity)

    async def names(self) -> AsyncIterator[str]:
        """The names in this directory."""
        for name in sorted(os.listdir(self.path)):
            yield name

    async def readlink(self) -> str:
        """A symbolic link's text."""
        return os.readlink(self.path)

    async def mkdir(self, mode: int) -> None:
        """Make a directory here."""
        os.mkdir(self.path, mode)

    async def symlink(self, text: str) -> None:
        """Make a symbolic link here, in place of what is no directory."""
        made = os.path.join(os.path.dirname(self.path), temporary())
        os.symlink(text, made)
        try:
            os.rename(made, self.path)
        except BaseException:
            os.unlink(made)
            raise

    async def set(self, facts: Facts) -> None:
        """Give the file permissions and times."""
        os.chmod(self.path, modes.S_IMODE(facts.mode))
        set_times(self.path, facts.atime_ns, facts.mtime_ns)

    async def chmod(self, mode: int) -> None:
        """Give the file permissions."""
        os.chmod(self.path, mode)


class Remote:
    """A path of a server."""

    def __init__(self, fs: FileSystem, path: str, text: str, name: str) -> None:
        self.fs = fs
        self.path = path
        self.text = text
        self.name = name

    def child(self, name: str) -> Remote:
        """A name in this directory."""
        return Remote(self.fs, f"{self.path}/{name}".lstrip("/"), f"{self.text.rstrip('/')}/{name}", name)

    async def facts(self, *, follow: bool) -> Facts | None:
        """What is there; None for nothing."""
        try:
            known = await self.fs.find(self.path, follow_symlinks=follow)
        except FileNotFoundError:
            return None
        found = known.stat
        # Without either number, the same handle is the same file at least (RFC 8881 section 4.2.1).
        numbers = None if found.fsid is None or found.st_ino is None else (found.fsid, found.st_ino)
        identity = (id(self.fs.backend), numbers or known.handle)
        return Facts(found.st_mode, found.st_size, found.st_atime_ns, found.st_mtime_ns, identity)

    async def names(self) -> AsyncIterator[str]:
        """The names in this directory."""
        for name in await self.fs.listdir(self.path):
            yield name

    async def readlink(self) -> str:
        """A symbolic link's text."""
        return await self.fs.readlink(self.path)

    async def mkdir(self, mode: int) -> None:
        """Make a directory here."""
        await self.fs.mkdir(self.path, mode)

    async def symlink(self, text: str) -> None:
        """Make a symbolic link here, in place of what is no directory."""
        made = self.beside()
        await self.fs.symlink(text, made)
        try:
            await self.fs.rename(made, self.path)
        except BaseException:
            await self.fs.remove(made)
            raise

    def beside(self) -> str:
        """A temporary path in the same directory."""
        return self.sibling(temporary())

    def sibling(self, name: str) -> str:
        """The path of another name in the same directory."""
        above, _, _ = self.path.rpartition("/")
        return f"{above}/{name}".lstrip("/")

    async def set(self, facts: Facts) -> None:
        """Give the file permissions and times."""
        changes = Changes(mode=modes.S_IMODE(facts.mode), atime_ns=facts.atime_ns, mtime_ns=facts.mtime_ns)
        await self.fs.change(self.path, changes)

    async def chmod(self, mode: int) -> None:
        """Give the file permissions."""
        await self.fs.chmod(self.path, mode)


Somewhere = Local | Remote
