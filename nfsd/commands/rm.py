"""``rdma-nfsd rm``. Owns :class:`Removing`; imports the client and what the commands share."""

from __future__ import annotations

import argparse
import errno
from collections.abc import Callable

from nfsd.client import DirEntry, FileSystem, NfsClientError, Stat
from nfsd.client.pipeline import each
from nfsd.commands.common import Context, printable, run, urls

AT_A_TIME = 8
"""Names of one directory that are removed at a time."""


def main(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    return run(parsed, _rm)


async def _rm(context: Context, parsed: argparse.Namespace) -> None:
    def say(text: str) -> None:
        if parsed.verbose:
            print(f"removed {printable(text)}", flush=True)

    work = Removing(context, recursive=parsed.recursive, say=say)
    for url, text in zip(urls(parsed.urls), parsed.urls, strict=True):
        try:
            fs, path = await context.locate(url)
            await work.remove(fs, path, text.rstrip("/"))
        except NfsClientError:
            raise
        except OSError as error:
            if not parsed.force or error.errno != errno.ENOENT:
                context.complain(text, error)


class Removing:
    """The state of one command. Symbolic links are removed, not followed; other file systems are not entered."""

    def __init__(self, context: Context, *, recursive: bool, say: Callable[[str], None] = lambda text: None) -> None:
        self._context = context
        self._recursive = recursive
        self._say = say

    async def remove(self, fs: FileSystem, path: str, text: str) -> None:
        """Remove what a path leads to. Raises OSError for the path itself; says what fails below it."""
        found = await fs.lstat(path)
        entry = DirEntry(path.rpartition("/")[2], path, found)
        if not entry.is_dir():
            await fs.remove(path)
        elif not self._recursive:
            raise OSError(errno.EISDIR, "a directory, which is removed with -r only")
        else:
            above = await fs.stat(path.rpartition("/")[0]) if path else None
            if above is None or _differ(above, found):
                # Its own name would stay, and all that is in it be gone.
                raise OSError(errno.EBUSY, "an export, or a file system of its own; name what is in it")
            if not await self._tree(fs, entry, found, text):
                return
        self._say(text)

    async def _tree(self, fs: FileSystem, directory: DirEntry, top: Stat, text: str) -> bool:
        """Remove a directory with everything below it; whether nothing is left of it."""
        before = self._context.failures
        entries = [entry async for entry in fs.scandir(directory.path)]

        async def one(entry: DirEntry) -> None:
            name = f"{text}/{entry.name}"
            try:
                if not entry.is_dir():
                    await fs.remove(entry.path)
                elif _differ(await _told(fs, entry), top):
                    raise OSError(errno.EXDEV, "a file system of its own; not entered")
                elif not await self._tree(fs, entry, top, name):
                    return
            except NfsClientError:
                raise
            except FileNotFoundError:
                return  # somebody else was quicker
            except OSError as error:
                self._context.complain(name, error)
                return
            self._say(name)

        await each(entries, one, AT_A_TIME if len(entries) > 1 else 1)
        if self._context.failures != before:
            return False
        await fs.rmdir(directory.path)
        return True


async def _told(fs: FileSystem, entry: DirEntry) -> Stat:
    """The attributes of an entry; asked for again where the listing did not say which file system it is in."""
    if entry.stat is None or entry.stat.fsid is None:
        return await fs.lstat(entry.path)
    return entry.stat


def _differ(one: Stat, other: Stat) -> bool:
    """Whether two files are in different file systems. Raises OSError where the server does not tell."""
    if one.fsid is None or other.fsid is None:
        raise OSError(
            errno.EOPNOTSUPP,
            "the server does not say which file system the directory is in, and -r must not leave one;"
            " try --nfs-version 3, or name the files in it",
        )
    return one.fsid != other.fsid
