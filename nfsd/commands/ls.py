"""``rdma-nfsd ls``. Imports the client and what the commands share."""

from __future__ import annotations

import argparse
import locale
import os
import shutil
import stat as modes
from collections.abc import Sequence
from dataclasses import dataclass

from nfsd.client import FileSystem, NfsClientError, Stat
from nfsd.commands import format as words
from nfsd.commands.common import Context, run, urls


@dataclass(frozen=True, slots=True)
class Entry:
    """One name to be listed."""

    name: str
    stat: Stat | None
    fs: FileSystem
    path: str


def main(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    locale.setlocale(locale.LC_COLLATE, "")
    parsed.long = parsed.long or parsed.numeric_uid_gid
    return run(parsed, _ls)


async def _ls(context: Context, parsed: argparse.Namespace) -> None:
    files: list[Entry] = []
    directories: list[Entry] = []
    for url, text in zip(urls(parsed.urls), parsed.urls, strict=True):
        try:
            fs, path = await context.locate(url)
            # A link on the command line is followed, unless it is to be described itself.
            stat = await fs.stat(path, follow_symlinks=not (parsed.directory or parsed.long))
        except NfsClientError:
            raise
        except OSError as error:
            context.complain(text, error)
            continue
        entry = Entry(text, stat, fs, path)
        is_directory = modes.S_ISDIR(stat.st_mode) and not parsed.directory
        (directories if is_directory else files).append(entry)
    await _show(context, parsed, _sorted(parsed, files))
    headings = len(parsed.urls) > 1 or parsed.recursive
    first = not files
    left = list(reversed(_sorted(parsed, directories)))
    while left:
        directory = left.pop()
        if headings:
            context.write(("" if first else "\n") + context.shown(directory.name) + ":\n")
        first = False
        try:
            below = await _entries(directory, everything=parsed.all)
        except NfsClientError:
            raise
        except OSError as error:
            context.complain(directory.name, error)
            continue
        if parsed.long:
            context.write(f"total {(sum(e.stat.st_blocks for e in below if e.stat is not None) + 1) // 2}\n")
        ordered = _sorted(parsed, below)
        await _show(context, parsed, ordered)
        if parsed.recursive:
            above = directory.name.rstrip("/")
            left += [
                Entry(f"{above}/{e.name}", e.stat, e.fs, e.path)
                for e in reversed(ordered)
                if e.stat is not None and modes.S_ISDIR(e.stat.st_mode) and e.name not in (".", "..")
            ]


async def _entries(directory: Entry, *, everything: bool) -> list[Entry]:
    found = [
        Entry(entry.name, entry.stat, directory.fs, entry.path)
        async for entry in directory.fs.scandir(directory.path)
        if everything or not entry.name.startswith(".")
    ]
    if everything:
        stat = await directory.fs.stat(directory.path)
        found.append(Entry(".", stat, directory.fs, directory.path))
    return found


def _sorted(parsed: argparse.Namespace, entries: Sequence[Entry]) -> list[Entry]:
    def by_name(entry: Entry) -> tuple[str, bytes]:
        try:
            return locale.strxfrm(entry.name), b""
        except (ValueError, OSError):  # not UTF-8
            return "", os.fsencode(entry.name)

    made = sorted(entries, key=by_name)
    if parsed.by_size:
        made.sort(key=lambda entry: -(entry.stat.st_size if entry.stat is not None else 0))
    elif parsed.by_time:
        made.sort(key=lambda entry: -((entry.stat and entry.stat.st_mtime_ns) or 0))
    if parsed.reverse:
        made.reverse()
    return made


async def _show(context: Context, parsed: argparse.Namespace, entries: Sequence[Entry]) -> None:
    if parsed.long:
        for line in _aligned([await _long(context, parsed, entry) for entry in entries]):
            context.write(line + "\n")
    else:
        names = [
            (f"{words.told(entry.stat and entry.stat.st_ino)} " if parsed.inode else "") + context.shown(entry.name)
            for entry in entries
        ]
        lines = columns(names, shutil.get_terminal_size().columns) if context.terminal and not parsed.one else names
        for line in lines:
            context.write(line + "\n")
    context.flush()


async def _long(context: Context, parsed: argparse.Namespace, entry: Entry) -> list[str]:
    """The cells of one line; the last is not aligned."""
    stat = entry.stat
    name = context.shown(entry.name)
    if stat is None:
        cells = ["??????????", "?", "?", "?", "?", "?", name]
    else:
        if modes.S_ISLNK(stat.st_mode):
            try:
                name += " -> " + context.shown(await entry.fs.readlink(entry.path))
            except OSError as error:
                context.complain(entry.name, error)
        plain = parsed.numeric_uid_gid
        cells = [
            modes.filemode(stat.st_mode),
            words.told(stat.st_nlink),
            words.told(stat.owner) if plain else context.shown(words.user(stat.owner)),
            words.told(stat.group) if plain else context.shown(words.group(stat.group)),
            words.size_of(stat, in_units=parsed.human_readable),
            words.when(stat.st_mtime_ns, context.now),
            name,
        ]
    return [words.told(stat and stat.st_ino), *cells] if parsed.inode else cells


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Numbers to the right, words to the left, the name as it is."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first = len(rows[0]) - 7
    """The column of the permissions: the file's number may come before it."""
    right = {0, first + 1, first + 4} if first else {1, 4}
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(" ".join([*cells[:-1], row[-1]]))
    return lines


def columns(names: Sequence[str], width: int) -> list[str]:
    """Names in as many columns as fit into ``width``, to be read downwards."""
    if not names:
        return []
    for count in range(min(len(names), max(1, width // 3)), 0, -1):
        rows = -(-len(names) // count)
        cut = [names[index : index + rows] for index in range(0, len(names), rows)]
        widths = [max(map(len, column)) + 2 for column in cut]
        if sum(widths) - 2 <= width or count == 1:
            return [
                "".join(
                    column[row].ljust(w) for column, w in zip(cut, widths, strict=True) if row < len(column)
                ).rstrip()
                for row in range(rows)
            ]
    raise AssertionError
