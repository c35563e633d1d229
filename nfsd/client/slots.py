"""The slots of a session's fore channel, the requester's side. Owns :class:`SlotTable`; imports asyncio only.

A slot carries one request at a time, with a sequence id one above the last (RFC 8881 section 2.10.6.1). The lowest
free slot is taken, so that the highest in use, which every SEQUENCE tells, says how many are needed.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque


class Slot:
    """One slot; ``seqid`` is that of the last request that the server has accepted."""

    __slots__ = ("number", "seqid")

    def __init__(self, number: int) -> None:
        self.number = number
        self.seqid = 0

    def __lt__(self, other: Slot) -> bool:
        return self.number < other.number


class SlotTable:
    """The slots of one session."""

    def __init__(self, count: int) -> None:
        self._granted = max(1, count)
        self._usable = self._granted
        self._made = 0
        self._free: list[Slot] = []
        self._used: set[int] = set()
        self._waiters: deque[asyncio.Future[Slot]] = deque()

    @property
    def usable(self) -> int:
        """Slots that may be used at a time."""
        return self._usable

    @property
    def in_use(self) -> int:
        """Slots with a request on them."""
        return len(self._used)

    @property
    def highest(self) -> int:
        """The highest slot in use (sa_highest_slotid)."""
        return max(self._used, default=0)

    async def acquire(self) -> Slot:
        """A free slot; waits for one, first come, first served."""
        if not self._waiters and self._available():
            return self._take()
        turn: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(turn.result())
            raise

    def _available(self) -> bool:
        return bool(self._free and self._free[0].number < self._usable) or self._made < self._usable

    def _take(self) -> Slot:
        if self._free and self._free[0].number < self._usable:
            slot = heapq.heappop(self._free)
        else:
            slot = Slot(self._made)
            self._made += 1
        self._used.add(slot.number)
        return slot

    def release(self, slot: Slot) -> None:
        """Give a slot back."""
        self._used.discard(slot.number)
        heapq.heappush(self._free, slot)
        self._wake()

    def adjust(self, highest: int, target: int) -> None:
        """What the server says of the table in each SEQUENCE (RFC 8881 section 18.46.3): ``highest`` slot that it
        keeps, ``target`` that it would like to be the highest used."""
        self._usable = max(1, min(self._granted, highest + 1, target + 1))
        self._wake()

    def _wake(self) -> None:
        while self._waiters and self._available():
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(self._take())
