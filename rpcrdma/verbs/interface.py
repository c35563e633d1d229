"""What a provider offers to the server: RDMA connections, in the terms of RDMA-CM and the verbs.

Owns the vocabulary only; may import :mod:`rpcrdma.memory`. Implemented by ``verbs/softiwarp`` (the
embedded iWARP over TCP), ``verbs/loopback`` (in memory, for tests) and the device provider.

Ordering promises every provider keeps (RFC 8166 section 2.3.2): work posted on one endpoint is executed in
order, so an RDMA Write posted before a Send is placed before that Send is delivered; received messages are
reported in the order they arrived; a Read's data is in its sink before its token is reported.

Every callback is made on the event loop's thread, never from inside a ``post_*`` or ``accept`` call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from rpcrdma.memory import Lease, Pool


class RemoteAccessError(str):
    """The reason given to :meth:`EndpointHandler.disconnected` when the peer refused an RDMA Read or Write of ours.

    The first work reported as not ok is then the one that was refused, unless the provider had to report it before it
    could know (iWARP acknowledges no Writes); ``handle`` names the peer's memory in question where that is known.
    """

    __slots__ = ("handle",)

    handle: int | None

    def __new__(cls, text: str, handle: int | None = None) -> RemoteAccessError:
        """The text for people, and the handle."""
        self = super().__new__(cls, text)
        self.handle = handle
        return self


class RdmaSegment(NamedTuple):
    """A plain segment of the peer's registered memory (RFC 8166 section 3.4.3); offset and length in octets."""

    handle: int
    length: int
    offset: int


class RdmaWrite(NamedTuple):
    """Place ``source`` at the peer's (handle, offset). ``source`` stays untouched until the chain has completed."""

    handle: int
    offset: int
    source: memoryview


class RdmaRead(NamedTuple):
    """Fetch ``len(sink)`` octets of the peer's (handle, offset) into ``sink``."""

    handle: int
    offset: int
    sink: memoryview


class Send(NamedTuple):
    """Send the concatenation of ``segments`` as one message; ``invalidate`` names a handle of the peer, or None."""

    segments: Sequence[memoryview | bytes]
    invalidate: int | None = None


Received: TypeAlias = tuple[Lease, int, int | None]
"""One received message: a lease, of which the handler now holds one count, how many octets at its beginning are the
message, and the handle that came to be invalidated, if one did. There is one for each call, so it is a plain tuple."""


class EndpointHandler(Protocol):
    """What a connection's owner does with its events."""

    def received(self, messages: Sequence[Received]) -> None:
        """Take a batch of messages. The handler reposts Receives itself (:meth:`Endpoint.post_receives`)."""

    def completed(self, token: object, ok: bool) -> None:
        """Take the completion of what was posted with ``token``; ``ok`` is False when it was flushed or failed."""

    def disconnected(self, reason: str) -> None:
        """The connection is gone. Called exactly once, after every outstanding token has been completed.

        ``reason`` is a RemoteAccessError when that was it.
        """


class Endpoint(Protocol):
    """An established (or accepted) connection: one queue pair."""

    peer_address: str
    """The peer's address as text, IPv6 without a zone; no port."""
    peer_port: int
    local_address: str
    """The address the peer connected to."""
    max_reads: int
    """RDMA Reads the peer lets us keep outstanding (our negotiated ORD). Excess Reads wait inside the provider; with 0
    none may be posted."""

    def post_receives(self, leases: Sequence[Lease]) -> None:
        """Post Receive buffers; the provider holds each lease's count until it is reported or the endpoint closed."""

    def post(self, writes: Sequence[RdmaWrite], send: Send | None, token: object) -> None:
        """Post RDMA Writes and then a Send as one chain with one signalled completion, reported with ``token``."""

    def post_reads(self, reads: Sequence[RdmaRead], token: object) -> None:
        """Post RDMA Reads as one chain with one signalled completion."""

    def register(self, view: memoryview, *, remote_read: bool = False, remote_write: bool = False) -> tuple[int, int]:
        """Expose ``view`` to the peer (requesters only). Returns its (handle, offset of the first octet)."""

    def invalidate(self, handle: int) -> None:
        """Withdraw a registration; unknown or already invalidated handles raise KeyError."""

    def close(self, *, abort: bool = False) -> None:
        """Disconnect: after what is posted has left (bounded in time), or at once with ``abort``."""


class ConnectRequest(Protocol):
    """A connection request that awaits :meth:`accept` or :meth:`reject`; it is dropped if neither comes in time."""

    peer_address: str
    peer_port: int
    local_address: str
    private_data: bytes
    """What the peer's consumer sent, possibly with padding or other headers around it (RFC 8797 section 5.2)."""

    @property
    def initiator_depth(self) -> int | None:
        """RDMA Reads the peer wants to keep outstanding towards us. None: its connection set-up does not tell."""

    @property
    def responder_resources(self) -> int | None:
        """RDMA Reads the peer lets us keep outstanding; 0 is none at all. None: its connection set-up does not tell."""

    @property
    def can_invalidate(self) -> bool:
        """Whether our Sends may invalidate the peer's memory: not every device can (IBTA's base memory management
        extensions). Where one cannot, ``invalidate`` of a :class:`Send` has no effect."""

    def accept(
        self,
        handler: EndpointHandler,
        private_data: bytes,
        receives: Sequence[Lease],
        *,
        initiator_depth: int,
        most_receives: int = 0,
    ) -> Endpoint:
        """Accept with Receives already posted; ``most_receives``: how many may be posted at a time, if that is more.

        The endpoint may be posted to at once; messages follow later.
        """

    def reject(self, private_data: bytes = b"") -> None:
        """Refuse, handing our private data to the peer. Nothing happens when the peer is gone by now."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen. ``host`` is a literal IPv4 or IPv6 address (``::`` takes both families)."""

    host: str
    port: int
    type_of_service: int = 0
    """DSCP and ECN octet of the connections' packets (RFC 2474), as far as that is ours to say; 0 leaves it to the
    system."""
    listening: int | None = field(default=None, compare=False)
    """Of providers over TCP: the descriptor of a socket that listens there already, which is taken over."""


class Listener(Protocol):
    """A started listener."""

    address: ListenAddress
    """The address in use, with the real port where 0 was asked for."""

    def close(self) -> None:
        """Stop accepting. Established connections live on."""


class Provider(Protocol):
    """A source of RDMA connections."""

    name: str
    can_be_invalidated: bool
    """Whether a peer's Send With Invalidate may name what :meth:`Endpoint.register` returns. An ordinary memory region
    of a device it may not: that takes a memory window or a fast registration (RFC 5040)."""

    async def listen(self, address: ListenAddress, on_request: Callable[[ConnectRequest], None]) -> Listener:
        """Listen on ``address``. Raises OSError when it cannot be had."""

    async def connect(
        self,
        address: ListenAddress,
        handler: EndpointHandler,
        private_data: bytes,
        receives: Sequence[Lease],
        *,
        initiator_depth: int = 0,
        responder_resources: int = 16,
    ) -> tuple[Endpoint, bytes]:
        """Connect as a requester. Returns endpoint and peer private data; ConnectionRefusedError on reject.

        The Receives are posted when it returns, and still the caller's when it raises.
        """

    async def close(self) -> None:
        """Close all listeners and connections."""


class PoolProvider(Protocol):
    """A provider names the pool whose memory its endpoints can use."""

    pool: Pool
