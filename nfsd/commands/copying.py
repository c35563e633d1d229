"""The copies of one command: files, directories, links. Owns :class:`Copying`; imports places, and the copy of one."""

from __future__ import annotations

import errno
import os
import stat as modes
import sys
from dataclasses import dataclass

from nfsd.client import NfsClientError
from nfsd.client.pipeline import each
from nfsd.client.url import is_url, parse
from nfsd.commands.common import Context, printable
from nfsd.commands.files import Wanted, transfer
from nfsd.commands.places import TEMPORARY, Facts, Local, Remote, Somewhere, about
from nfsd.commands.progress import Progress

FILES_AT_A_TIME = 4
"""Of one directory: small files take more round trips than time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a command copies."""

    recursive: bool = False
    preserve: bool = False
    no_clobber: bool = False
    verbose: bool = False
    continuing: bool = False
    """Incomplete copies are gone on with and left for the next time, and what is complete is left as it is."""


async def place(context: Context, text: str) -> Somewhere:
    """The place that a command line names: a URL, or a local path. Raises UrlError, NfsClientError, OSError."""
    if not is_url(text):
        return Local(text)
    url = parse(text)
    fs, path = await context.locate(url)
    return Remote(fs, path, text, os.fsdecode(url.names[-1]) if url.names else "")


async def destination(context: Context, text: str, sources: int, *, made: bool) -> tuple[Somewhere, bool]:
    """Where the sources of a command line go, and whether that is a directory they go into; ``made``: one that is
    missing would be made. Raises OSError."""
    target = await place(context, text)
    there = await target.facts(follow=True)
    into = there is not None and modes.S_ISDIR(there.mode)
    if not into and (sources > 1 or (text.endswith("/") and not made)):
        what = "is no directory" if there is not None else "does not exist"
        raise OSError(errno.ENOTDIR, f"{what}, and a directory is needed", text)
    return target, into


def inside(source: Somewhere, target: Somewhere) -> Somewhere:
    """The place of a source's name in a directory. Raises OSError where it has none."""
    if not source.name:
        raise OSError(errno.EINVAL, "an export has no name of its own; name the directory to be made of it")
    return target.child(source.name)


class Copying:
    """The state of one command."""

    def __init__(self, context: Context, how: How, progress: Progress) -> None:
        self._context = context
        self._how = how
        self._progress = progress
        self._made: set[tuple[object, ...]] = set()
        """The directories that this copy has made: one of them as a source would go on without end."""
        self._umask = os.umask(0)
        os.umask(self._umask)

    def failed(self, source: str, error: OSError) -> None:
        """Say that a source was not copied, by the place that is at fault if the error names one, and go on."""
        self._progress.clear()
        self._context.complain(error.filename or source, error)
        for note in getattr(error, "__notes__", ()):
            if note.startswith("the incomplete copy"):
                print(f"rdma-nfsd {self._context.command}: {printable(note)}", file=sys.stderr)

    async def copy(self, source: Somewhere, target: Somewhere, *, top: bool = False) -> None:
        """Copy whatever it is. Raises OSError for ``source`` itself; says what fails below it."""
        with about(source):
            facts = await source.facts(follow=not self._how.recursive)
        if facts is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source.text)
        with about(target):
            there = await target.facts(follow=False)
            if there is not None and top and modes.S_ISLNK(there.mode):
                # What the command line names is written through links; what lies below is not: it may be a trap.
                there = await target.facts(follow=True)
                if isinstance(target, Local):
                    target = target.resolved()
        if there is not None and there.identity == facts.identity:
            raise OSError(errno.EINVAL, "source and target are the same file")
        if modes.S_ISDIR(facts.mode):
            if not self._how.recursive:
                raise OSError(errno.EISDIR, "a directory, which is copied with -r only")
            await self._directory(source, target, facts, there)
            return
        if there is not None and modes.S_ISDIR(there.mode):
            raise OSError(errno.EISDIR, f"not copied: {target.text} is a directory")
        if there is not None and (self._how.no_clobber or (self._how.continuing and self._is_done(facts, there))):
            return
        if modes.S_ISLNK(facts.mode):
            with about(source):
                text = await source.readlink()
            with about(target):
                await target.symlink(text)
        elif modes.S_ISREG(facts.mode) or (isinstance(source, Local) and self._to_be_read(facts.mode)):
            await self._file(source, target, facts)
        else:
            raise OSError(errno.EINVAL, "neither a regular file nor a directory nor a symbolic link; not copied")
        if self._how.verbose:
            self._progress.clear()
            print(f"{printable(source.text)} -> {printable(target.text)}", flush=True)

    @staticmethod
    def _is_done(facts: Facts, there: Facts) -> bool:
        """Whether a file that is to be copied has been, as far as size and times tell."""
        whole = modes.S_ISREG(facts.mode) and modes.S_ISREG(there.mode) and facts.size == there.size
        if facts.mtime_ns is None or there.mtime_ns is None:
            return False
        return whole and facts.mtime_ns <= there.mtime_ns

    def _to_be_read(self, mode: int) -> bool:
        """Whether a pipe or a device that is named on the command line is meant for what can be read from it."""
        return not self._how.recursive and (modes.S_ISFIFO(mode) or modes.S_ISCHR(mode))

    async def _file(self, source: Somewhere, target: Somewhere, facts: Facts) -> None:
        if self._progress.total is not None:
            # What is no regular file says nothing of its size.
            self._progress.total = self._progress.total + facts.size if modes.S_ISREG(facts.mode) else None

        def count(octets: int) -> None:
            self._progress.count(octets)
            self._progress.show(source.name)

        # Without a time nothing tells whether the source is still the one that has been copied in part.
        known = modes.S_ISREG(facts.mode) and facts.mtime_ns is not None
        continuing = facts if self._how.continuing and known else None
        if self._how.preserve:
            wanted = Wanted(modes.S_IMODE(facts.mode), (facts.atime_ns, facts.mtime_ns), continuing)
        else:
            wanted = Wanted(facts.mode & 0o777 & ~self._umask, None, continuing)
        await transfer(source, target, wanted, count, self._progress.skip)
        self._progress.files += 1

    async def _directory(self, source: Somewhere, target: Somewhere, facts: Facts, there: Facts | None) -> None:
        if facts.identity in self._made:
            raise OSError(errno.EINVAL, f"not copied: the directory cannot be copied into itself, {target.text}")
        with about(source):
            names = [name async for name in source.names() if not name.startswith(TEMPORARY)]
        if there is None:
            # Whatever its permissions will be: it must be written into first.
            with about(target):
                await target.mkdir(0o700)
                made = await target.facts(follow=False)
            if made is not None:
                self._made.add(made.identity)
        elif not modes.S_ISDIR(there.mode):
            raise OSError(errno.ENOTDIR, f"not copied: {target.text} is no directory")
        self._progress.total = None  # what else there is shows only as it is copied
        failed_before = self._context.failures

        async def one(name: str) -> None:
            below = source.child(name)
            try:
                await self.copy(below, target.child(name))
            except NfsClientError:
                raise
            except OSError as error:
                self.failed(below.text, error)

        await each(names, one, FILES_AT_A_TIME)
        mode = modes.S_IMODE(facts.mode) if self._how.preserve else facts.mode & 0o777 & ~self._umask
        with about(target):
            if self._how.preserve:
                await target.set(Facts(mode, 0, facts.atime_ns, facts.mtime_ns, ()))
            elif there is None:
                await target.chmod(mode)
        if self._context.failures == failed_before and self._how.verbose:
            print(f"{printable(source.text)} -> {printable(target.text)}", flush=True)
