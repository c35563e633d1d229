"""``rdma-nfsd mv``. Imports the copies, the removals and what the commands share."""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import stat as modes

from nfsd.client import NfsClientError
from nfsd.client.url import is_url, parse
from nfsd.commands.common import Context, Usage, printable, run
from nfsd.commands.copying import Copying, How, destination, inside, place
from nfsd.commands.places import Local, Remote, Somewhere, about
from nfsd.commands.progress import on_stderr
from nfsd.commands.rm import Removing


def main(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    return run(parsed, _mv)


async def _mv(context: Context, parsed: argparse.Namespace) -> None:
    texts = [*parsed.sources, parsed.target]
    for text in filter(is_url, texts):
        parse(text)
    if not is_url(parsed.target) and not all(map(is_url, parsed.sources)):
        raise Usage("some of these are local and so is the target; mv(1) moves those")
    progress = on_stderr(wanted=parsed.progress, unwanted=parsed.no_progress)
    work = Moving(context, parsed, Copying(context, How(recursive=True, preserve=True), progress))
    try:
        target, into = await destination(context, parsed.target, len(parsed.sources), made=True)
        for text in parsed.sources:
            try:
                source = await place(context, text)
                await work.move(source, inside(source, target) if into else target)
            except NfsClientError:
                raise
            except OSError as error:
                work.copying.failed(text, error)
    finally:
        progress.end()


class Moving:
    """The state of one command."""

    def __init__(self, context: Context, parsed: argparse.Namespace, copying: Copying) -> None:
        self._context = context
        self._no_clobber = parsed.no_clobber
        self._verbose = parsed.verbose
        self.copying = copying

    async def move(self, source: Somewhere, target: Somewhere) -> None:
        """Rename, or, from one server or file system to another, copy and remove. Raises OSError."""
        facts = await source.facts(follow=False)
        if facts is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source.text)
        there = await target.facts(follow=False)
        if there is not None and self._no_clobber:
            return
        if there is not None and there.identity == facts.identity:
            raise OSError(errno.EINVAL, "source and target are the same file")
        if not await self._renamed(source, target):
            if there is not None and modes.S_ISDIR(there.mode):
                raise OSError(errno.EEXIST, f"not moved: {target.text} is a directory, on another file system")
            failed = self._context.failures
            await self.copying.copy(source, target)
            if self._context.failures != failed:
                return  # what has not been copied must not be removed, nor what it lies in
            await self._remove(source, directory=modes.S_ISDIR(facts.mode))
        if self._verbose:
            print(f"{printable(source.text)} -> {printable(target.text)}", flush=True)

    @staticmethod
    async def _renamed(source: Somewhere, target: Somewhere) -> bool:
        """Rename; False: that cannot be done between these places."""
        if (
            not isinstance(source, Remote)
            or not isinstance(target, Remote)
            or source.fs.backend is not target.fs.backend
        ):
            return False
        try:
            with about(source, target):
                await source.fs.rename(source.path, target.path, into=target.fs)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return False
        return True

    async def _remove(self, source: Somewhere, *, directory: bool) -> None:
        if isinstance(source, Remote):
            await Removing(self._context, recursive=True).remove(source.fs, source.path, source.text)
        elif isinstance(source, Local) and directory:
            shutil.rmtree(source.path)
        else:
            os.unlink(source.path)
