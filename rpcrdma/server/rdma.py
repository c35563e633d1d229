"""RPC over RDMA, the server's side: the listeners of one provider, and their connections.

Owns :class:`RdmaServer`; imports the connections (:mod:`rpcrdma.server.rdma_connection`). Who gets a connection when
there are many is decided by :mod:`rpcrdma.hosts`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from rpcrdma.capture.events import Connection
from rpcrdma.capture.recorder import Captures
from rpcrdma.engine.config import LARGEST_LEASE
from rpcrdma.engine.counters import Counters
from rpcrdma.firewall import Ticker, contain
from rpcrdma.hosts import HostLimits, Hosts, Refused, Seat
from rpcrdma.log_limits import limited_logger
from rpcrdma.memory import Account, Lease, OutOfMemory, Pool
from rpcrdma.server.newcomers import NO_MEMORY, Newcomer
from rpcrdma.server.poisoned import PoisonedCalls
from rpcrdma.server.rdma_connection import Dispatcher, RdmaConnection, RdmaServerOptions
from rpcrdma.server.rdma_options import receive_memory
from rpcrdma.verbs.interface import (
    ConnectRequest,
    ListenAddress,
    Listener,
    Provider,
)

__all__ = ["RdmaConnection", "RdmaServer", "RdmaServerOptions"]

_log = limited_logger(__name__)


class RdmaServer:
    """The RDMA side of a server: listeners of one provider, and their connections."""

    def __init__(
        self,
        provider: Provider,
        pool: Pool,
        dispatcher: Dispatcher,
        options: RdmaServerOptions | None = None,
        clock: Callable[[], float] | None = None,
        captures: Captures | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        self.provider = provider
        self.hosts = Hosts(pool, HostLimits(host_memory=pool.limit)) if hosts is None else hosts
        self.captures = Captures() if captures is None else captures
        self.pool = pool
        self.dispatcher = dispatcher
        self.options = RdmaServerOptions() if options is None else options
        self.counters = Counters()
        self.poisoned = PoisonedCalls(clock or asyncio.get_running_loop().time)
        self.connections: set[RdmaConnection] = set()
        self._newcomers: set[Newcomer] = set()
        self.accepted = 0
        self.rejected = 0
        self.port = 0
        """Where it listens."""
        self._listeners: list[Listener] = []
        self._timer: Ticker | None = None
        if pool.limit < 2 * LARGEST_LEASE:
            raise ValueError(f"the pool must have at least {2 * LARGEST_LEASE} octets")

    async def listen(self, address: ListenAddress) -> Listener:
        """Listen on ``address``. Raises OSError."""
        listener = await self.provider.listen(address, self.on_request)
        self._listeners.append(listener)
        self.port = listener.address.port
        if self._timer is None:
            self._timer = Ticker(asyncio.get_running_loop(), 1.0, self._tick)
        return listener

    def on_request(self, request: ConnectRequest) -> None:
        """Accept or reject a connection."""
        try:
            seat = self.hosts.enter(request.peer_address, asyncio.get_running_loop().time())
        except Refused as refused:
            self._reject(request, str(refused))
            return
        options = self.options.responder
        account = seat.account(receive_memory(options))
        try:
            first = account.lease(options.receive_buffer)
        except OutOfMemory:
            newcomer = Newcomer(request, seat, account, options.receive_buffer, self._decide)
            self._newcomers.add(newcomer)
            return
        self._accept(request, seat, account, first)

    def _decide(self, newcomer: Newcomer, outcome: Lease | str) -> None:
        """Accept one who has waited for memory; or reject, for the reason that is told."""
        self._newcomers.discard(newcomer)
        if isinstance(outcome, Lease):
            self._accept(newcomer.request, newcomer.seat, newcomer.account, outcome)
            return
        self.hosts.events["refused_memory"] += outcome is NO_MEMORY
        newcomer.seat.leave()
        newcomer.account.close()
        self._reject(newcomer.request, outcome)

    def _accept(self, request: ConnectRequest, seat: Seat, account: Account, first: Lease) -> None:
        now = time.time_ns()  # the peer may know that it is accepted before we are through here
        try:
            connection = seat.member = RdmaConnection(self, request, seat, account, first)
        except BaseException as error:
            seat.leave()
            if not isinstance(error, OSError):
                raise
            _log.info("connection of %s could not be accepted: %s", request.peer_address, error)
            return
        self.connections.add(connection)
        self.accepted += 1
        contain(None, self.captures.add, connection, now)

    def _reject(self, request: ConnectRequest, reason: str) -> None:
        self.rejected += 1
        _log.warning("connection of %s rejected: %s", request.peer_address, reason)
        ours = self.options.responder.private_data.encode()
        self.captures.refused(self.describe(request, request.private_data, ours, f"rejected: {reason}", rejected=True))
        request.reject(ours)

    def describe(
        self, ends: ConnectRequest | RdmaConnection, theirs: bytes, ours: bytes, note: str, *, rejected: bool = False
    ) -> Connection:
        """A connection's or a request's ends and private data, for a capture."""
        return Connection(
            self.provider.name,
            ends.peer_address,
            ends.peer_port,
            ends.local_address,
            self.port,
            theirs.hex(),
            ours.hex(),
            rejected,
            note,
        )

    def forget(self, connection: RdmaConnection, reason: str) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        contain(None, self.captures.discard, connection, reason)

    async def close(self, drain: float = 0.0) -> None:
        """End all listeners, then all connections: once their calls are answered, or ``drain`` seconds are over."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for newcomer in list(self._newcomers):
            newcomer.evict("as the server stops")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if drain and self.connections:
            drains = [asyncio.ensure_future(connection.drain()) for connection in self.connections]
            _, late = await asyncio.wait(drains, timeout=drain)
            for task in late:
                task.cancel()
        gone = []
        for connection in list(self.connections):
            future = asyncio.get_running_loop().create_future()
            connection.on_close(partial(future.set_result, None))
            gone.append(future)
            connection.abort()
        if gone:
            await asyncio.wait(gone, timeout=5)

    def check_times(self, now: float) -> None:
        """Look for connections whose peers are slow or silent for too long."""
        self.hosts.tick(now)
        for connection in list(self.connections):
            contain(connection.abort, connection.check_time, now)

    def _tick(self) -> None:
        self.check_times(asyncio.get_running_loop().time())
