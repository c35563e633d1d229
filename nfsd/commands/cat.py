"""``rdma-nfsd cat``. Imports the client and what the commands share."""

from __future__ import annotations

import argparse
import sys

from nfsd.client import NfsClientError
from nfsd.client.transfer import receive, write_all
from nfsd.commands.common import Context, OutputGone, reason, run, urls


def main(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    return run(parsed, _cat)


async def _cat(context: Context, parsed: argparse.Namespace) -> None:
    out = sys.stdout.fileno()

    def write(data: memoryview) -> None:
        try:
            write_all(out, data)
        except BrokenPipeError:
            raise OutputGone from None
        except OSError as error:
            # The next file could not be written either.
            raise NfsClientError(f"standard output: {reason(error)}") from error

    for url, text in zip(urls(parsed.urls), parsed.urls, strict=True):
        try:
            fs, path = await context.locate(url)
            async with fs.open(path) as file:
                await receive(file, write, lambda octets: None)
        except OSError as error:
            context.complain(text, error)
