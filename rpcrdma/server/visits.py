"""Calls in progress of hosts that need no connection for them: those in datagrams.

Owns :class:`Visits`, which all listeners for datagrams share; imports :mod:`rpcrdma.hosts`. Such a call counts among
its host's as those by its connections do. Anybody can put another's address into a datagram, so it costs that host
nothing that lasts: its rates are left alone, and only a few calls at a time come in its name.
"""

from __future__ import annotations

from typing import Final

from rpcrdma.hosts import Host, Hosts, host_of

MOST: Final = 64
"""In progress, of all hosts."""
MOST_OF_HOST: Final = 8


class Visit:
    """One call."""

    __slots__ = ("host", "key")

    def __init__(self, key: str, host: Host | None) -> None:
        self.key, self.host = key, host


class Visits:
    """The calls of all hosts."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._all = 0
        self._of: dict[str, int] = {}

    def begin(self, address: str) -> Visit | None:
        """Count a call. None: there are too many; it is to be dropped, for who called will call again."""
        key = host_of(address)
        mine, host = self._of.get(key, 0), self._hosts.known(key)
        if self._all >= MOST or mine >= MOST_OF_HOST or (host is not None and not self._hosts.may_begin(host)):
            self._hosts.events["dropped_datagrams"] += 1
            return None
        self._all += 1
        self._of[key] = mine + 1
        if host is not None:
            host.calls += 1
            self._hosts.calls += 1
        return Visit(key, host)

    def end(self, visit: Visit) -> None:
        """It is over."""
        self._all -= 1
        self._of[visit.key] -= 1
        if not self._of[visit.key]:
            del self._of[visit.key]
        if visit.host is not None:
            visit.host.calls -= 1
            self._hosts.calls -= 1
            if self._hosts.queue:
                self._hosts.let_proceed()
