"""What calls are charged to, and how many turns they get: rates and weights, for each client and export.

Owns :class:`Prices`; the export table has one. Imports the paces of hosts.
"""

from __future__ import annotations

from typing import Protocol

from rpcrdma.addresses import host_of
from rpcrdma.paces import NO_BOUND, Bound, Paces
from rpcrdma.rpc.tally import Tally


class Rated(Protocol):
    """An export, or how a client may use it."""

    @property
    def rate(self) -> Bound:
        """What may be done in a second."""


class Weighed(Rated, Protocol):
    """How a client may use an export."""

    @property
    def weight(self) -> int:
        """Turns that the client has for one of another's."""


class Prices:
    """Finds out what the calls of a client on an export are charged to."""

    def __init__(self, paces: Paces, client_rate: Bound = NO_BOUND) -> None:
        self.paces = paces
        self.client_rate = client_rate
        """Of a client on all exports that have none for it."""
        self.any = False
        """Whether there are any rates at all."""
        self.weighted = False
        """Whether there are any weights."""

    def changed(self, rated: bool, weighted: bool = False) -> None:
        """The exports, or the rate of clients, have changed; ``rated``: the exports have rates, ``weighted``: some of
        their clients have weights. Nothing is owed any more."""
        self.paces.forget_rates()
        self.paces.weights.forget()
        self.weighted = weighted
        self.any = rated or self.client_rate != NO_BOUND

    def price(self, tally: Tally, address: str, export_id: int, export: Rated, access: Weighed | None) -> None:
        """Have what is counted in ``tally`` charged, to the client's rate and to the export's; and the client have its
        turns there."""
        if self.weighted:
            self.paces.weights.set(host_of_any(address), export_id, 1 if access is None else access.weight)
        if not self.any:
            tally.dues = None
            return
        own, key = (NO_BOUND if access is None else access.rate), export_id
        if own == NO_BOUND:
            own, key = self.client_rate, 0
        # A host may come to have another rate (the addresses of a /64 differ, names and netgroups change): it is found
        # by what it is, too.
        self.paces.price(tally, host_of_any(address), (key, own), own, export_id, export.rate)


def host_of_any(address: str) -> str:
    """The host that an address is of; a transport without addresses is one."""
    try:
        return host_of(address)
    except ValueError:
        return address
