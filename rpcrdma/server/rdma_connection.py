"""One RDMA connection of the server: a provider's endpoint joined to the responder engine and the dispatcher.

Owns :class:`RdmaConnection`; imports the provider interface, the engine and the
dispatcher; :mod:`rpcrdma.server.rdma` makes connections and looks at each once a second. RFC 8166, RFC 8167 and RFC
8797; draft-cel version Two.

One connection
    Request with private data, Receives leased, accepted with our own private data. Each batch of messages goes through
    the responder; its outputs are posted, Receives first; then its calls are dispatched, most of which are over when
    dispatch returns, and the replies of the whole batch are posted together.

Memory
    Receives have an account of their own, so that payloads cannot starve them; both are shares of the host's
    (:mod:`rpcrdma.hosts`). A disconnected connection's leases return when the operations that hold them are over.

Time
    One timer looks at all connections once a second. A connection without any message is closed after ``idle_time``; so
    is one that holds much memory while that is short, and whose peer makes no headway.

Refusals
    A connection is rejected when there are too many, and when for seconds there is no memory for a single Receive
    (:mod:`rpcrdma.server.newcomers`). A peer that does not let us read its memory is accepted: what fits inline works,
    and calls with Read chunks get an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rpcrdma.capture.events import Connection
from rpcrdma.capture.recorder import Tap
from rpcrdma.capture.tap import TapEndpoint
from rpcrdma.engine.backward import BackwardCall
from rpcrdma.engine.calls import ForwardCall
from rpcrdma.engine.config import ResponderOptions
from rpcrdma.engine.native import NativeResponder
from rpcrdma.engine.receiving import ReceivingConnection
from rpcrdma.engine.responder import Responder
from rpcrdma.firewall import contain
from rpcrdma.hosts import Seat
from rpcrdma.log_limits import limited_logger
from rpcrdma.memory import Account, Lease, OutOfMemory
from rpcrdma.rpc.dispatch import NO_REPLY
from rpcrdma.rpc.program import RpcReply, Unsecured
from rpcrdma.server import backward
from rpcrdma.server.dispatching import Dispatcher as Dispatcher
from rpcrdma.server.lease_waits import LeaseWaits
from rpcrdma.server.rdma_options import SMALLEST_BLOCK as SMALLEST_BLOCK
from rpcrdma.server.rdma_options import RdmaServerOptions as RdmaServerOptions
from rpcrdma.server.slowing import Slowing
from rpcrdma.verbs.departed import DepartedEndpoint
from rpcrdma.verbs.interface import ConnectRequest, Endpoint, RemoteAccessError
from rpcrdma.verbs.native import NativeEndpoint
from rpcrdma.wire import private_data

if TYPE_CHECKING:
    from rpcrdma.server.rdma import RdmaServer

_log = limited_logger(__name__)
_clock = time.monotonic
_MINUTE = 60.0
"""Seconds after which it is looked at how many credits a peer uses."""
_trace_log = logging.getLogger("rpcrdma.trace")
"""Trace points, at level DEBUG. Looked at when a connection is made."""


class RdmaConnection(ReceivingConnection, Unsecured):
    """One connection: handler of its endpoint's events, and the transport of its calls."""

    def __init__(
        self, server: RdmaServer, request: ConnectRequest, seat: Seat, receive_account: Account, first: Lease
    ) -> None:
        """``first``: a Receive of ``receive_account``, which is taken."""
        super().__init__(seat, seat.host.pace, Slowing(seat.host.pace, self._go_on, self.abort))
        self.netid = "rdma6" if ":" in request.peer_address else "rdma"
        self.peer_address = request.peer_address
        self.peer_port = request.peer_port
        self.local_address = request.local_address
        self._server, self._seat = server, seat
        self._dispatcher = server.dispatcher
        self._loop = asyncio.get_running_loop()
        self._seen_receives = 0
        self._heard_at = self._credits_at = self._loop.time()
        self._received_then = 0
        self._executing: set[ForwardCall] = set()
        """Calls that the dispatcher has."""
        self._on_close: list[Callable[[], None]] = []
        self._running = False
        self._drained: asyncio.Future[None] | None = None
        self._peer_data = request.private_data
        self._receive_account = receive_account
        self._accept(request, [first])

    def _accept(self, request: ConnectRequest, receives: list[Lease]) -> None:
        """Lease further Receives, as many as there are, and accept."""
        options = self._server.options
        responder = options.responder
        if not request.can_invalidate:
            # RFC 8797 section 4.1: who sets the R bit can; and the other side then counts on it.
            responder = replace(responder, remote_invalidation=False)
        try:
            self._own_data = responder.private_data.encode()
            peer = private_data.find(request.private_data)
            properties = private_data.negotiate(responder.private_data, peer)
            self._account: Account = self._seat.account(options.connection_memory)
            self._lease_waits = LeaseWaits(self._account, self._loop, options.lease_timeout)
            with contextlib.suppress(OutOfMemory):
                while len(receives) < responder.first_receives:
                    receives.append(self._receive_account.lease(responder.receive_buffer))
            self.responder = Responder(
                responder,
                properties,
                len(receives),
                self._receive_account,
                self._account,
                self._wake,
                self._server.counters,
                self._server.poisoned.of(request.peer_address),
                trace=self._trace if _trace_log.isEnabledFor(logging.DEBUG) else None,
                on_settled=self._version_settled,
            )
            offered = request.responder_resources
            depth = options.max_reads if offered is None else min(offered, options.max_reads)
            self._endpoint: Endpoint = request.accept(
                self, self._own_data, receives, initiator_depth=depth, most_receives=responder.receives
            )
        except BaseException:
            for lease in receives:
                lease.release()
            raise
        try:
            self._accepted(responder, properties, len(receives))
        except BaseException:
            # Nobody else would ever close it: it is in no list, and without a seat.
            self._endpoint.close(abort=True)
            raise

    def _accepted(self, responder: ResponderOptions, properties: private_data.Properties, receives: int) -> None:
        """What there is to do when the endpoint is there."""
        self.max_long_backchannel_size = responder.max_backward_size
        self.can_be_invalidated = self._server.provider.can_be_invalidated
        self.responder.may_read = self._endpoint.max_reads > 0
        native = self._dispatcher.native_calls(self)
        if native is not None and isinstance(self._endpoint, NativeEndpoint):
            self.native = NativeResponder(
                self.responder, self._endpoint, native, self._account, self._receive_account, responder, self.run, self
            )
            self.native.set_pace(self._seat.host.pace)
        _log.debug(
            "%s: accepted with %d Receives, %d RDMA Reads, thresholds %d in and %d out, remote invalidation %s",
            self,
            receives,
            self._endpoint.max_reads,
            properties.receive_threshold,
            properties.send_threshold,
            properties.remote_invalidation,
        )

    def __str__(self) -> str:
        return f"{self.netid} {self.peer_address} port {self.peer_port}"

    # The endpoint's handler

    def _go_on(self) -> None:
        """The host may have calls again."""
        if self.closed:
            return
        messages = list(self.late)
        self.late.clear()
        if messages:
            self.take(messages)
        else:
            self.run()

    def called(self) -> None:
        """Messages have come. Of a host whose calls are not executed none count."""
        if self._dispatcher.admits(self):
            self._seat.call_made()

    def grow(self) -> None:
        """The peer has used the credits it has, and asks for more."""
        self.responder.grow()
        self._post()

    def completed(self, token: object, ok: bool) -> None:
        """Take a completion."""
        if self.tap is not None:
            self.tap.completed(token, ok)
        try:
            self.responder.completed(token, ok)
        except Exception:
            self.crashed()
        self.run()

    def disconnected(self, reason: str) -> None:
        """The connection is gone; what still runs holds its own leases."""
        if isinstance(reason, RemoteAccessError):
            xid = None if self.native is None else self.native.refused_call(reason.handle)
            if xid is None:
                xid = self.responder.suspects.refused_call(reason.handle)
            if xid is not None:
                self._server.poisoned.add(self.peer_address, xid)
        _log.debug("%s: disconnected: %s", self, self.responder.failure or reason)
        self.closed = True
        self._seat.leave()
        self.slowing.close()
        while self.held_back:
            call = self.held_back.popleft()
            self._dispatcher.drop(self, call.data, call.chunks, call.holds)
        while self.late:
            self.late.popleft()[0].release()
        for step in (self.responder.close, self._account.close, self._receive_account.close):
            contain(None, step)
        self._lease_waits.fail("the connection is gone")
        callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            contain(None, callback)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._server.forget(self, reason)
        self._loop.call_soon(self._let_go)  # not now: it may be what calls us

    def _let_go(self) -> None:
        """Hold what holds this no more, so that the connection goes with its last user and waits for no collector."""
        if self.native is not None:
            self.native.let_go()
        self.native, self.tap, self._endpoint = None, None, DepartedEndpoint()

    # What :mod:`rpcrdma.hosts` sees

    @property
    def served(self) -> int:
        """Messages that have come."""
        return self.responder.received_messages

    @property
    def idle(self) -> bool:
        """Nothing received is unanswered, and everything sent has left."""
        return self.responder.idle

    def evict(self, reason: str) -> None:
        """Close at once."""
        _log.debug("%s: closing, %s", self, reason)
        self.abort()

    def proceed(self) -> None:
        """Execute what was held back, at the loop's next turn."""
        self._wake()

    def check_time(self, now: float) -> None:
        """Close the connection if its peer has been slow or silent for too long."""
        if self.closed:
            return
        responder, events = self.responder, self._server.hosts.events
        self._seat.look(now)
        if responder.received_messages != self._seen_receives or not responder.idle or self.slowing.waits:
            self._seen_receives, self._heard_at = responder.received_messages, now
        if now - self._credits_at >= _MINUTE:
            # Fewer calls in a minute than may be outstanding at a time.
            if responder.received_messages - self._received_then < responder.credits.limit:
                responder.shrink()
            self._credits_at, self._received_then = now, responder.received_messages
        if now - self._heard_at >= self._server.options.idle_time:
            events["closed_idle"] += 1
            _log.debug("%s: closed, idle", self)
            self.close()
        elif self._seat.stuck(
            now, self._account, responder.awaits_peer(len(self._executing) + len(self.held_back) + self.held)
        ):
            events["closed_stuck"] += 1
            _log.warning("%s: the peer holds much memory, which is short, and makes no headway; closing", self)
            self.abort()

    # What a capture wants

    def describe(self) -> Connection:
        """Whose traffic it is, for a capture."""
        server = self._server
        return server.describe(
            self,
            self._peer_data,
            self._own_data,
            f"{server.provider.name}, {self._endpoint.max_reads} RDMA Reads at a time",
        )

    def set_tap(self, tap: Tap | None) -> None:
        """Show everything that passes the provider's interface, native replies too, to ``tap``; None: to nobody."""
        if self.closed:
            return
        endpoint = self._endpoint
        if isinstance(endpoint, TapEndpoint):
            endpoint = endpoint.remove()
        self.tap = tap
        self._endpoint = endpoint if tap is None else TapEndpoint(endpoint, tap)
        if self.native is not None and isinstance(self._endpoint, NativeEndpoint):
            self.native.set_endpoint(self._endpoint)

    # The transport of calls

    def on_close(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` run when the connection is gone."""
        if self.closed:
            callback()
        else:
            self._on_close.append(callback)

    async def lease(self, size: int) -> Lease:
        """A buffer of this connection's share. Raises OutOfMemory after ``lease_timeout``, ConnectionResetError."""
        try:
            return self._account.lease(size)
        except OutOfMemory:
            if self.closed:
                raise ConnectionResetError("the connection is gone") from None
        self._server.counters.memory_waits += 1
        return await self._lease_waits.wait(size)

    @property
    def max_backchannel_size(self) -> int:
        """Octets of the largest backward call or reply without chunks; it depends on the version in use."""
        return self.responder.versions.max_backward_size

    async def call_back(
        self,
        message: bytes | memoryview,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 (see there)
        long: bool = False,
        reply_size: int = 0,
    ) -> memoryview:
        """Send a backward call, whose XID is the caller's choice, and return its reply."""
        if self.closed:
            raise ConnectionError("the connection is gone")
        longest = self.max_long_backchannel_size if long else 0
        return await backward.call_back(self, self._endpoint, message, timeout, longest, reply_size)

    def submit(self, call: BackwardCall) -> None:
        """Queue a backward call. Raises ConnectionError, ValueError."""
        self.responder.call_back(call)
        self.run()

    def close(self) -> None:
        """Close the connection, after what is posted has left. No more calls are taken."""
        self.responder.draining = True
        self._endpoint.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._endpoint.close(abort=True)

    async def drain(self) -> None:
        """Take no more calls, answer those that were taken, then close."""
        self.responder.draining = True
        if self._drained is None:
            self._drained = self._loop.create_future()
        if self.responder.idle:
            self.close()
        await asyncio.shield(self._drained)

    # The engine's outputs
    def _wake(self) -> None:
        """The responder has something to post, outside of any input."""
        if not self._running and not self.closed:
            self._loop.call_soon(contain, self.abort, self.run)

    def run(self) -> None:
        """Post what the responder wants posted, and execute its calls, until there is nothing left."""
        if self._running or self.closed:
            return
        self._running = True
        turn = until = 0.0
        try:
            responder = self.responder
            while True:
                self._post()
                calls, responder.calls = responder.calls, []
                if self.held_back and not self._seat.queued and not self.slowing.waits:
                    calls, self.held_back = [*self.held_back, *calls], deque()
                if not calls:
                    break
                turn = turn or self._seat.begin_turn()
                for call in calls:
                    # The first one is begun however late it is.
                    late = self.held_back or (until and _clock() >= until) or self.slowing.stops()
                    if late or not self._seat.begin_call():
                        self.held_back.append(call)
                        continue
                    until = until or _clock() + turn
                    if not contain(self.abort, self._execute, call):
                        self._over(call)
                if self.held_back and not self._seat.queued and not self.slowing.waits:
                    # Time is up: the others have their turn, then it goes on.
                    self._seat.cut_short()
                    self._post()
                    self._loop.call_soon(contain, self.abort, self.run)
                    break
        except Exception:
            self.crashed()
        finally:
            self._running = False
        if responder.failure is not None:
            self.abort()
        elif responder.draining and responder.idle:
            self.close()

    def _version_settled(self, version: int, properties: private_data.Properties) -> None:
        # Everybody speaks version One.
        level = logging.DEBUG if version == 1 else logging.INFO
        into, out = properties.receive_threshold, properties.send_threshold
        _log.log(level, "%s: speaks version %d, thresholds %d in and %d out", self, version, into, out)

    def _trace(self, point: str, xid: int, detail: object) -> None:
        _trace_log.debug("%s: %s xid %#010x %s", self, point, xid, detail)

    def crashed(self) -> None:
        """A mistake of ours. A reply may be lost, and only the end of the connection says so (section 4.5.4)."""
        _log.exception("%s: closing", self)
        self.abort()

    def _post(self) -> None:
        responder, endpoint = self.responder, self._endpoint
        if responder.receives:
            receives, responder.receives = responder.receives, []
            endpoint.post_receives(receives)
        if responder.reads:
            reads, responder.reads = responder.reads, []
            for work, call in reads:
                endpoint.post_reads(work, call)
        if responder.chains:
            chains, responder.chains = responder.chains, []
            for writes, send, token in chains:
                endpoint.post(writes, send, token)

    def _execute(self, call: ForwardCall) -> None:
        self._executing.add(call)
        room = self.responder.versions.properties.send_threshold - call.reply_header
        self._dispatcher.dispatch(self, call.data, call.chunks, call.holds, partial(self._done, call), room)

    def _over(self, call: ForwardCall) -> None:
        if call in self._executing:
            self._executing.remove(call)
            self._seat.end_call()

    def _done(self, call: ForwardCall, reply: RpcReply | None) -> None:
        self._over(call)
        if reply is None:
            self.responder.drop(call)
            self.close()
        elif reply is NO_REPLY:
            self.responder.drop(call)
        else:
            self.responder.reply(call, reply)
        self.run()
