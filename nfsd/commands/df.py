"""``rdma-nfsd df``. Imports the client and what the commands share."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable

from nfsd.client import NfsClientError
from nfsd.commands.common import Context, run, urls
from nfsd.commands.format import human
from nfsd.tables import columns


def main(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    return run(parsed, _df)


async def _df(context: Context, parsed: argparse.Namespace) -> None:
    rows = [["URL", *(["files", "used", "free"] if parsed.inodes else ["size", "used", "available"]), "use"]]
    for url, text in zip(urls(parsed.urls), parsed.urls, strict=True):
        try:
            fs, path = await context.locate(url)
            space = await fs.space(path)
        except NfsClientError:
            raise
        except OSError as error:
            context.complain(text, error)
            continue
        if parsed.json:
            context.write(json.dumps({"url": text, **dataclasses.asdict(space)}) + "\n")
        elif parsed.inodes:
            rows.append([context.shown(text), *_row(space.files, space.files_free, space.files_available, str)])
        else:
            words = human if parsed.human_readable else _kibi
            rows.append([context.shown(text), *_row(space.total, space.free, space.available, words)])
    if len(rows) > 1:
        context.write("\n".join(columns(rows)) + "\n")


def _kibi(octets: int) -> str:
    """Units of 1024 octets, rounded up, as df(1) has them."""
    return str(-(-octets // 1024))


def _row(total: int | None, free: int | None, available: int | None, words: Callable[[int], str]) -> list[str]:
    """All, used, available, and the share that is used, rounded up; "-" for what the server does not tell."""
    used = None if total is None or free is None else max(0, total - free)
    shown = ["-" if number is None else words(number) for number in (total, used, available)]
    share = "-"
    if used is not None and available is not None and used + available:
        share = f"{-(-100 * used // (used + available))}%"
    return [*shown, share]
