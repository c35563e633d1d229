"""Who may list next: turns on the workers, shared out among hosts.

Owns the queues. A listing is long work, and a host may have hundreds of them waiting. Each lane makes few at a time, so
that workers are left for other calls and the processor for the loop. Hosts take turns: a listing of one host waits for
one turn of each other host, or for as many as that one's weight says, however many calls these have. A host's listing
that has begun goes on before its next begins: few hold memory at a time (one more than have their turn).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Any


class _Lane:
    """One lane's turns."""

    __slots__ = ("running", "taken", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By host, who is next first."""
        self.taken = 0
        """Turns that the first of them has had, one behind the other."""


class HostTurns:
    """The turns of all lanes."""

    def __init__(self, weight: Callable[[Any, str], int] = lambda number, host: 1) -> None:
        """``weight``: how many turns a host has in a lane for one of another's."""
        self._lanes: dict[Hashable, _Lane] = {}
        self._weight = weight

    @asynccontextmanager
    async def turn(self, number: Hashable, host: str, at_once: int, *, begun: bool = False) -> AsyncIterator[None]:
        """``async with``: it is the host's turn. ``at_once``: how many the lane makes at a time; ``begun``: the listing
        has had a turn before."""
        lane = self._lanes.setdefault(number, _Lane())
        if lane.running >= at_once:
            await self._wait(number, lane, host, begun)
        else:
            lane.running += 1
        try:
            yield
        finally:
            self._pass_on(number, lane)

    async def _wait(self, number: Hashable, lane: _Lane, host: str, begun: bool) -> None:
        """Until another turn is passed on to the host."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = lane.waiting.setdefault(host, deque())
        (queue.appendleft if begun else queue.append)(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                lane.running -= 1
                self._next(number, lane)
            raise

    def _pass_on(self, number: Hashable, lane: _Lane) -> None:
        lane.running -= 1
        self._next(number, lane)
        if not lane.running and not lane.waiting:
            self._lanes.pop(number, None)

    def _next(self, number: Hashable, lane: _Lane) -> None:
        """Give a turn that is free to the host that waits longest. When it has had its turns, its others wait behind
        all hosts."""
        while lane.waiting:
            host, queue = next(iter(lane.waiting.items()))
            first = queue.popleft()
            given = not first.done()
            lane.taken += given
            if not queue:
                del lane.waiting[host]
                lane.taken = 0
            elif lane.taken >= self._weight(number, host):
                lane.waiting.move_to_end(host)
                lane.taken = 0
            if given:
                lane.running += 1
                first.set_result(None)
                return
