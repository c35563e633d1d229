"""Calls in progress of hosts that need no connection for them: those in datagrams.

Owns :class:`Visits`, which the listeners of one service share; imports :mod:`rpcrdma.hosts`. Such a call is begun only
where its host may have one more beside those by its connections. Anybody can put another's address into a datagram, so
it costs that host nothing: its rates are left alone, its connections may begin as many calls as ever, and only a few
datagrams at a time come in its name. Datagrams in the names of many hosts can take all the places there are. A host
that has a connection is let in all the same, with one call: nobody can have a connection in another's name.
"""

from __future__ import annotations

from typing import Final

from rpcrdma.hosts import Hosts, host_of

MOST: Final = 64
"""In progress, of all hosts; besides, one of each host that has a connection."""
MOST_OF_HOST: Final = 8


class Visits:
    """The calls of all hosts to one service. One that waits for a disk or a host keeps nobody from another service."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._all = 0
        self._of: dict[str, int] = {}

    def begin(self, address: str) -> str | None:
        """Count a call; what is returned is for :meth:`end`. None: there are too many. It is to be dropped: who called
        will call again."""
        key = host_of(address)
        mine, host = self._of.get(key, 0), self._hosts.known(key)
        if self._all >= MOST and (mine or host is None):
            may = False
        else:
            may = mine < MOST_OF_HOST and (host is None or host.in_progress.may_begin(mine))
        if not may:
            self._hosts.events["dropped_datagrams"] += 1
            return None
        self._all += 1
        self._of[key] = mine + 1
        return key

    def end(self, key: str) -> None:
        """One is over that :meth:`begin` has counted."""
        self._all -= 1
        self._of[key] -= 1
        if not self._of[key]:
            del self._of[key]
