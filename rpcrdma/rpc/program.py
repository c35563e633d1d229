"""What an RPC program looks like to the dispatcher, and a call to the program (RFC 5531).

Owns the vocabulary between transports, the dispatcher and the programs; imports only :mod:`rpcrdma.xdr` and
:mod:`rpcrdma.memory`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from zlib import crc32

from rpcrdma.holds import Hold
from rpcrdma.memory import Lease, OutOfMemory
from rpcrdma.rpc.tally import Tally
from rpcrdma.xdr import Decoder, Encoder
from rpcrdma.xdr.payload import Payload

AUTH_NONE = 0
AUTH_SYS = 1
RPCSEC_GSS = 6
AUTH_TLS = 7

PATIENCE = 5.0
"""Seconds that a call which holds memory waits for more."""

_FLAVORS: Final = {AUTH_NONE: "none", AUTH_SYS: "sys"}
_SERVICES: Final = ("", "krb5", "krb5i", "krb5p")


@dataclass(frozen=True, slots=True)
class RpcCredential:
    """The caller as its RPC header names it; nothing has been squashed or believed yet."""

    flavor: int
    uid: int | None = None
    """None: nobody's. 0xFFFFFFFF on the wire, which to the kernel is no id but "as it is", or a flavor without ids."""
    gid: int | None = None
    """None: likewise."""
    gids: tuple[int, ...] = ()
    """Ids only: what is none has been left out."""
    machine: str = ""
    principal: str = ""
    """With RPCSEC_GSS: who the caller has proved to be (``user@REALM``). The ids are those it has been mapped to."""
    service: int = 0
    """With RPCSEC_GSS: how this call was protected, 1 none, 2 integrity, 3 privacy (RFC 2203 section 5.1)."""

    @property
    def security(self) -> str:
        """How the caller is known, in the words of exports: ``sys``, ``none``, ``krb5``, ``krb5i``, ``krb5p``."""
        return _SERVICES[self.service] if self.flavor == RPCSEC_GSS else _FLAVORS[self.flavor]

    @property
    def mark(self) -> int:
        """32 bits that differ for callers with different uids, nobody's being 0xFFFFFFFF, and, but for chance, of
        different principals: no proof of who somebody is."""
        if self.principal:
            return crc32(self.principal.encode())
        return 0xFFFFFFFF if self.uid is None else self.uid


class Slowed(Protocol):
    """What a connection tells of being read from later, because its host goes faster than it may."""

    @property
    def lately(self) -> bool:
        """Whether something of it is left unread for that, or was a moment ago."""


class Transport(Protocol):
    """The connection a call came on, as programs see it."""

    netid: str
    """``tcp``, ``tcp6``, ``rdma`` or ``rdma6`` (RFC 5665)."""
    peer_address: str
    """Text, without port: RDMA source ports mean nothing (RFC 8166)."""
    peer_port: int
    local_address: str
    closed: bool
    security: str
    """``none``, or by TLS: ``tls``, and ``mtls`` with a certificate of the peer's (RFC 9289)."""
    certified: str
    """The names that the peer's certificate proves (``dns:host``, …), with spaces between them; empty: none."""
    max_long_backchannel_size: int
    """As :attr:`max_backchannel_size`, for Long Calls and Long Replies. A peer takes these if the size of backchannel
    requests that it asks for exceeds ``max_backchannel_size`` (RFC 8267 section 6.5.2); any other gets short ones only.
    """

    @property
    def slowing(self) -> Slowed | None:
        """None: it is never slowed down."""

    @property
    def max_backchannel_size(self) -> int:
        """Largest backward call or reply, in octets, that the peer takes on this connection; 0 when it takes none."""

    def on_close(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` run once, when the connection is gone (at once if it already is)."""

    async def lease(self, size: int) -> Lease:
        """A buffer this transport can send from without a copy; waits while the connection's share is used up."""

    async def call_back(
        self,
        message: bytes | memoryview,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 (resources of the connection stay in use)
        long: bool = False,
        reply_size: int = 0,
    ) -> memoryview:
        """Send a backward RPC call (a whole RPC message, with an XID of the caller's choice) and return its reply.

        Raises ConnectionError when the connection is gone, BackwardError when the peer's transport refuses the call,
        TimeoutError after ``timeout`` seconds, ValueError for a message above ``max_backchannel_size`` or an XID in
        use. One who stops waiting cancels.

        ``long`` says that the peer takes Long Calls and Long Replies: then the bound is ``max_long_backchannel_size``,
        and ``reply_size`` is the most octets that the reply may have, should it be above ``max_backchannel_size``.
        """

    def begin_tls(self) -> bool:
        """Have TLS begin behind the reply to the present call (RFC 9289 section 4.1). False: there is none here."""

    def close(self) -> None:
        """Close the connection (RFC 8881 section 2.9.2: a call may only be dropped together with its connection)."""


class Unsecured:
    """A transport that TLS is not for."""

    security = "none"
    certified = ""

    def begin_tls(self) -> bool:
        """It does not."""
        return False


class BackwardError(ConnectionError):
    """A backward call could not be made, or the peer's transport answered it with an error; the connection lives on."""


@dataclass(slots=True)
class Call:
    """One call; ``arguments`` stands after the RPC header, ``results`` after the accepted reply's header."""

    transport: Transport
    xid: int
    program: int
    version: int
    procedure: int
    credential: RpcCredential
    arguments: Decoder
    results: Encoder
    holds: list[Hold] = field(default_factory=list)
    """Buffers that the arguments point into; the dispatcher releases them when the call is over."""
    message: memoryview = memoryview(b"")  # noqa: RUF009 - empty and immutable
    """The received message without what its chunks carry; valid while the call is running."""
    forget: bool = False
    """Set by the procedure: the call changed nothing, so its reply need not be kept for retransmissions."""
    reply_room: int = 0
    """Octets a reply may have without any chunk (inline threshold, or the record limit on TCP). Informative."""
    tally: Tally | None = None
    """Set by the procedure: where the call is to be counted."""
    shown: int = -1
    """Set by the procedure: the row that its time is to be counted in; otherwise it is the procedure's own."""
    failed: bool = False
    """Set by the procedure: the results are a failure's."""
    chunks: Sequence[tuple[int, memoryview]] = ()
    """What was taken out of ``message``, and where in the unreduced message it belongs."""
    begun: Any = None
    """What a native function has done of the call, if others go on from there."""
    holding: bool = False
    """Whether the reply holds memory already, beside what is in ``results``."""

    async def lease(self, size: int) -> Lease:
        """The transport's ``lease`` for a result. A call whose results hold memory already waits for PATIENCE only,
        since what it holds may be what others like it wait for. Raises OutOfMemory, ConnectionError."""
        if not self.holding and not self.results.payloads:
            return await self.transport.lease(size)
        return await lent_beside(self.transport, size)


async def lent_beside(transport: Transport, size: int) -> Lease:
    """The transport's ``lease``, for a call that holds memory of it already. Raises OutOfMemory after PATIENCE, and
    ConnectionError."""
    waiting = asyncio.ensure_future(transport.lease(size))
    try:
        await asyncio.wait((waiting,), timeout=PATIENCE)
    except BaseException:
        waiting.cancel()
        waiting.add_done_callback(_give_back)
        raise
    if waiting.cancel():
        raise OutOfMemory(f"no {size} octets within {PATIENCE} s, beside what the call holds")
    return waiting.result()


def _give_back(waiting: asyncio.Future[Lease]) -> None:
    """Nobody wants the lease any more."""
    if not waiting.cancelled() and waiting.exception() is None:
        waiting.result().release()


class Encoded:
    """What a handler returns that has encoded its whole result, status included, by itself."""


ENCODED: Final = Encoded()


class GarbageArguments(Exception):
    """The arguments do not decode: answered GARBAGE_ARGS."""


class ProcedureUnavailable(Exception):
    """Not by this way: answered PROC_UNAVAIL."""


class DropCall(Exception):
    """No reply is sent for this call; the dispatcher closes the connection unless ``silently``."""

    def __init__(self, silently: bool = False) -> None:
        super().__init__(silently)
        self.silently = silently


@dataclass(frozen=True, slots=True)
class Procedure:
    """One row of a program's table.

    With ``arguments``/``results`` (XDR types; None is void) ``handler(call, arguments)`` returns the results, or
    :data:`ENCODED` when it has put them into the call's itself.
    A ``raw`` procedure is called as ``handler(call)``, and decodes and encodes through the call itself (COMPOUND).
    ``replay`` puts the procedure under the replay cache (non-idempotent ones of NFSv3); a function of the arguments'
    octets decides call by call (COMPOUND: NFSv4.0 has no sessions).
    Without a handler the procedure is its native function, which declines nothing but malformed arguments; the
    dispatcher is made with the native program then.
    """

    name: str
    handler: Callable[..., Awaitable[Any]] | None = None
    arguments: Any = None
    results: Any = None
    raw: bool = False
    replay: bool | Callable[[memoryview], bool] = False
    chunks: int = 1
    """So many items of a call that came in chunks of their own its native function knows what to do with."""
    open: bool = False
    """Whether peers that the server is not for are answered too, as they always are to procedure 0 (NULL)."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program with its versions; versions[v][p] is the procedure."""

    number: int
    name: str
    versions: Mapping[int, Mapping[int, Procedure]]


class RpcReply:
    """A finished RPC reply: ``head`` with ``payloads`` to be inserted at their offsets in ``head``.

    A payload's XDR padding is in neither; whoever puts it inline adds it (RFC 8166 section 3.4.6.2).
    """

    __slots__ = ("head", "payloads", "xid")

    def __init__(self, xid: int, head: bytes | bytearray | memoryview, payloads: list[tuple[int, Payload]]) -> None:
        self.xid = xid
        self.head = head
        self.payloads = payloads

    def __len__(self) -> int:
        """Length of the whole reply in octets, padding included."""
        return len(self.head) + sum((len(payload) + 3) & ~3 for _, payload in self.payloads)

    def release(self) -> None:
        """Release every payload."""
        for _, payload in self.payloads:
            payload.release()
