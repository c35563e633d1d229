"""Several calls in flight for one piece of work. Imports asyncio only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


async def each(items: Iterable[T], work: Callable[[T], Awaitable[None]], depth: int) -> None:
    """Run ``work`` on every item, on ``depth`` of them at a time, begun in their order. The first failure ends it:
    nothing more is begun, what is under way is cancelled, and the failure is raised."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    tasks = [asyncio.create_task(worker()) for _ in range(depth)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def pieces(offset: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """The octets from ``offset`` to ``end`` as (offset, length), each of ``size`` but the last."""
    while offset < end:
        yield offset, min(size, end - offset)
        offset += size
