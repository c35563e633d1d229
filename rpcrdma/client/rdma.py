"""Calls over RPC-over-RDMA: a provider's connections joined to the requester engine.

Owns :class:`RdmaDialer`, which knows which versions to try, and :class:`RdmaCarrier`, one connection. Imports the
provider interface, the engine and this package. RFC 8166, RFC 8167, RFC 8797; draft-cel version Two.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from rpcrdma.client.calls import Owner
from rpcrdma.client.options import ClientOptions
from rpcrdma.engine.callee import BackwardCall, Callee
from rpcrdma.engine.exposure import Registrations
from rpcrdma.engine.requester import Request, Requester
from rpcrdma.engine.versions import VERSIONS
from rpcrdma.memory import Account, Lease, OutOfMemory, Pool
from rpcrdma.rpc.program import RpcReply
from rpcrdma.verbs.interface import Endpoint, ListenAddress, Provider, Received
from rpcrdma.wire import private_data

_log = logging.getLogger(__name__)

_CALLBACK_READS = 4
"""RDMA Reads of ours to have outstanding, for Long Calls of the server's."""


class RdmaDialer:
    """Makes the connections to one server, one after the other."""

    def __init__(self, provider: Provider, pool: Pool, options: ClientOptions, version: int | None) -> None:
        self._provider, self._pool, self._options = provider, pool, options
        self._versions = [2, 1] if version is None else [version]
        self.private_data = private_data.PrivateData(
            options.remote_invalidation and provider.can_be_invalidated and not options.keep_registered,
            options.send_size,
            options.receive_size,
        )

    async def dial(self, address: ListenAddress, owner: Owner) -> RdmaCarrier:
        """Connect. Raises OSError, TimeoutError among them."""
        carrier = RdmaCarrier(self, owner, self._options, self._pool)
        async with asyncio.timeout(self._options.connect_timeout):
            await carrier.connect(self._provider, address, self._versions)
        return carrier

    def ended(self, requester: Requester) -> None:
        """A connection is gone: learn from it ("Protocol Version Negotiation"). If it spoke version One in the end, or
        was lost when version Two was tried, then that is not tried again."""
        tried = requester.counters.sends > 0
        if 1 in self._versions and tried and (requester.version == 1 or not requester.settled):
            self._versions = [1]


class RdmaCarrier:
    """One connection; implements :class:`rpcrdma.client.calls.Carrier` and the provider's ``EndpointHandler``."""

    def __init__(self, dialer: RdmaDialer, owner: Owner, options: ClientOptions, pool: Pool) -> None:
        self._dialer, self._owner, self._options, self._pool = dialer, owner, options, pool
        self.local_address = self.peer_address = ""
        self._loop = asyncio.get_running_loop()
        self._account: Account = pool.account(options.memory)
        self._endpoint: Endpoint
        self.requester: Requester
        """The engine, for its counters."""
        self._callee: Callee | None = None
        self._early: list[Received] = []
        """What arrived before we knew that we are connected."""
        self._connected = self._running = self._wanted = False
        self._reason: str | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()

    async def connect(self, provider: Provider, address: ListenAddress, versions: Sequence[int]) -> None:
        """Connect, and be ready for calls. Raises OSError."""
        options = self._options
        own = self._dialer.private_data
        receives: list[Lease] = []
        try:
            for _ in range(options.credits + options.backward_credits):
                receives.append(self._account.lease(options.receive_buffer))  # noqa: PERF401 (may stop short)
            self._endpoint, answer = await provider.connect(
                address,
                self,
                own.encode(),
                receives,
                initiator_depth=_CALLBACK_READS if self._owner.takes_calls else 0,
                responder_resources=options.max_reads,
            )
        except BaseException as error:
            for lease in receives:
                lease.release()
            if isinstance(error, OutOfMemory):
                raise OSError(f"no memory for Receives: {error}") from error
            raise
        self.local_address, self.peer_address = self._endpoint.local_address, self._endpoint.peer_address
        if self._owner.takes_calls:
            self._callee = Callee(options.backward_credits, self._account, self._called)
        self.requester = Requester(
            options,
            private_data.negotiate(own, private_data.find(answer)),
            versions,
            Registrations(self._endpoint, options.keep_registered),
            self._account,
            self._finished,
            self._callee,
            can_be_invalidated=own.remote_invalidation,
        )
        self._connected = True
        if self._reason is not None:
            self._end(self._reason)
            raise ConnectionResetError(f"lost at once: {self._reason}")
        early, self._early = self._early, []
        if early:
            self.received(early)

    # What the connection asks for

    @property
    def version(self) -> int:
        """Of RPC-over-RDMA."""
        return self.requester.version

    @property
    def max_backchannel_size(self) -> int:
        """Octets of the largest backward call or reply without chunks, once the version is settled."""
        requester = self.requester
        properties = requester.final_properties
        return min(properties.send_threshold, properties.receive_threshold) - VERSIONS[requester.version].call_size

    def send(self, call: Request) -> None:
        """Send a call. Raises ValueError."""
        self.requester.send(call)
        self._run_soon()

    def forget(self, call: Request) -> None:
        """Nobody waits for the call any more; the server has no access to its memory when this returns."""
        self.requester.forget(call)

    def reply_backward(self, token: object, reply: RpcReply | None) -> None:
        """Answer a backward call."""
        assert self._callee is not None
        assert isinstance(token, BackwardCall)
        self._callee.reply(token, reply)
        self._run_soon()

    def close(self, *, abort: bool = False) -> None:
        """End the connection."""
        if self._reason is None:
            self._endpoint.close(abort=abort)

    async def wait_closed(self) -> None:
        """Return when the connection is gone and its memory has been given back."""
        await asyncio.shield(self._over)

    # The endpoint's events

    def received(self, messages: Sequence[Received]) -> None:
        """Take a batch of messages."""
        if not self._connected:
            self._early.extend(messages)
            return
        try:
            self.requester.received(messages)
        except Exception:
            self._crashed()
        self._run()

    def completed(self, token: object, ok: bool) -> None:
        """Take a completion."""
        try:
            self.requester.completed(token, ok)
        except Exception:
            self._crashed()
        self._run()

    def disconnected(self, reason: str) -> None:
        """The connection is gone."""
        self._reason = str(reason) or "the connection was lost"
        if self._connected:
            self._end(self._reason)

    def _end(self, reason: str) -> None:
        requester = self.requester
        self._dialer.ended(requester)
        for lease, _, _ in self._early:
            lease.release()
        self._early.clear()
        requester.close()
        self._account.close()
        if not self._over.done():
            self._over.set_result(None)
        self._owner.lost(self, requester.failure or reason)

    # The engine's outputs

    def _finished(self, request: Request) -> None:
        self._owner.finished(request)

    def _called(self, message: memoryview, call: BackwardCall) -> None:
        self._owner.called_back(self, message, call)

    def _run_soon(self) -> None:
        """Post what there is at the end of this turn of the loop: many calls leave together."""
        if not self._wanted and not self._running:
            self._wanted = True
            self._loop.call_soon(self._run)

    def _crashed(self) -> None:
        """A mistake of ours."""
        _log.exception("%s: closing the connection", self.peer_address)
        self.requester.fail("an internal error")

    def _run(self) -> None:
        self._wanted = False
        if self._running or self._reason is not None:
            return
        requester, endpoint = self.requester, self._endpoint
        self._running = True
        try:
            while requester.failure is None and (requester.receives or requester.reads or requester.chains):
                if requester.receives:
                    receives, requester.receives = requester.receives, []
                    endpoint.post_receives(receives)
                reads, requester.reads = requester.reads, []
                for work, token in reads:
                    if endpoint.max_reads:
                        endpoint.post_reads(work, token)
                    else:
                        requester.completed(token, False)
                chains, requester.chains = requester.chains, []
                for writes, send, token in chains:
                    endpoint.post(writes, send, token)
        except Exception:
            self._crashed()
        finally:
            self._running = False
        if requester.failure is not None:
            endpoint.close(abort=True)
