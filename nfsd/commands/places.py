"""The two kinds of places that ``cp`` copies between: this host's files and a server's. Owns :class:`Local`,
:class:`Remote` and what they have in common, :class:`Place`; imports the client.

A place is one path. Files are written under a temporary name beside it and renamed when they are complete: see
``Draft``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat as modes
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

from nfsd.client import Changes, File, FileSystem, NfsClientError
from nfsd.client.transfer import Count, copy, receive, send, write_all

TEMPORARY = ".rdma-nfsd-"
"""What the temporary names begin with."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a copy needs to know of a file."""

    mode: int
    size: int
    atime_ns: int
    mtime_ns: int
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


def temporary() -> str:
    """A name that nothing has."""
    return TEMPORARY + secrets.token_hex(8)


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
        os.utime(self.path, ns=(facts.atime_ns, facts.mtime_ns))

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
            found = await self.fs.stat(self.path, follow_symlinks=follow)
        except FileNotFoundError:
            return None
        identity = (id(self.fs.backend), found.fsid, found.st_ino)
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
        above, _, _ = self.path.rpartition("/")
        return f"{above}/{temporary()}".lstrip("/")

    async def set(self, facts: Facts) -> None:
        """Give the file permissions and times."""
        changes = Changes(mode=modes.S_IMODE(facts.mode), atime_ns=facts.atime_ns, mtime_ns=facts.mtime_ns)
        await self.fs.change(self.path, changes)

    async def chmod(self, mode: int) -> None:
        """Give the file permissions."""
        await self.fs.chmod(self.path, mode)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a finished copy is given."""

    mode: int
    times: tuple[int, int] | None
    """Access and modification, in nanoseconds; None: now."""


async def transfer(source: Local | Remote, target: Local | Remote, wanted: Wanted, count: Count) -> None:
    """Copy one regular file; ``target`` has the whole copy in the end, or is as it was. Raises OSError."""
    if isinstance(source, Remote):
        async with source.fs.open(source.path) as file:
            if isinstance(target, Local):
                await _to_local(file, target, wanted, count)
            else:
                async with _draft(target, wanted) as made:
                    await copy(file, made, count)
        return
    descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if isinstance(target, Local):
            raise OSError(errno.EINVAL, "both are on this host; cp(1) copies that", source.path)
        async with _draft(target, wanted) as made:
            backend = target.fs.backend
            await send(descriptor, made, count, piece=backend.write_size, depth=backend.depth)
    finally:
        os.close(descriptor)


async def _to_local(file: File, target: Local, wanted: Wanted, count: Count) -> None:
    try:
        known = os.stat(target.path).st_mode
    except FileNotFoundError:
        known = modes.S_IFREG
    if not modes.S_ISREG(known):
        # A pipe or a device is written to: there is nothing to be replaced.
        descriptor = os.open(target.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            await receive(file, lambda data: write_all(descriptor, data), count)
        finally:
            os.close(descriptor)
        return
    path = os.path.join(os.path.dirname(target.path), temporary())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            await receive(file, lambda data: write_all(descriptor, data), count)
            os.fchmod(descriptor, wanted.mode)
            if wanted.times is not None:
                os.utime(descriptor, ns=wanted.times)
        finally:
            os.close(descriptor)
        os.rename(path, target.path)
    except BaseException:
        os.unlink(path)
        raise


@contextlib.asynccontextmanager
async def _draft(target: Remote, wanted: Wanted) -> AsyncIterator[File]:
    """A new file under a temporary name, which gets its own when the block has ended well, and is removed otherwise."""
    path = target.beside()
    made = await target.fs.open(path, "x", permissions=0o600)
    try:
        async with made:
            yield made
            await made.change(
                Changes(wanted.mode) if wanted.times is None
                else Changes(wanted.mode, atime_ns=wanted.times[0], mtime_ns=wanted.times[1])
            )  # fmt: skip
        await target.fs.rename(path, target.path)
    except BaseException as error:
        try:
            await target.fs.remove(path)
        except (OSError, NfsClientError):
            error.add_note(f"the incomplete copy {path} may still be on the server")
        raise
