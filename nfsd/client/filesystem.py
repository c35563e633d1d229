"""The files of one export, by path. Owns :class:`FileSystem`; imports the backends' protocol, files and paths.

The functions are those of :mod:`os` and :mod:`pathlib` under the same names, and raise the same errors. Paths are
relative to the directory that was connected to, with or without a slash in front.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as modes
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Generic, Protocol, TypeVar

from nfsd.client.errors import Untold
from nfsd.client.files import File, naming
from nfsd.client.resolve import Resolver
from nfsd.client.types import Backend, Changes, Found, Space, Stat

Path = str | os.PathLike[str]


class Closable(Protocol):
    """What is closed in the end."""

    async def close(self) -> None:
        """Close it."""


T = TypeVar("T", bound=Closable)

_MODES: Final = {"r": (False, False), "r+": (True, False), "w": (True, True), "x": (True, True), "a": (True, True)}
"""Of open: whether it is for writing, and whether it creates."""


class Managed(Generic[T]):
    """Something being opened: await it, and close it yourself; or use it with ``async with``."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._made: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._make().__await__()

    async def __aenter__(self) -> T:
        self._made = await self._make()
        return self._made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        made, self._made = self._made, None
        if made is None:
            return
        if error is None:
            await made.close()
        else:
            with contextlib.suppress(OSError):  # the first error is the one to be heard of
                await made.close()


@dataclass(frozen=True, slots=True)
class DirEntry:
    """One name of a directory, with its attributes as the directory's reply had them."""

    name: str
    path: str
    stat: Stat | None
    """Of the file itself, not of what a symbolic link leads to. None where the server refuses to tell, or cannot."""

    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.stat is not None and modes.S_ISDIR(self.stat.st_mode)

    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.stat is not None and modes.S_ISREG(self.stat.st_mode)

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return self.stat is not None and modes.S_ISLNK(self.stat.st_mode)


class FileSystem:
    """The files below one directory of a server."""

    def __init__(self, backend: Backend, root: Found, close: Callable[[], Awaitable[None]]) -> None:
        self.backend = backend
        self.root = root
        self._resolver = Resolver(backend, root)
        self._close = close

    @property
    def version(self) -> str:
        """Of NFS: ``3`` or ``4.1``."""
        return self.backend.version

    async def __aenter__(self) -> FileSystem:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the use of the server: what is open is closed, and the connection."""
        await self._close()

    # -- looking -----------------------------------------------------------------------------------------------------
    async def stat(self, path: Path, *, follow_symlinks: bool = True) -> Stat:
        """A file's attributes."""
        return (await self.find(path, follow_symlinks=follow_symlinks)).stat

    async def find(self, path: Path, *, follow_symlinks: bool = True) -> Found:
        """A file's handle and its attributes."""
        with naming(os.fspath(path)):
            found = await self._resolver.find(path, follow=follow_symlinks)
            if found is self._resolver.root:
                return Found(found.handle, await self.backend.getattr(found.handle))
            return found

    async def lstat(self, path: Path) -> Stat:
        """As ``stat``, of a symbolic link itself."""
        return await self.stat(path, follow_symlinks=False)

    async def exists(self, path: Path) -> bool:
        """Whether a path leads to something."""
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def readlink(self, path: Path) -> str:
        """A symbolic link's text."""
        with naming(os.fspath(path)):
            found = await self._resolver.find(path, follow=False)
            if not modes.S_ISLNK(found.stat.st_mode):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return os.fsdecode(await self.backend.readlink(found.handle))

    async def space(self, path: Path = "") -> Space:
        """The room of the file system that a path is in: statvfs(3)'s, in octets."""
        with naming(os.fspath(path)):
            return await self.backend.space((await self._resolver.find(path)).handle)

    async def scandir(self, path: Path = "") -> AsyncIterator[DirEntry]:
        """The names of a directory, in the server's order, as they arrive."""
        text = os.fspath(path)
        with naming(text):
            found = await self._resolver.find(path)
            if not modes.S_ISDIR(found.stat.st_mode):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            async for entry in self.backend.readdir(found.handle):
                if entry.name in (b"", b".", b"..") or b"/" in entry.name or b"\0" in entry.name:
                    # It would lead programs that put names together to somewhere else.
                    raise OSError(errno.EREMOTEIO, f"the server says that there is a file named {entry.name!r}")
                stat = entry.stat
                if stat is None:
                    try:
                        stat = (await self.backend.lookup(found.handle, entry.name)).stat
                    except FileNotFoundError:
                        continue  # gone since
                    except OSError as error:
                        # A referral has a name, and hardly any attributes (RFC 8881 section 11.4.2).
                        if not isinstance(error, PermissionError | Untold) and error.errno != errno.EREMOTE:
                            raise
                name = os.fsdecode(entry.name)
                yield DirEntry(name, f"{text.rstrip('/')}/{name}" if text else name, stat)

    async def listdir(self, path: Path = "") -> list[str]:
        """The names of a directory, sorted."""
        return sorted([entry.name async for entry in self.scandir(path)])

    async def walk(self, top: Path = "") -> AsyncIterator[tuple[str, list[DirEntry], list[DirEntry]]]:
        """A tree from its top down, as ``os.walk`` does it: (path, directories, everything else), each sorted by name.
        Directories taken out of their list are not entered. Symbolic links are not followed."""
        left = [os.fspath(top)]
        while left:
            path = left.pop()
            entries = sorted([entry async for entry in self.scandir(path)], key=lambda entry: entry.name)
            directories = [entry for entry in entries if entry.is_dir()]
            yield path, directories, [entry for entry in entries if not entry.is_dir()]
            left += [entry.path for entry in reversed(directories)]

    # -- files -------------------------------------------------------------------------------------------------------
    def open(self, path: Path, mode: str = "r", *, permissions: int = 0o666) -> Managed[File]:
        """Open a regular file, for octets: ``r``, ``r+``, ``w`` (created or emptied), ``x`` (created, or an error) and
        ``a`` (created, or continued at its end). ``permissions``, less the process's umask, are those of a new file."""
        kind = mode.replace("b", "")
        if kind not in _MODES:
            raise ValueError(f"mode {mode!r} is none of r, r+, w, x, a")
        return Managed(lambda: self._open(path, kind, permissions))

    async def _open(self, path: Path, kind: str, permissions: int) -> File:
        write, create = _MODES[kind]
        text = os.fspath(path)
        with naming(text):
            found: Found | None = None
            if kind != "x":
                try:
                    found = await self._resolver.find(path)
                except FileNotFoundError:
                    if not create:
                        raise
            if found is None:
                directory, name = await self._resolver.parent(path)
                opened, stat = await self.backend.create(
                    directory, name, permissions & ~_umask(), exclusive=kind == "x"
                )
                size = 0 if kind == "x" or stat is None else stat.st_size
            else:
                if not modes.S_ISREG(found.stat.st_mode):
                    number = errno.EISDIR if modes.S_ISDIR(found.stat.st_mode) else errno.EINVAL
                    raise OSError(number, os.strerror(number))
                opened, size = await self.backend.open(found.handle, write=write), found.stat.st_size
            file = File(self.backend, opened, text, size, writable=write)
            if kind == "w" and size:
                try:
                    await file.truncate(0)
                except BaseException:
                    with contextlib.suppress(OSError):
                        await file.close()
                    raise
            if kind == "a":
                file.seek(size)
            return file

    async def read_bytes(self, path: Path) -> bytes:
        """A whole file."""
        async with self.open(path) as file:
            return await file.read()

    async def write_bytes(self, path: Path, data: bytes | bytearray | memoryview) -> int:
        """Make a file of these octets, or replace its content by them; on the server's disk when this returns."""
        async with self.open(path, "w") as file:
            return await file.write(data)

    # -- changing ----------------------------------------------------------------------------------------------------
    async def change(self, path: Path, changes: Changes, *, follow_symlinks: bool = True) -> None:
        """Set attributes."""
        with naming(os.fspath(path)):
            found = await self._resolver.find(path, follow=follow_symlinks)
            await self.backend.setattr(found.handle, changes)

    async def chmod(self, path: Path, mode: int) -> None:
        """Set the permissions."""
        await self.change(path, Changes(mode=mode & 0o7777))

    async def chown(self, path: Path, uid: int = -1, gid: int = -1, *, follow_symlinks: bool = True) -> None:
        """Set owner and group; -1 leaves one as it is."""
        changes = Changes(uid=None if uid < 0 else uid, gid=None if gid < 0 else gid)
        await self.change(path, changes, follow_symlinks=follow_symlinks)

    async def utime(self, path: Path, *, ns: tuple[int, int]) -> None:
        """Set the times of access and modification, in nanoseconds."""
        await self.change(path, Changes(atime_ns=ns[0], mtime_ns=ns[1]))

    async def truncate(self, path: Path, size: int) -> None:
        """Cut a file, or extend it by zeros."""
        async with self.open(path, "r+") as file:
            await file.truncate(size)

    async def mkdir(self, path: Path, mode: int = 0o777, *, exist_ok: bool = False) -> None:
        """Make a directory."""
        with naming(os.fspath(path)):
            try:
                directory, name = await self._resolver.parent(path)
                await self.backend.mkdir(directory, name, mode & ~_umask())
            except FileExistsError:
                if not exist_ok or not modes.S_ISDIR((await self._resolver.find(path)).stat.st_mode):
                    raise

    async def makedirs(self, path: Path, mode: int = 0o777) -> None:
        """Make a directory and those above it that are missing."""
        parts = [part for part in os.fspath(path).split("/") if part]
        for count in range(1, len(parts) + 1):
            above = "/".join(parts[:count])
            if not await self.exists(above) or count == len(parts):
                await self.mkdir(above, mode, exist_ok=True)

    async def symlink(self, text: str, path: Path) -> None:
        """Make a symbolic link that says ``text``."""
        with naming(os.fspath(path)):
            directory, name = await self._resolver.parent(path)
            await self.backend.symlink(directory, name, os.fsencode(text))

    async def link(self, source: Path, path: Path) -> None:
        """Give a file another name."""
        with naming(os.fspath(path)):
            found = await self._resolver.find(source, follow=False)
            directory, name = await self._resolver.parent(path)
            await self.backend.link(found.handle, directory, name)

    async def remove(self, path: Path) -> None:
        """Remove a name that is no directory's."""
        with naming(os.fspath(path)):
            await self.backend.remove(*await self._resolver.parent(path))

    async def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        with naming(os.fspath(path)):
            directory, name = await self._resolver.parent(path)
            await self.backend.rmdir(directory, name)
            self._resolver.forget()

    async def rmtree(self, path: Path) -> None:
        """Remove a directory and everything below it."""
        below = [entry async for entry in self.scandir(path)]
        for entry in below:
            await (self.rmtree(entry.path) if entry.is_dir() else self.remove(entry.path))
        await self.rmdir(path)

    async def rename(self, source: Path, target: Path, *, into: FileSystem | None = None) -> None:
        """Give a file another name; what had that name is replaced. ``into``: the target is a path there, in another
        directory of the same server."""
        other = into or self
        with naming(os.fspath(source)):
            old_directory, old = await self._resolver.parent(source)
            new_directory, new = await other._resolver.parent(target)
            await self.backend.rename(old_directory, old, new_directory, new)
            self._resolver.forget()
            other._resolver.forget()


def _umask() -> int:
    """This process's umask, which can only be read by setting it: in this thread, between two calls."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
