"""Backward calls as a client's programs see them (RFC 8167, RFC 8881 section 2.10.3.1).

Owns :class:`CallbackTransport`; imports the vocabulary of programs and this package.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from rpcrdma.client.calls import Carrier
from rpcrdma.memory import Lease, Pool
from rpcrdma.rpc.program import Unsecured

if TYPE_CHECKING:
    from rpcrdma.client.connection import Connection

_log = logging.getLogger(__name__)

_MEMORY = 8 << 20


class CallbackTransport(Unsecured):
    """The transport of backward calls on one carrier; implements :class:`rpcrdma.rpc.program.Transport`."""

    max_long_backchannel_size = 0
    slowing = None
    max_backchannel_size = 0
    """A peer that is called back does not call back."""

    def __init__(self, connection: Connection, carrier: Carrier, pool: Pool) -> None:
        self.connection = connection
        """What the call came over."""
        self.peer_address, self.local_address = carrier.peer_address, carrier.local_address
        self.peer_port = 0
        kind = "rdma" if carrier.version else "tcp"
        self.netid = f"{kind}6" if ":" in carrier.peer_address else kind
        self.closed = False
        self._carrier = carrier
        self._account = pool.account(_MEMORY)
        self._on_close: list[Callable[[], None]] = []

    def on_close(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` run once, when the connection is gone."""
        if self.closed:
            callback()
        else:
            self._on_close.append(callback)

    async def lease(self, size: int) -> Lease:
        """A buffer. Raises OutOfMemory."""
        return self._account.lease(size)

    async def call_back(
        self,
        message: bytes | memoryview,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 (the protocol's)
        long: bool = False,
        reply_size: int = 0,
    ) -> memoryview:
        """There is no third direction."""
        raise ConnectionError("a client makes its calls by its Connection")

    def close(self) -> None:
        """Close the connection."""
        self._carrier.close()

    def gone(self) -> None:
        """The connection is gone."""
        self.closed = True
        self._account.close()
        callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                _log.exception("a close callback failed")
