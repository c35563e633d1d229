"""How many turns hosts have for one of another's, where it is not one.

Owns :class:`Weights`; imports nothing of the project. All code that grants turns follows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

HEAVIEST: Final = 16
"""No host keeps another waiting for more turns than that."""
_MOST: Final = 8192
"""Hosts whose weights are known. Each is told of anew before so many others can have been (:mod:`nfsd.usage`)."""


class Weights:
    """The weights of all hosts."""

    def __init__(self) -> None:
        self._of: dict[str, dict[int, int]] = {}
        """Those that are not 1, by host and by what they are for; hosts told of last come last."""
        self.for_one: list[Callable[[int, str, int], None]] = []
        """Called with a key, a host and the weight that it now has for that key."""
        self.for_all: list[Callable[[str, int], None]] = []
        """Called with a host and the weight that it now has where nobody knows what it asks for."""

    def of(self, host: str) -> int:
        """The largest of a host's (by :func:`rpcrdma.addresses.host_of`), whatever for."""
        mine = self._of.get(host)
        return max(mine.values()) if mine else 1

    def all_of(self, host: str) -> dict[int, int]:
        """Those of a host that are not 1, by what they are for."""
        return dict(self._of.get(host, ()))

    def set(self, host: str, key: int, weight: int) -> None:
        """From now on a host has this weight for ``key``."""
        mine = self._of.pop(host, {})
        before, most = mine.pop(key, 1), max(mine.values(), default=1)
        if weight != 1:
            mine[key] = weight
        if mine:
            self._of[host] = mine
        if weight == before:
            return
        for tell in self.for_one:
            tell(key, host, weight)
        for tell_all in self.for_all:
            tell_all(host, max(most, weight))
        if len(self._of) > _MOST:
            self._forget(next(iter(self._of)))

    def _forget(self, host: str) -> None:
        for key in list(self._of.get(host, ())):
            self.set(host, key, 1)

    def forget(self) -> None:
        """They have changed: all are to be ``set`` anew."""
        for host in list(self._of):
            self._forget(host)
