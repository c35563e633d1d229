"""The copy of one regular file between places: whole, or not at all. Owns :func:`transfer`; imports client and places.

A copy is written under a temporary name beside its target, and gets its name when it is complete, on stable storage
and closed. If a copy that may be continued fails, its part stays, and the next attempt goes on from there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as modes
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from nfsd.client import Changes, File, NfsClientError
from nfsd.client.transfer import Count, Staged, continued_at, copy, receive, send, write_all
from nfsd.commands.places import Facts, Local, Remote, about, set_times, temporary, unfinished


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a finished copy is given."""

    mode: int
    times: tuple[int | None, int | None] | None
    """Access and modification, in nanoseconds, as far as they are known; None: now."""
    continuing: Facts | None = None
    """Of the source, if an incomplete copy of it is to be gone on with, and left for the next time."""


async def transfer(source: Local | Remote, target: Local | Remote, wanted: Wanted, count: Count, skip: Count) -> None:
    """Copy one regular file; ``target`` has the whole copy in the end, or is as it was. ``count`` is told of octets
    that were copied, ``skip`` of those that were there already. Raises OSError."""
    if isinstance(source, Remote):
        with about(source):
            opened = await source.fs.open(source.path)
        async with opened as file:
            if isinstance(target, Local):
                await _to_local(file, source, target, wanted, count, skip)
                return
            async with _draft(target, wanted) as (made, start):
                skip(start)
                with about(source, target):
                    await copy(file, made, count, start=start, staged=wanted.continuing is not None)
        return
    with about(source):
        descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if isinstance(target, Local):
            raise OSError(errno.EINVAL, "both are on this host; cp(1) copies that")
        async with _draft(target, wanted) as (made, start):
            skip(start)
            if start:
                os.lseek(descriptor, start, os.SEEK_SET)
            backend = target.fs.backend
            with about(source, target):
                await send(
                    descriptor, made, count, piece=backend.write_size, depth=backend.depth, start=start,
                    staged=wanted.continuing is not None,
                )  # fmt: skip
    finally:
        os.close(descriptor)


async def _to_local(file: File, source: Remote, target: Local, wanted: Wanted, count: Count, skip: Count) -> None:
    try:
        known = os.stat(target.path).st_mode
    except FileNotFoundError:
        known = modes.S_IFREG
    if not modes.S_ISREG(known):
        # A pipe or a device is written to: there is nothing to be replaced.
        with about(target):
            descriptor = os.open(target.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            with about(source, target):
                await receive(file, lambda data: write_all(descriptor, data), count)
        finally:
            os.close(descriptor)
        return
    with _local_draft(target, wanted) as (descriptor, start):
        with about(source, target):
            if wanted.continuing is None:
                await receive(file, lambda data: write_all(descriptor, data), count)
            else:
                skip(start)
                os.lseek(descriptor, start, os.SEEK_SET)
                await receive(file, Staged(descriptor, start).write, count, start=start)
        with about(target):
            os.fchmod(descriptor, wanted.mode)
            if wanted.times is not None:
                set_times(descriptor, *wanted.times)


@contextlib.contextmanager
def _local_draft(target: Local, wanted: Wanted) -> Iterator[tuple[int, int]]:
    """A new file of this host, or one to be continued: its descriptor, and up to where it is good. It gets its name
    when the block has ended well."""
    continuing = wanted.continuing
    name = temporary() if continuing is None else unfinished(target.name, continuing)
    path = os.path.join(os.path.dirname(target.path), name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with about(target):
        descriptor = os.open(path, flags | (os.O_EXCL if continuing is None else os.O_NONBLOCK), 0o600)
    try:
        try:
            found = os.fstat(descriptor)
            if not modes.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
                # It may be somebody's trap.
                raise OSError(errno.EPERM, "it is in the way of the incomplete copy, and not one of ours", path)
            yield descriptor, continued_at(found.st_size)
        finally:
            os.close(descriptor)
        with about(target):
            os.rename(path, target.path)
    except BaseException as error:
        if continuing is None:
            os.unlink(path)
        else:
            error.add_note(f"the incomplete copy {path} is kept; the same command goes on with it")
        raise


async def _who_we_are(target: Remote) -> str | None:
    """The owner that a file gets which we make there: only the server knows, if it maps users to others."""
    path = target.beside()
    async with target.fs.open(path, "x", permissions=0o600) as file:
        owner = (await file.stat()).owner
    await target.fs.remove(path)
    return owner


@contextlib.asynccontextmanager
async def _draft(target: Remote, wanted: Wanted) -> AsyncIterator[tuple[File, int]]:
    """A new file of a server, or one to be continued, and up to where it is good. It gets its own name when the block
    has ended well, and is removed otherwise, unless it is to be continued."""
    continuing = wanted.continuing
    path = target.sibling(temporary() if continuing is None else unfinished(target.name, continuing))
    start, there = 0, None
    if continuing is not None:
        with contextlib.suppress(FileNotFoundError):
            there = await target.fs.lstat(path)
    if there is None:
        with about(target):
            made = await target.fs.open(path, "x", permissions=0o600)
    elif (
        not modes.S_ISREG(there.st_mode)
        or there.st_nlink != 1
        or there.owner is None
        or there.owner != await _who_we_are(target)
    ):
        # It may be somebody's trap, with what it has in it already.
        raise OSError(errno.EPERM, "it is in the way of the incomplete copy, and not one of ours", path)
    else:
        made, start = await target.fs.open(path, "r+"), continued_at(there.st_size)
    try:
        async with made:
            yield made, start
            with about(target):
                await made.change(
                    Changes(wanted.mode) if wanted.times is None
                    else Changes(wanted.mode, atime_ns=wanted.times[0], mtime_ns=wanted.times[1])
                )  # fmt: skip
        with about(target):
            await target.fs.rename(path, target.path)
    except BaseException as error:
        if continuing is not None:
            error.add_note(f"the incomplete copy {path} is kept; the same command goes on with it")
            raise
        try:
            await target.fs.remove(path)
        except (OSError, NfsClientError):
            error.add_note(f"the incomplete copy {path} may still be on the server")
        raise
