"""On whose account the server remembers: state by the client's host, and all of it together.

Owns :class:`Ledger` and what each kind of record is taken to cost. Everything that a client makes the server keep is
counted in octets, when it is made and when it goes, on the account of the host that the client was introduced from (an
IPv6 /64 is one host here: within it a peer has as many addresses as it likes). A host may have a share of the whole;
near the end of it, the last part is for hosts that have next to nothing, so that those who have filled the rest keep
nobody out. Most of that is for any of them; a part is for those in a small network (:mod:`rpcrdma.networks`) that has
little as well, and so on up to the largest networks. When it runs short, clients whose lease has run out give way,
those of the host with most first.

What is counted is an estimate, on the high side, of what the interpreter takes; tests compare the two. The accounts
themselves are in :mod:`nfsd.state.charges`. Imports limits, and whose an address is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from nfsd.state.charges import Figures, HostAccount
from nfsd.state.limits import Limits
from rpcrdma.addresses import host_of
from rpcrdma.networks import Part, Tree

if TYPE_CHECKING:
    from nfsd.state.clients import Client

HOST: Final = 3600
"""Octets of an account, with what is known of the networks that its host is in."""
CLIENT: Final = 1600
"""Octets of a client record; its name comes to that, three times over."""
SESSION: Final = 2600
SLOT: Final = 128
OPEN_OWNER: Final = 900
"""With the reply that is kept for v4.0's seqid; its name comes to that, and so it is with the others."""
OPEN: Final = 1500
"""With the file's record and the descriptors' holder."""
LOCK_OWNER: Final = 400
LOCK_STATE: Final = 900
LOCK: Final = 160
"""One range."""
DELEGATION: Final = 1700
COPY: Final = 1500
WAITER: Final = 900
STATE: Final = {1: OPEN, 2: LOCK_STATE, 3: DELEGATION, 5: COPY}
"""By the kind of the stateid."""

_RESERVE: Final = 16
"""One part in so many is for hosts that have little."""
_LITTLE_OF_A_HOST, _LITTLE_OF_A_NETWORK = 64, 4
"""What little is: one part in so many of what is left."""
_LITTLE: Final = 16 << 10
"""And this in any case: enough for a client with a session."""
FEW: Final = 4
"""Clients of a host that may have another out of the last part of the table: of two versions, and of each the next
incarnation, when the host was restarted."""
_PAUSE: Final = 1.0
"""Seconds between two searches for what could give way."""


class Ledger(Figures):
    """All accounts."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        reserve = limits.octets // _RESERVE
        super().__init__(limits.share(limits.octets, 1 << 20), limits.octets - reserve)
        self._limits = limits
        self._now = now
        self.hosts: dict[str, HostAccount] = {}
        self.networks: Tree[Part[Any]] = Tree(Part, 1, 1, 1)
        """What hosts have by network; nobody asks who has most."""
        self.refusals = 0
        """How often somebody was refused for want of room."""
        self.give_way: Callable[[HostAccount | None, Callable[[], bool]], None] = lambda _host, _enough: None
        """Expires courtesy clients (of a host, or of the hosts with most) until there is enough, or no more of them."""
        self._reserve = reserve
        self._relieved = float("-inf")

    def account(self, host: str) -> HostAccount:
        """A host's account; one that it would have, if it has none. Users that do not speak for a host (``!`` behind
        its address) have one of their own."""
        address = host.removesuffix("!")
        payer = host_of(address) + host[len(address) :]
        return self.hosts.get(payer) or HostAccount(self, payer)

    def join(self, client: Client, host: str) -> HostAccount:
        """The account of a client that is made now."""
        account = self.account(host)
        if account.host not in self.hosts:
            self.hosts[account.host] = account
            account.charge(HOST)
        account.clients[client] = None
        account.charge(CLIENT + 3 * len(client.owner))
        return account

    def leave(self, client: Client) -> None:
        """A client is gone, with all that it had."""
        account = client.account
        if client not in account.clients:
            return
        del account.clients[client]
        account.charge(-CLIENT - 3 * len(client.owner))
        if not account.clients and self.hosts.get(account.host) is account:
            del self.hosts[account.host]
            account.charge(-HOST)

    def room(self, account: HostAccount, octets: int) -> bool:
        """Whether so much more may be remembered for a host, once what nobody waits for has given way. In constant
        time, but for a search once a second."""
        if account.octets + octets <= self.share and self.octets + octets <= self.easy:
            return True  # as nearly always
        if self.fits(account, octets):
            return True
        now = self._now()
        if account.octets + octets > self.share:
            if now >= account.relieved + _PAUSE:
                account.relieved = now
                self.give_way(account, lambda: account.octets + octets <= self.share - (self.share >> 4))
        elif now >= self._relieved + _PAUSE:
            self._relieved = now
            self.give_way(None, lambda: self.octets + octets <= self._limits.octets - 2 * self._reserve)
        if self.fits(account, octets):
            return True
        self.refusals += 1
        return False

    def over_share(self, account: HostAccount, octets: int) -> bool:
        """Whether it is the host's own share that is used up."""
        return account.octets + octets > self.share

    def fits(self, account: HostAccount, octets: int) -> bool:
        """Whether there is room as it is."""
        if account.octets + octets <= self.share and self.octets + octets <= self.easy:
            return True
        return octets <= self.left(account)

    def left(self, account: HostAccount) -> int:
        """For how much there is room as it is: as much of the reserve is kept from a host as is for those that have
        less, or are in networks that have less."""
        left = self._limits.octets - self.octets
        room = left - self._reserve
        little = max(_LITTLE, left // _LITTLE_OF_A_HOST) - account.octets  # as long as it has no more than that
        for number, network in enumerate(account.networks):
            kept = self._reserve // 2 * (len(account.networks) - number) // (len(account.networks) + 1)
            room = max(room, min(little, left - kept))
            little = min(little, max(_LITTLE, left // _LITTLE_OF_A_NETWORK) - network.has)
        return min(self.share - account.octets, max(room, min(little, left)))

    def has_clients(self, account: HostAccount) -> bool:
        """Whether a host has as many clients as its share."""
        return len(account.clients) >= self._limits.share(self._limits.clients)

    def has_records(self, account: HostAccount, records: int) -> bool:
        """Whether so many client records are all that there may be when a host wants another: the last part of the
        table is for hosts that have few."""
        whole = self._limits.clients
        return records >= (whole - whole // _RESERVE if len(account.clients) >= FEW else whole)
