"""What calls are charged to: the rates of the configuration, for each client and export.

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


class Prices:
    """Finds out what the calls of a client on an export are charged to."""

    def __init__(self, paces: Paces, client_rate: Bound = NO_BOUND) -> None:
        self.paces = paces
        self.client_rate = client_rate
        """Of a client on all exports that have none for it."""
        self.any = False
        """Whether there are any rates at all."""

    def changed(self, rated: bool) -> None:
        """The exports, or the rate of clients, have changed; ``rated``: the exports have rates. Nothing is owed any
        more."""
        self.paces.forget_rates()
        self.any = rated or self.client_rate != NO_BOUND

    def price(self, tally: Tally, address: str, export_id: int, export: Rated, access: Rated | None) -> None:
        """Have what is counted in ``tally`` charged, to the client's rate and to the export's."""
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
