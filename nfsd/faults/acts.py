"""What faults do to the server's own state: leases expire, the server becomes another, written data may have been lost.

Owns :class:`Acts`; imports the NFSv4 server. Each act is what a real event would do, through the same function.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from nfsd.events import addresses_of
from nfsd.exports import canonical_address
from nfsd.v4.server import Nfs4Server


class Acts:
    """Acts on a server."""

    def __init__(self, nfs4: Nfs4Server) -> None:
        self._nfs4 = nfs4

    def expire(self, address: str) -> int:
        """The leases of all clients at an address are over, and somebody has wanted what they held (RFC 8881 section
        8.4.3). Returns how many there were."""
        engine, wanted = self._nfs4.engine, canonical_address(address)
        clients = [one for one in engine.clients.all() if wanted in addresses_of(one)]
        for client in clients:
            engine.expire_client(client)
        return len(clients)

    def new_owner(self) -> None:
        """From now on EXCHANGE_ID tells of another server (server_owner4 and scope, RFC 8881 section 2.10.4)."""
        self._nfs4.scope = self._nfs4.owner = os.urandom(len(self._nfs4.scope))

    def new_verifier(self) -> None:
        """Unstable data may have been lost, as after a restart: the write verifier is another (RFC 1813 section
        3.3.21)."""
        self._nfs4.service.write_backs.renew()


def export_names(nfs4: Nfs4Server, ids: Iterable[int]) -> set[str]:
    """The names for clients of the exports with these ids."""
    known = nfs4.exports.by_id
    return {known[number].pseudo for number in ids if number in known}
