"""``rdma-nfsd cp``. Imports the copies and what the commands share."""

from __future__ import annotations

import argparse

from nfsd.client import NfsClientError
from nfsd.client.url import is_url, parse
from nfsd.commands.common import Context, Usage, run
from nfsd.commands.copying import Copying, How, destination, inside, place
from nfsd.commands.progress import on_stderr


def main(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    return run(parsed, _cp)


async def _cp(context: Context, parsed: argparse.Namespace) -> None:
    texts = [*parsed.sources, parsed.target]
    if not any(map(is_url, texts)):
        raise Usage("none of these is a URL; cp(1) copies between local paths")
    for text in filter(is_url, texts):
        parse(text)  # what is wrong with any of them is said before anything is done
    if not is_url(parsed.target) and not all(map(is_url, parsed.sources)):
        raise Usage("some of these are local and so is the target; cp(1) copies those")
    progress = on_stderr(wanted=parsed.progress, unwanted=parsed.no_progress)
    how = How(
        recursive=parsed.recursive, preserve=parsed.preserve, no_clobber=parsed.no_clobber, verbose=parsed.verbose,
        continuing=parsed.__dict__["continue"],
    )  # fmt: skip
    work = Copying(context, how, progress)
    try:
        target, into = await destination(context, parsed.target, len(parsed.sources), made=parsed.recursive)
        for text in parsed.sources:
            try:
                source = await place(context, text)
                await work.copy(source, inside(source, target) if into else target, top=True)
            except NfsClientError:
                raise
            except OSError as error:
                work.failed(text, error)
    finally:
        progress.end()
