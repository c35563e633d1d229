"""Calls that cost a connection, remembered until they are tried again on the next (RFC 8166 section 4.5.3)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

MOST_POISONED = 1024
POISON_SECONDS = 300.0


class PoisonedCalls:
    """XIDs of calls whose RDMA Reads or Writes the peer refused, by peer (RFC 8166 section 4.5.3).

    Such a refusal costs the connection. The peer will send the call again on the next one, where it gets an error
    instead of another attempt. Bounded in number and in time: of too many, the oldest are forgotten.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._peers: OrderedDict[str, tuple[float, dict[int, None]]] = OrderedDict()

    def add(self, peer_address: str, xid: int) -> None:
        """Remember one."""
        _, xids = self._peers.pop(peer_address, (0.0, {}))
        xids[xid] = None
        if len(xids) > MOST_POISONED:
            del xids[next(iter(xids))]
        self._peers[peer_address] = (self._clock() + POISON_SECONDS, xids)
        if len(self._peers) > MOST_POISONED:
            self._peers.popitem(last=False)

    def of(self, peer_address: str) -> dict[int, None]:
        """The XIDs of a peer; the responder takes out those it has answered."""
        expires, xids = self._peers.get(peer_address, (0.0, {}))
        if xids and expires < self._clock():
            xids.clear()
        return xids
