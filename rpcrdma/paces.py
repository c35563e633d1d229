"""The paces of all hosts, and the rates that they share.

Owns :class:`Paces`; imports :mod:`rpcrdma.pace`. A host has a pace as long as it has a connection, or owes something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple, Protocol

from rpcrdma.pace import Dues, Pace, Rate
from rpcrdma.weights import Weights

_MOST_LEFT: Final = 4096
"""Hosts without a connection whose debts are remembered."""

_UNITS: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class Bound(NamedTuple):
    """What may be done in a second; 0: any number."""

    octets: int = 0
    """Of files, read and written."""
    calls: int = 0

    def __str__(self) -> str:
        size, unit = next(((size, unit) for size, unit in _UNITS if self.octets % size == 0), (1, " octets"))
        words = [f"{self.octets // size}{unit}/s"] * bool(self.octets) + [f"{self.calls} calls/s"] * bool(self.calls)
        return ", ".join(words) or "none"


NO_BOUND: Final = Bound()


class Counted(Protocol):
    """What some calls amount to (:class:`rpcrdma.rpc.tally.Tally`)."""

    read: int
    written: int
    dues: Dues | None


def _later(seconds: float, callback: Callable[[], None]) -> Any:
    return asyncio.get_running_loop().call_later(seconds, callback)


class Paces:
    """How fast every host goes."""

    def __init__(self, schedule: Callable[[float, Callable[[], None]], Any] = _later) -> None:
        self._schedule = schedule
        self.weights = Weights()
        self._paces: dict[str, Pace] = {}
        self._shared: dict[Hashable, Rate] = {}
        self._left: dict[str, None] = {}
        """Hosts without a connection, the first to leave first."""
        self.any = False
        """Whether there are any rates."""

    def of(self, host: str) -> Pace:
        """The pace of a host, by :func:`rpcrdma.addresses.host_of`."""
        self._left.pop(host, None)
        pace = self._paces.get(host)
        if pace is None:
            pace = self._paces[host] = Pace(self._schedule)
        return pace

    def known(self, host: str) -> Pace | None:
        """The pace of a host, if it has one."""
        return self._paces.get(host)

    def all(self) -> dict[str, Pace]:
        """A snapshot, by host."""
        return dict(self._paces)

    def left(self, host: str) -> None:
        """The host has no connection any more. When it comes back it owes what it owed."""
        self._left[host] = None

    def tidy(self) -> None:
        """Forget hosts that are away and owe nothing. To be called about every second."""
        for host in list(self._left):
            pace = self._paces[host]
            if pace.owed and len(self._left) <= _MOST_LEFT:
                continue
            del self._left[host], self._paces[host]
            pace.drop()

    def price(
        self,
        tally: Counted,
        host: str,
        key: Hashable,
        own: Bound,
        shared_key: Hashable = None,
        shared: Bound = NO_BOUND,
    ) -> None:
        """Charge what is counted in ``tally`` to the host's pace from now on: to its own rate for ``key``, and to the
        one for ``shared_key`` that it has together with others."""
        if own == NO_BOUND and shared == NO_BOUND:
            tally.dues = None
            return
        pace = self._paces.get(host)
        if pace is None:  # one without a connection: of a test, or of a transport without addresses
            pace = self.of(host)
            self._left[host] = None
        rate = common = None
        if own != NO_BOUND:
            rate = pace.rates.get(key)
            if rate is None:
                rate = pace.rates[key] = Rate(*own)
            pace.limit(rate)
        if shared != NO_BOUND:
            common = self._shared.get(shared_key)
            if common is None:
                common = self._shared[shared_key] = Rate(*shared)
            pace.limit(common)
        self.any = True
        tally.dues = Dues(pace, rate, common, tally.read + tally.written)

    def forget_rates(self) -> None:
        """They have changed: all are to be ``price``d anew. Nothing is owed any more, and who waits goes on."""
        if self.any:
            self.any = False
            self._shared.clear()
            for pace in list(self._paces.values()):
                pace.release()

    def hurry(self, host: str) -> None:
        """Somebody waits for what the host has sent, or is about to send."""
        pace = self._paces.get(host)
        if pace is not None:
            pace.hurry()

    def holds(self, host: str) -> bool:
        """Whether something that the host may have sent is not read now, or was not a moment ago."""
        pace = self._paces.get(host)
        return pace is not None and pace.held_lately
