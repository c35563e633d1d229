"""RDMA in memory: two endpoints of one process, joined without any network.

Owns the loopback provider; imports :mod:`rpcrdma.verbs.interface`, :mod:`rpcrdma.memory` and asyncio.

Operation
    Posted work waits in a queue of its endpoint and is executed from the event loop, in order, the way a device would
    do it: an RDMA operation is checked against the peer's registrations, a Send takes the peer's next Receive. Sources
    are read only then, so that memory given up too early shows. At most ``max_reads`` Reads are executed per turn of
    the loop.

Errors
    What a device answers with a broken connection breaks this one: a missing or short Receive, a handle that is
    unknown, out of bounds or of the wrong access. The work that caused it and all behind it completes as not ok, and
    then both ends are told, with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from rpcrdma.memory import Lease, Pool
from rpcrdma.verbs.interface import (
    ConnectRequest,
    EndpointHandler,
    ListenAddress,
    RdmaRead,
    RdmaWrite,
    Received,
    RemoteAccessError,
    Send,
)

FIRST_EPHEMERAL_PORT = 49152
MAX_PRIVATE_DATA = 512
"""What MPA allows (RFC 5044 section 7.1), the most of any CM."""


class _Refused(Exception):
    """The peer's side of the connection refuses the work."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _access_error(handle: int) -> _Refused:
    return _Refused(RemoteAccessError(f"remote access error, handle {handle:#x}", handle))


class _Registration:
    __slots__ = ("base", "handle", "remote_read", "remote_write", "view")

    def __init__(self, handle: int, view: memoryview, base: int, remote_read: bool, remote_write: bool) -> None:
        self.handle = handle
        self.view = view
        self.base = base
        self.remote_read = remote_read
        self.remote_write = remote_write

    def window(self, offset: int, length: int) -> memoryview:
        start = offset - self.base
        if start < 0 or start + length > len(self.view):
            raise _access_error(self.handle)
        return self.view[start : start + length]


_Work = tuple[Sequence[RdmaWrite], Sequence[RdmaRead], Send | None, object]


class LoopbackEndpoint:
    """One end of a connection; implements :class:`rpcrdma.verbs.interface.Endpoint`."""

    def __init__(self, handler: EndpointHandler, local: ListenAddress, peer: ListenAddress, max_reads: int) -> None:
        self.peer_address = peer.host
        self.peer_port = peer.port
        self.local_address = local.host
        self.max_reads = max_reads
        self.most_reads = 0
        """The most RDMA Reads executed in one turn (for tests of the limit)."""
        self._handler = handler
        self._peer: LoopbackEndpoint | None = None
        self._loop = asyncio.get_running_loop()
        self._receives: deque[Lease] = deque()
        self._work: deque[_Work] = deque()
        self._arrived: list[Received] = []
        self._finished: list[tuple[object, bool]] = []
        self._registrations: dict[int, _Registration] = {}
        self._next_handle = 0x1000
        self._scheduled = False
        self._closing: str | None = None
        self._gone = False

    # The Endpoint interface

    def post_receives(self, leases: Sequence[Lease]) -> None:
        """Post Receive buffers."""
        if self._gone:
            for lease in leases:
                lease.release()
            return
        self._receives.extend(leases)

    def post(self, writes: Sequence[RdmaWrite], send: Send | None, token: object) -> None:
        """Post RDMA Writes and a Send."""
        self._post((writes, (), send, token))

    def post_reads(self, reads: Sequence[RdmaRead], token: object) -> None:
        """Post RDMA Reads."""
        self._post(((), reads, None, token))

    def register(self, view: memoryview, *, remote_read: bool = False, remote_write: bool = False) -> tuple[int, int]:
        """Expose ``view``. Offsets start at an arbitrary base, as those of real devices do."""
        handle = self._next_handle
        self._next_handle += 0x100
        base = handle << 32 | 0x7F0
        self._registrations[handle] = _Registration(handle, view, base, remote_read, remote_write)
        return handle, base

    def invalidate(self, handle: int) -> None:
        """Withdraw a registration."""
        del self._registrations[handle]

    def close(self, *, abort: bool = False) -> None:
        """Disconnect, after what is posted has left unless ``abort``."""
        if abort:
            self._break("closed by this end", "closed by the peer")
        elif self._closing is None:
            self._closing = "closed by this end"
            self._schedule()

    # How it works

    def join(self, peer: LoopbackEndpoint) -> None:
        """Connect to the other end."""
        self._peer = peer

    @property
    def posted_receives(self) -> int:
        """Receives posted and not consumed (for tests of credits)."""
        return len(self._receives)

    def _post(self, work: _Work) -> None:
        if self._gone:
            self._finished.append((work[3], False))
            self._loop.call_soon(self._report)
            return
        self._work.append(work)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Execute what is posted, then report at both ends."""
        self._scheduled = False
        peer = self._peer
        if self._gone or peer is None:
            return
        reads = 0
        while self._work:
            writes, to_read, send, token = self._work[0]
            if to_read and reads + len(to_read) > self.max_reads and self.max_reads:
                room = self.max_reads - reads
                now, later = to_read[:room], to_read[room:]
            else:
                now, later = to_read, ()
            try:
                self._execute(peer, writes, now, send)
            except _Refused as refusal:
                self._break(refusal.reason, refusal.reason)
                return
            reads += len(now)
            self.most_reads = max(self.most_reads, reads)
            if later:
                self._work[0] = (writes, later, send, token)
                self._schedule()
                break
            self._work.popleft()
            self._finished.append((token, True))
        peer._loop.call_soon(peer._report)
        self._report()
        if self._closing is not None and not self._work:
            self._break(self._closing, "closed by the peer")

    @staticmethod
    def _execute(
        peer: LoopbackEndpoint, writes: Sequence[RdmaWrite], reads: Sequence[RdmaRead], send: Send | None
    ) -> None:
        for handle, offset, source in writes:
            registration = peer._registrations.get(handle)
            if registration is None or not registration.remote_write:
                raise _access_error(handle)
            registration.window(offset, len(source))[:] = source
        for handle, offset, sink in reads:
            registration = peer._registrations.get(handle)
            if registration is None or not registration.remote_read:
                raise _access_error(handle)
            sink[:] = registration.window(offset, len(sink))
        if send is not None:
            peer._take(send)

    def _take(self, send: Send) -> None:
        """Receive a Send of the peer's."""
        if not self._receives:
            raise _Refused("no Receive is posted")
        lease = self._receives.popleft()
        end = 0
        for segment in send.segments:
            start, end = end, end + len(segment)
            if end > lease.capacity:
                lease.release()
                raise _Refused("the message is longer than the Receive")
            lease.view[start:end] = segment
        if send.invalidate is not None:
            if send.invalidate not in self._registrations:
                lease.release()
                raise _access_error(send.invalidate)
            del self._registrations[send.invalidate]
        self._arrived.append((lease, end, send.invalidate))

    def _report(self) -> None:
        """Hand completions and messages to the handler, in batches."""
        finished, self._finished = self._finished, []
        for token, ok in finished:
            self._handler.completed(token, ok)
        arrived, self._arrived = self._arrived, []
        if arrived:
            self._handler.received(arrived)

    def _break(self, reason: str, peer_reason: str) -> None:
        """End the connection at both ends."""
        peer, self._peer = self._peer, None
        if self._gone:
            return
        self._gone = True
        for *_, token in self._work:
            self._finished.append((token, False))
        self._work.clear()
        self._loop.call_soon(self._bury, reason)
        if peer is not None:
            peer._break(peer_reason, reason)

    def _bury(self, reason: str) -> None:
        self._report()
        for lease in self._receives:
            lease.release()
        self._receives.clear()
        self._handler.disconnected(reason)


class LoopbackRequest:
    """A connection request; implements :class:`rpcrdma.verbs.interface.ConnectRequest`."""

    can_invalidate = True

    def __init__(
        self,
        local: ListenAddress,
        peer: ListenAddress,
        private_data: bytes,
        initiator_depth: int,
        responder_resources: int,
        outcome: asyncio.Future[tuple[LoopbackEndpoint, bytes]],
        handler: EndpointHandler,
    ) -> None:
        self.peer_address = peer.host
        self.peer_port = peer.port
        self.local_address = local.host
        self.private_data = private_data
        self.initiator_depth = initiator_depth
        self.responder_resources = responder_resources
        self._addresses = local, peer
        self._outcome = outcome
        self._requester = handler

    def accept(
        self,
        handler: EndpointHandler,
        private_data: bytes,
        receives: Sequence[Lease],
        *,
        initiator_depth: int,
        most_receives: int = 0,
    ) -> LoopbackEndpoint:
        """Accept with Receives already posted."""
        local, peer = self._addresses
        ours = LoopbackEndpoint(handler, local, peer, min(initiator_depth, self.responder_resources))
        theirs = LoopbackEndpoint(self._requester, peer, local, self.initiator_depth)
        ours.post_receives(receives)
        ours.join(theirs)
        theirs.join(ours)
        if self._outcome.done():
            ours.close(abort=True)
        else:
            self._outcome.set_result((theirs, private_data))
        return ours

    def reject(self, private_data: bytes = b"") -> None:
        """Refuse."""
        if not self._outcome.done():
            self._outcome.set_exception(ConnectionRefusedError(f"rejected, private data {private_data.hex()!r}"))


class LoopbackListener:
    """A listener; implements :class:`rpcrdma.verbs.interface.Listener`."""

    def __init__(self, provider: LoopbackProvider, address: ListenAddress) -> None:
        self.address = address
        self._provider = provider

    def close(self) -> None:
        """Stop accepting."""
        self._provider.forget(self.address)


class LoopbackProvider:
    """A network of its own: only what listens here can be connected to."""

    name = "loopback"
    can_be_invalidated = True

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.client_address = ListenAddress("127.0.0.1", 700)
        """Where the next connection comes from."""
        self._listening: dict[ListenAddress, Callable[[ConnectRequest], None]] = {}
        self._endpoints: weakref.WeakSet[LoopbackEndpoint] = weakref.WeakSet()
        self._next_port = FIRST_EPHEMERAL_PORT

    async def listen(self, address: ListenAddress, on_request: Callable[[ConnectRequest], None]) -> LoopbackListener:
        """Listen on ``address``; port 0 takes a free one."""
        if address.port == 0:
            address = ListenAddress(address.host, self._next_port)
            self._next_port += 1
        if address in self._listening:
            raise OSError(f"{address} is in use")
        self._listening[address] = on_request
        return LoopbackListener(self, address)

    def forget(self, address: ListenAddress) -> None:
        """End a listener."""
        with contextlib.suppress(KeyError):
            del self._listening[address]

    async def connect(
        self,
        address: ListenAddress,
        handler: EndpointHandler,
        private_data: bytes,
        receives: Sequence[Lease],
        *,
        initiator_depth: int = 0,
        responder_resources: int = 16,
    ) -> tuple[LoopbackEndpoint, bytes]:
        """Connect as a requester."""
        if len(private_data) > MAX_PRIVATE_DATA:
            raise ValueError(f"{len(private_data)} octets of private data")
        on_request = self._listening.get(address)
        if on_request is None:
            raise ConnectionRefusedError(f"nothing listens on {address}")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[tuple[LoopbackEndpoint, bytes]] = loop.create_future()
        request = LoopbackRequest(
            address, self.client_address, private_data, initiator_depth, responder_resources, outcome, handler
        )
        loop.call_soon(on_request, request)
        endpoint, answer = await outcome
        endpoint.post_receives(receives)
        self._endpoints.add(endpoint)
        return endpoint, answer

    async def close(self) -> None:
        """Close all listeners and connections."""
        self._listening.clear()
        for endpoint in list(self._endpoints):
            endpoint.close(abort=True)
        self._endpoints.clear()
