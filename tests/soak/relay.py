"""What stands between a client and the server: a port whose connections can be dropped and delayed.

Each client has one of its own, and reaches the server from an address of its own.
"""

from __future__ import annotations

import asyncio

from nfsd.conformance.passage import Passage, Way


class Relay(Passage):
    """A listening port, whose connections go on to one of the server's."""

    def __init__(self, source: str, port: int) -> None:
        """``source``: the address from which the server sees this client; ``port``: the server's."""
        super().__init__("127.0.0.1", port, source)
        self.delay = 0.0
        """Seconds that each piece waits, in both directions."""
        self.connections = 0
        """Made so far."""

    def ways(self, onward: asyncio.StreamWriter) -> tuple[Way, Way]:
        self.connections += 1
        return _Delayed(self), _Delayed(self)


class _Delayed(Way):
    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def take(self, octets: bytes) -> None:
        if self._relay.delay:
            await asyncio.sleep(self._relay.delay)
