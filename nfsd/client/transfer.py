"""Whole files between a server and a descriptor of this host. Imports asyncio and this package's files.

A copy that may be continued goes in stages. Everything before a stage is on stable storage before the first octet of
the stage is written, whatever the order of its WRITEs. So the length of the part tells where to go on
(:func:`continued_at`), also after a crash of either side.

The server's side has several calls in flight. The descriptor is read and written in order, so it may be a pipe. A
thread does that, so a slow disk holds up no calls.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Final

from nfsd.client.files import UNCOMMITTED_LIMIT, File
from nfsd.client.pipeline import each

MAX_OFFSET: Final = (1 << 63) - 1

Count = Callable[[int], None]
"""Is told of every so many octets that have been moved."""
STAGE: Final = UNCOMMITTED_LIMIT
"""Octets between two points where a copy can be continued: no more COMMITs than there are anyway."""


def continued_at(size: int) -> int:
    """Up to where a copy in stages is good that has become so many octets long."""
    return max(0, size - 1) // STAGE * STAGE


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of it."""
    while data:
        data = data[os.write(descriptor, data) :]


async def receive(file: File, write: Callable[[memoryview], None], count: Count, *, start: int = 0) -> None:
    """Have ``write`` called with the pieces of a server's file from ``start``, in order, on a thread. Raises OSError of
    the server, and what ``write`` raises."""
    loop = asyncio.get_running_loop()
    async for piece in file.stream(start):
        await loop.run_in_executor(None, write, piece)
        count(len(piece))


def _in_stages(data: memoryview, offset: int) -> Iterator[memoryview]:
    """What is to be written at ``offset``, cut where stages begin."""
    while data:
        left = STAGE - offset % STAGE
        yield data[:left]
        offset += left
        data = data[left:]


class Staged:
    """Writes pieces to a descriptor one behind the other, from ``start``, in stages."""

    def __init__(self, descriptor: int, start: int) -> None:
        self._descriptor = descriptor
        self._offset = start

    def write(self, data: memoryview) -> None:
        """Write the next piece."""
        for part in _in_stages(data, self._offset):
            if self._offset and not self._offset % STAGE:
                os.fdatasync(self._descriptor)
            write_all(self._descriptor, part)
            self._offset += len(part)


async def send(
    descriptor: int, file: File, count: Count, *, piece: int, depth: int, start: int = 0, staged: bool = False
) -> None:
    """Write what a descriptor has to a server's file, from ``start``, which is its position, in pieces of ``piece``
    octets, ``depth`` of them at a time. Raises OSError of either."""
    loop = asyncio.get_running_loop()
    reading = asyncio.Lock()
    offset = start
    ended = False
    end = start + STAGE if staged else MAX_OFFSET

    async def move(_: int) -> None:
        nonlocal offset, ended
        async with reading:
            if ended or offset >= end:
                return
            data = await loop.run_in_executor(None, os.read, descriptor, min(piece, end - offset))
            at = offset
            offset += len(data)
            ended = not data
        if data:
            await file.pwrite(data, at)
            count(len(data))

    def turns() -> Iterator[int]:
        while not ended and offset < end:
            yield 0

    while not ended:
        await each(turns(), move, depth)
        if staged and not ended:
            await file.flush()
            end += STAGE


async def copy(source: File, target: File, count: Count, *, start: int = 0, staged: bool = False) -> None:
    """From one server's file to another's, or the same server's, from ``start``."""
    offset = start
    async for piece in source.stream(start):
        for part in _in_stages(piece, offset):
            if staged and offset > start and not offset % STAGE:
                await target.flush()
            await target.pwrite(bytes(part), offset)
            offset += len(part)
        count(len(piece))
