"""Which client record gives way to a newcomer's, when there are as many as there may be.

Owns :class:`Room`; and :class:`Crowd`, by which the lock manager finds who gives way too. A client that may lose its
place is in one of three crowds: never confirmed; away, that is, its lease is over and what it has is kept out of
courtesy; or idle. An idle client has no open, lock, delegation or copy. The server may forget it whenever it likes: it
is told STALE_CLIENTID or BADSESSION, and introduces itself again (RFC 7530 section 9.1.1, RFC 8881 section 8.4.2). One
that has state keeps it until its lease is over, and so does one that has still to reclaim what it had.

A client that has come in vain gives way to anybody, those away first. The others give way to a host of a smaller
network, as connections do (:mod:`rpcrdma.hosts`): the newcomer's network is compared with the others, then, if that is
one of those that have most, the next smaller one, down to hosts. All clients of the newcomer's network count; of the
others first those that may give way. Clients not heard of since they were introduced go first, then, of a few, that
which was not heard of for longest, with no request executing if there is one; of these only some in ten seconds.

Work. All this takes the same time however many there are. A client that gets its first state leaves the crowd; when it
has none any more, it comes back when somebody needs room, and not before: most open one file after the other.

Imports networks of hosts, which know nothing of NFS.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from nfsd.state.accounts import FEW
from rpcrdma.networks import Displacements, Group, Networks

if TYPE_CHECKING:
    from nfsd.state.charges import HostAccount
    from nfsd.state.clients import Client

_SILENCE: Final = 5.0
"""Seconds after its introduction that a client has to be heard of, or to be confirmed."""
_LOOKS: Final = 8
"""Idle clients, or networks, that are compared to find who gives way."""
_BACK: Final = 64
"""Clients without state any more that may give way again, at a time."""


class Crowd:
    """Clients of one kind, by network and host."""

    def __init__(self, clients: int) -> None:
        # The last sixteenth of the table is what is left when few others take all the rest (accounts): shares of it.
        self._networks: Networks[Client] = Networks(clients // 128, clients // 256, 1)
        self._hosts: dict[str, Group[Client]] = {}
        self.all: dict[Client, Group[Client]] = {}
        """With their hosts, who came first at the head."""

    @property
    def everybody(self) -> Group[Client]:
        """All of them."""
        return self._networks.everybody

    def host(self, account: HostAccount) -> Group[Client]:
        """A host's part; the one that it would have, if it has none."""
        network = self._networks.of(account.host.removesuffix("!"))  # behind users that do not speak for it
        return self._hosts.get(account.host) or Group(account.host, network)

    def enter(self, client: Client) -> None:
        """A client that is not here is from now on."""
        group = self.host(client.account)
        self._hosts[group.key] = self.all[client] = group
        group.enter(client)

    def leave(self, client: Client) -> bool:
        """Take a client out; whether it was here."""
        group = self.all.pop(client, None)
        if group is None:
            return False
        group.leave(client)
        if not group.connections:
            del self._hosts[group.key]
        return True


class Room:
    """Who has a place in the table of clients, and who gives way."""

    def __init__(self, clients: int, now: Callable[[], float], claims: Callable[[Client], bool]) -> None:
        """``clients``: the bound of the table. ``claims``: whether a client may have something to reclaim."""
        self._now, self._claims = now, claims
        self._total: Counter[str] = Counter()
        """Clients of every kind, by network and host."""
        self._unconfirmed, self._away, self._idle = Crowd(clients), Crowd(clients), Crowd(clients)
        self._holding: set[Client] = set()
        """Those that would be idle, and have had state."""
        self._emptied: dict[Client, None] = {}
        """Of these, those that have lost it since."""
        self._displaced = Displacements(of_host=8, of_network=32, of_site=32, of_all=96)

    # -- what becomes of clients ---------------------------------------------------------------------------------
    def enter(self, client: Client) -> None:
        """A client has introduced itself."""
        self._unconfirmed.enter(client)
        self._total.update(_keys(self._unconfirmed.all[client]))

    def confirmed(self, client: Client) -> None:
        """It has shown that it has had the answer."""
        self._unconfirmed.leave(client)
        self._settle(client)

    def went(self, client: Client) -> None:
        """Its lease is over."""
        self._unlist(client)
        self._away.enter(client)

    def came_back(self, client: Client) -> None:
        """It was away."""
        if self._away.leave(client):
            self._settle(client)

    def filled(self, client: Client) -> None:
        """It gets its first state."""
        if self._idle.leave(client):
            self._holding.add(client)
        else:
            self._emptied.pop(client, None)

    def emptied(self, client: Client) -> None:
        """It has no state any more."""
        if client in self._holding:
            self._emptied[client] = None

    def leave(self, client: Client) -> None:
        """It is gone."""
        keys = _keys(self._idle.host(client.account))
        if self._unlist(client):
            for key in keys:
                self._total[key] -= 1
                if not self._total[key]:
                    del self._total[key]

    def _unlist(self, client: Client) -> bool:
        """Take it out wherever it is."""
        self._emptied.pop(client, None)
        if client in self._holding:
            self._holding.discard(client)
            return True
        return any(crowd.leave(client) for crowd in (self._idle, self._unconfirmed, self._away))

    # -- who gives way -------------------------------------------------------------------------------------------
    def away(self, account: HostAccount | None) -> list[Client]:
        """Courtesy clients, of one host or of all, in the order in which they give way to somebody's state: those of
        the host with most first, and of these who has been away longest."""
        away: Iterable[Client] = self._away.all if account is None else self._away.host(account).silent
        return sorted(away, key=lambda client: (-client.account.octets, client.lease_end))

    @property
    def unconfirmed(self) -> int:
        """How many have never been confirmed."""
        return len(self._unconfirmed.all)

    def first_unconfirmed(self) -> Client:
        """The oldest of the unconfirmed where there are too many of them."""
        return next(iter(self._unconfirmed.everybody.crowd().silent))

    def of_own(self, account: HostAccount) -> Client | None:
        """Who gives way to another client of its own host, which has its share."""
        for crowd in (self._unconfirmed, self._away):
            for client in crowd.host(account).silent:
                return client
        return None

    def of_all(self, account: HostAccount) -> Client | None:
        """Who gives way to a client of this host, when there are as many as there may be; None: nobody."""
        for client in self._away.everybody.crowd().silent:
            return client
        for client in self._unconfirmed.everybody.crowd().silent:
            if self._now() >= client.introduced + _SILENCE:
                return client
            break
        found = self._smaller(self._idle, account)
        if found is None:
            found = next(iter(self._unconfirmed.host(account).silent), None)
        return found if found is not None else self._smaller(self._unconfirmed, account)

    def _smaller(self, crowd: Crowd, newcomer: HostAccount) -> Client | None:
        """Who of a crowd gives way to a host of a smaller network, or to one that has nearly nothing."""
        if crowd is self._idle:
            self._look_again()
        chain = crowd.host(newcomer).chain()
        group, in_need = self._who_has_more(chain)
        return None if group is None else self._least(crowd, group, chain, in_need=in_need)

    def _who_has_more(self, chain: list[Group[Client]]) -> tuple[Group[Client] | None, bool]:
        """Where somebody has to give way to one of the host at the end of the chain, and whether that is so because the
        newcomer is in need, not because they have more."""
        for group, own in itertools.pairwise(chain):
            weight = max(self._total[own.key], group.floor)
            if group.most > weight + 1:
                return group.fullest().crowd(), False
            for part in group.some_fullest(_LOOKS):
                if self._total[part.key] > weight + 1:
                    return part.crowd(), False  # the rest of what it has has state
            if weight == group.floor:
                in_need = self._total[chain[-1].key] < FEW and group.connections > 0
                return (group if in_need else None), True
            # This is one of those that have most.
        return None, False

    def _least(self, crowd: Crowd, group: Group[Client], chain: list[Group[Client]], *, in_need: bool) -> Client | None:
        """Of these clients that which gives least, as far as the newcomer may have its place."""
        now = self._now()
        for client in list(itertools.islice(group.silent, _LOOKS)):
            if client.lease_end != client.introduced_until:
                crowd.all[client].call_made(client)  # it has been heard of since
            elif not in_need or now >= client.introduced + _SILENCE:
                return client
            else:
                break
        # Whose request is executing goes last: its retransmission is to find the slot (RFC 8881 section 2.10.6).
        some = sorted(group.callers.some(_LOOKS), key=lambda client: client.lease_end)
        found = next((client for client in some if not client.busy), some[0] if some else None)
        return found if found is not None and self._displaced.may(chain[1:], now) else None

    def _settle(self, client: Client) -> None:
        """It may give way from now on, unless it has state, or will have."""
        if client.states or self._claims(client):
            self._holding.add(client)
        else:
            self._idle.enter(client)

    def _look_again(self) -> None:
        """Some of those that have lost their state may give way again."""
        for client in list(itertools.islice(self._emptied, _BACK)):
            del self._emptied[client]
            self._holding.discard(client)
            self._settle(client)


def _keys(host: Group[Client]) -> list[str]:
    """Of a host and its networks."""
    return [group.key for group in host.chain()[1:]]
