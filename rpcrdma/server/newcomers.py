"""Connection requests that wait for memory.

Owns :class:`Newcomer`. While memory is short, connections give it back all the time (:mod:`rpcrdma.hosts`). Who comes
in such a moment waits for the first Receive, in turn with all others that wait, and is not refused at once. A request
that waits has a seat like a connection, and holds nothing else of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from rpcrdma.firewall import contain
from rpcrdma.hosts import Seat
from rpcrdma.memory import Account, Lease, OutOfMemory
from rpcrdma.server.lease_waits import LeaseWaits
from rpcrdma.verbs.interface import ConnectRequest

PATIENCE: Final = 5.0
"""Seconds. Providers drop what is not answered in ten, and clients give up."""
NO_MEMORY: Final = "no memory for Receives"


class Newcomer:
    """One request, which :mod:`rpcrdma.hosts` sees as a connection that is silent.

    ``decide`` is told once: a Receive of ``size`` octets of ``account``, or why there is none.
    """

    served = 0
    idle = True

    def __init__(
        self,
        request: ConnectRequest,
        seat: Seat,
        account: Account,
        size: int,
        decide: Callable[[Newcomer, Lease | str], object],
    ) -> None:
        self.request = request
        self.seat = seat
        self.account = account
        self._decide = decide
        seat.member = self
        self._task = asyncio.get_running_loop().create_task(self._wait(size))

    async def _wait(self, size: int) -> None:
        try:
            outcome: Lease | str = await LeaseWaits(self.account, asyncio.get_running_loop(), PATIENCE).wait(size)
        except OutOfMemory:
            outcome = NO_MEMORY
        contain(None, self._decide, self, outcome)

    def evict(self, reason: str) -> None:
        """Refuse at once."""
        self._task.cancel()
        self._decide(self, f"dropped {reason}")

    def proceed(self) -> None:
        """There are no calls yet."""
