"""Whole files between a server and a descriptor of this host. Imports asyncio and this package's files.

The server's side has several calls in flight; the descriptor is read and written in order, so that it may be a pipe,
and on a thread, so that a slow disk holds up no calls.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator

from nfsd.client.files import File
from nfsd.client.pipeline import each

Count = Callable[[int], None]
"""Is told of every so many octets that have been moved."""


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of it."""
    while data:
        data = data[os.write(descriptor, data) :]


async def receive(file: File, write: Callable[[memoryview], None], count: Count) -> None:
    """Have ``write`` called with the pieces of a server's file, in order, on a thread. Raises OSError of the server,
    and what ``write`` raises."""
    loop = asyncio.get_running_loop()
    async for piece in file.stream():
        await loop.run_in_executor(None, write, piece)
        count(len(piece))


async def send(descriptor: int, file: File, count: Count, *, piece: int, depth: int) -> None:
    """Write what a descriptor has to a server's file, from its beginning, in pieces of ``piece`` octets, ``depth`` of
    them at a time. Raises OSError of either."""
    loop = asyncio.get_running_loop()
    reading = asyncio.Lock()
    offset = 0
    ended = False

    async def move(_: int) -> None:
        nonlocal offset, ended
        async with reading:
            if ended:
                return
            data = await loop.run_in_executor(None, os.read, descriptor, piece)
            at = offset
            offset += len(data)
            ended = not data
        if data:
            await file.pwrite(data, at)
            count(len(data))

    def turns() -> Iterator[int]:
        while not ended:
            yield 0

    await each(turns(), move, depth)


async def copy(source: File, target: File, count: Count) -> None:
    """From one server's file to another's, or the same server's."""
    offset = 0
    async for piece in source.stream():
        await target.pwrite(bytes(piece), offset)
        offset += len(piece)
        count(len(piece))
