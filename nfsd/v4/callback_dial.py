"""Callbacks of NFSv4.0: the server connects to the address that SETCLIENTID gave (RFC 7530 section 16.33).

Owns the address's meaning, one client's path (:class:`Path40`) and the bound on connections made (:class:`Dialer`).
Imports messages and the client library. A path is probed with CB_NULL before anything depends on it (section 10.2.1).

The address is the client's claim, so the server is no tool for reaching what the client cannot reach: only confirmed
clients are called, at the address that their SETCLIENTID came from, and never at a port that only a host's own services
have. With ``anywhere`` other addresses are called too, but never multicast or unspecified ones, and this host itself
only for clients on this host.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from nfsd.protocol import nfs4 as p
from nfsd.state.types import Callback40, CallbackCredential
from nfsd.v4.callback_messages import (
    CallbackError,
    CompoundReply,
    accepted,
    compound_arguments,
    compound_results,
    whole_call,
)
from nfsd.v4.callback_proof import Unproved, proof_for
from rpcrdma.addresses import host_of
from rpcrdma.client.whole import WholeClient
from rpcrdma.gss.initiator import Initiator
from rpcrdma.log_limits import limited_logger
from rpcrdma.memory import Pool
from rpcrdma.rpc.program import AUTH_SYS
from rpcrdma.xdr import Decoder

log = limited_logger(__name__)

CONNECT_TIME = 5.0
IDLE_TIME = 60.0
"""Seconds after which a connection without calls is closed."""
PROBE_AGAIN = 60.0
"""Seconds between two probes of a path that is down."""
_SHARE = 4
"""One part in so many of all connections is the most for the clients of one host: if they do not answer, or cannot be
connected to, the others' callbacks need not wait for them."""
_MAX_OUTSTANDING = 16
"""Callbacks under way to one client."""
_MEMORY = 64 << 20
"""Octets of buffers for replies, all connections together; one needs some only while a reply arrives."""
_CREDENTIAL = CallbackCredential(AUTH_SYS, "rdma-nfsd", 0, 0, ())
_T = TypeVar("_T")


_PRIVILEGED = 1024
"""Ports below are for services of the host: no client of NFS takes callbacks there."""


def callback_address(callback: Callback40, *, anywhere: bool = False) -> tuple[str, int] | None:
    """Host and port of a universal address (RFC 5665 section 5.2.3), or None when it is none that may be called.
    ``anywhere``: not only where the client is."""
    host, _, low = callback.address.rpartition(".")
    host, _, high = host.rpartition(".")
    if not (_octet(low) and _octet(high)):
        return None
    port = int(high) << 8 | int(low)
    try:
        found = ipaddress.ip_address(host)
        peer = ipaddress.ip_address(callback.peer.partition("%")[0])
    except ValueError:
        return None
    if callback.netid != ("tcp" if found.version == 4 else "tcp6") or port < _PRIVILEGED:
        return None
    found, peer = _plain(found), _plain(peer)
    if found != peer and not anywhere:
        return None
    if found.is_multicast or found.is_unspecified or (found.is_loopback and not peer.is_loopback):
        return None
    return str(found), port


def _plain(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _octet(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 3 and int(text) < 256


class Dialer:
    """All connections made to v4.0 clients."""

    def __init__(
        self, next_xid: Callable[[], int], limit: int = 1024, connecting: int = 64, *, anywhere: bool = False
    ) -> None:
        """``limit``: connections open at once; ``connecting``: of them, not yet established; the clients of one host
        may have a part of both. ``anywhere``: see :func:`callback_address`."""
        self.next_xid = next_xid
        self.anywhere = anywhere
        self.limit = limit
        self.initiator: Initiator | None = None
        """What begins security contexts with clients; None: nothing can."""
        self._connecting = asyncio.Semaphore(connecting)
        self._own_connecting: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._own_most = max(1, connecting // _SHARE)
        self._pool = Pool(_MEMORY)
        self._open: set[Path40] = set()

    @property
    def open(self) -> int:
        """Connections there are."""
        return len(self._open)

    def close(self) -> None:
        """Close every connection."""
        for path in list(self._open):
            path.hang_up()

    def sweep(self, now: float) -> None:
        """Close what has been idle for long, or belongs to a client that is gone."""
        for path in list(self._open):
            if path.idle and (path.gone or now - path.last_used >= IDLE_TIME):
                path.hang_up()

    def hung_up(self, path: Path40) -> None:
        """A path has no connection any more."""
        self._open.discard(path)

    async def connect(self, path: Path40, host: str, port: int) -> WholeClient:
        """Connect for a path. Raises OSError, CallbackError when there are too many."""
        own = {one for one in self._open if one.host == path.host}
        crowd = own if len(own) >= max(1, self.limit // _SHARE) else self._open
        if crowd is own or len(self._open) >= self.limit:
            idle = [one for one in crowd if one.idle]
            if not idle:
                raise CallbackError("busy", "too many connections to clients")
            min(idle, key=lambda one: one.last_used).hang_up()
        connecting = self._own_connecting.get(path.host)
        if connecting is None:
            connecting = self._own_connecting[path.host] = asyncio.Semaphore(self._own_most)
        self._open.add(path)
        try:
            async with connecting, self._connecting:
                return await WholeClient.connect(host, port, seconds=CONNECT_TIME, pool=self._pool)
        except BaseException:
            self._open.discard(path)
            raise


class Path40:
    """The way to one v4.0 client, for as long as its callback address stays the same."""

    def __init__(self, dialer: Dialer, callback: Callback40) -> None:
        self.callback = callback
        self.host = host_of(callback.peer)
        """Whose clients share the bounds on connections with this one."""
        self.up: bool | None = None
        """Whether callbacks arrive; None: not known yet."""
        self.checked = 0.0
        """When that was found out."""
        self.probing: asyncio.Task[bool] | None = None
        self.gone = False
        self._dialer = dialer
        self._address = callback_address(callback, anywhere=dialer.anywhere)
        self._proof = proof_for(dialer.initiator, callback, self.host)
        self._can_be_shown = True
        """Whether the client accepts security contexts, as far as the last probe has shown."""
        self._client: WholeClient | None = None
        self._lock = asyncio.Lock()
        self._room = asyncio.Semaphore(_MAX_OUTSTANDING)

    @property
    def idle(self) -> bool:
        """Whether a connection stands unused."""
        return self._client is not None and not self._client.outstanding

    @property
    def last_used(self) -> float:
        """When the connection was last used."""
        return self._client.last_used if self._client is not None else 0.0

    def hang_up(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        self._dialer.hung_up(self)

    async def null(self) -> None:
        """CB_NULL. Raises CallbackError."""
        self._can_be_shown = True
        # Without a credential: the procedure does nothing (RFC 5531 section 8.1 has the convention).
        await self._ask(p.CB_NULL, b"", CallbackCredential(0))

    async def compound(self, count: int, operations: bytes) -> CompoundReply:
        """CB_COMPOUND of so many operations. Raises CallbackError."""
        arguments = compound_arguments(minor=0, ident=self.callback.ident, count=count, operations=(operations,))
        return compound_results(await self._ask(p.CB_COMPOUND, arguments, _CREDENTIAL), count)

    async def _ask(self, procedure: int, arguments: bytes, unproved: CallbackCredential) -> Decoder:
        """The results of a call. It is made by Kerberos if the client was introduced so (RFC 7530 section 3.3.3), and
        has this credential where the client cannot be shown who calls: it would be without delegations otherwise, and
        Linux's client takes such calls. Raises CallbackError."""
        next_xid = self._dialer.next_xid
        if self._proof is not None and self._can_be_shown:
            try:
                return Decoder(await self._proof.ask(self._call, next_xid, procedure, arguments))
            except Unproved as why:
                log.info("callbacks to %s are not made by Kerberos: %s", self.callback.address, why)
                self._can_be_shown = False
        message = whole_call(next_xid(), self.callback.program, procedure, unproved, arguments)
        return accepted(await self._call(message))

    async def _call(self, message: bytes) -> memoryview:
        async with self._room:
            client, fresh = await self._connected()
            try:
                return await client.call(message)
            except ConnectionError as error:
                if fresh:
                    raise CallbackError("path_down", str(error)) from None
            # A connection that stood idle may be gone without our knowing; all callbacks may be executed twice.
            client, _ = await self._connected()
            return await _down(client.call, message)

    async def _connected(self) -> tuple[WholeClient, bool]:
        """A connection, and whether it is new. Raises CallbackError."""
        async with self._lock:
            if self._client is not None and not self._client.closed:
                return self._client, False
            self.hang_up()
            if self._address is None:
                raise CallbackError("path_down", "the client gave no address that can be called")
            try:
                self._client = await self._dialer.connect(self, *self._address)
            except OSError as error:
                raise CallbackError("path_down", f"cannot connect: {error or type(error).__name__}") from None
            return self._client, True


async def _down(function: Callable[[bytes], Awaitable[_T]], message: bytes) -> _T:
    try:
        return await function(message)
    except ConnectionError as error:
        raise CallbackError("path_down", str(error)) from None
