"""``rdma-nfsd mkdir``. Imports the client and what the commands share."""

from __future__ import annotations

import argparse

from nfsd.client import NfsClientError
from nfsd.commands.common import Context, printable, run, urls


def main(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    return run(parsed, _mkdir)


async def _mkdir(context: Context, parsed: argparse.Namespace) -> None:
    for url, text in zip(urls(parsed.urls), parsed.urls, strict=True):
        try:
            fs, path = await context.locate(url)
            if parsed.parents:
                await fs.makedirs(path)
            else:
                await fs.mkdir(path)
            if parsed.mode is not None:
                await fs.chmod(path, parsed.mode)  # whatever the umask is
        except NfsClientError:
            raise
        except OSError as error:
            context.complain(text, error)
            continue
        if parsed.verbose:
            print(f"made {printable(text)}", flush=True)
