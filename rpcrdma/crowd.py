"""Who takes part in handshakes when many want to.

Owns :class:`Crowd`; imports networks. Handshakes that do not end are shared out as connections are
(:mod:`rpcrdma.hosts`): where there are as many as there may be, the oldest of the network, and in that of the host,
that has most gives way to a newcomer that has less. Among equals one gives way that has had time enough: an honest
client needs some milliseconds of it.
"""

from __future__ import annotations

import itertools
from typing import Final, Generic, Protocol, TypeVar

from rpcrdma.networks import Group, Networks

PATIENCE: Final = 1.0
"""Seconds after which a handshake may give way to one that has no better claim."""


class Seated(Protocol):
    """A handshake."""

    host: str
    since: float


One = TypeVar("One", bound=Seated)


class Crowd(Generic[One]):
    """Those that take part. Not for several threads at a time."""

    def __init__(self, most: int, of_host: int) -> None:
        """How many there may be, and of one host."""
        self._most, self._of_host = most, of_host
        self._networks: Networks[One] = Networks(most // 8, most // 16, most // 64)
        self._hosts: dict[str, Group[One]] = {}

    def __len__(self) -> int:
        return self._networks.everybody.connections

    def enter(self, newcomer: One, now: float) -> One | None:
        """Let one take part; who gives way to it, and takes part no more. Raises ConnectionError if nobody does."""
        host = self._hosts.get(newcomer.host) or Group(newcomer.host, self._networks.of(newcomer.host))
        victim = None
        if host.connections >= self._of_host:
            victim = _late(host, now)
        elif len(self) >= self._most:
            victim = self._worst(host, now)
        else:
            self._seat(host, newcomer)
            return None
        if victim is None:
            raise ConnectionError("too many handshakes are in progress")
        self.leave(victim)
        self._seat(host, newcomer)
        return victim

    def leave(self, one: One) -> None:
        """It is over. Idempotent."""
        host = self._hosts.get(one.host)
        if host is not None and host.leave(one) and not host.connections:
            del self._hosts[one.host]

    def _seat(self, host: Group[One], newcomer: One) -> None:
        self._hosts[newcomer.host] = host
        host.enter(newcomer)

    def _worst(self, newcomer: Group[One], now: float) -> One | None:
        """Who gives way to one of this host."""
        for group, own in itertools.pairwise(newcomer.chain()):
            if group.most > own.weight + 1:
                return next(iter(group.fullest().crowd().silent))
            if own.weight == group.floor:
                return _late(self._networks.everybody, now)
        return _late(newcomer, now)


def _late(group: Group[One], now: float) -> One | None:
    """The one of these that has taken longest, if that was long enough."""
    oldest = next(iter(group.silent), None)
    return oldest if oldest is not None and now - oldest.since >= PATIENCE else None
